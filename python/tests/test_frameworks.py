# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic.jax in one process, with a stub in place of JAX: make users runs the real one."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import laconic
from laconic import LaconicError
from laconic.core import _lib

numpy = pytest.importorskip("numpy")

from stand_ins import BatchTracer, JVPTracer, Tracer, array, jax_modules  # noqa: E402


@pytest.fixture
def jax(monkeypatch):
    modules = jax_modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules["jax"]


def test_import_takes_no_framework_along():
    program = ("import sys, laconic, laconic.jax, laconic.keras; assert laconic.jax.averaged and laconic.keras.compressed; "
               "sys.exit(bool({'jax', 'keras', 'tensorflow', 'optax', 'torch'} & set(sys.modules)))")
    path = {"PYTHONPATH": ":".join(sys.path), "LACONIC_LIBRARY": str(_lib.lib.path)}
    assert subprocess.run([sys.executable, "-c", program], env=path, check=False).returncode == 0


def test_means_keep_tree_and_types(jax):
    averager = laconic.jax.Averager("3lc", {"w": array(), "b": array((2,), dtype="float16")})
    grads = {"w": array() + 1, "b": array((2,), dtype="float16")}
    for means in (averager(grads), averager.inside(grads)):
        assert list(means) == ["w", "b"] and all((means[name] == grads[name]).all() and means[name].dtype == grads[name].dtype for name in means)
    assert (averager.rank, averager.world, averager.flat.step) == (0, 1, 2) and not numpy.shares_memory(averager(grads)["w"], averager.flat.views[0])
    assert {entry["name"] for entry in averager.explain()["parameters"]} == {"['w']", "['b']"}
    averager.close()


@pytest.mark.parametrize(("leaf", "words"), [
    (array(dtype="float64"), r"\['w'\] is of float64"), (array(dtype="int32"), r"\['w'\] is of int32"),
    (array(dtype="complex64"), "complex64"), (1.0, r"\['w'\] is of float")])
def test_leaf_of_other_type_is_refused_by_name(jax, leaf, words):
    with pytest.raises(LaconicError, match=words):
        laconic.jax.Averager("3lc", {"w": leaf})


def test_unsuitable_gradients_are_refused(jax):
    averager = laconic.jax.Averager("3lc", {"w": array()})
    remote = array()
    remote.is_fully_addressable = False
    for call, grads, words in ((averager, {"v": array()}, "not a tree"), (averager, {"w": array((3, 5))}, "not a tree"),
                               (averager, {"w": remote}, "sharded over processes .Laconic stands between processes"),
                               (averager, {"w": array(kind=Tracer)}, "inside jit call averager.inside"),
                               (averager.inside, {"w": array(kind=BatchTracer)}, "under vmap"),
                               (averager.inside, {"w": array(kind=JVPTracer)}, "no derivative")):
        with pytest.raises(LaconicError, match=words):
            call(grads)
    jax.axes["devices"] = 2
    with pytest.raises(LaconicError, match="under pmap or shard_map over devices"):
        averager.inside({"w": array(kind=Tracer)})
    assert averager.flat.step == 0


def test_state_is_arrays_and_continues(jax):
    averager = laconic.jax.Averager("topk:ratio=0.1", {"w": array((100, 100))})
    averager({"w": array((100, 100))})
    state = averager.state_dict()
    assert all(isinstance(value, (numpy.ndarray, numpy.generic)) for value in state.values())
    other = laconic.jax.Averager("topk:ratio=0.1", {"w": array((100, 100))})
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert other.flat.step == 1 and pickle.dumps(other.state_dict()) == pickle.dumps(state)
    for damaged in ({}, {**state, "session": state["session"][:-9]}, {**state, "entries/of nothing": state["step"]}):
        with pytest.raises(LaconicError):
            other.load_state_dict(damaged)


def test_trees_have_sessions_of_their_own(jax):
    transformation = laconic.jax.averaged("none")
    with pytest.raises(LaconicError, match="there are 0 averagers"):
        transformation.averager  # noqa: B018
    state = transformation.init({"w": array()})
    assert transformation.init({"w": array() + 1}) == state == 0 and state.dtype == numpy.int32
    updates, after = transformation.update({"w": array()}, state)
    assert (updates["w"] == array()).all() and after == 1
    traced, after = transformation.update({"w": array(kind=Tracer)}, after)
    assert (traced["w"] == array()).all() and after == 2 and transformation.averager.flat.step == 2
    transformation.init({"v": array()})
    with pytest.raises(LaconicError, match="there are 2 averagers"):
        transformation.averager  # noqa: B018


def test_kill_switch_sends_uncompressed_means(jax, monkeypatch):
    monkeypatch.setenv("LACONIC_DISABLE", "1")
    assert laconic.jax.Averager("topk:ratio=0.1", {"w": array()}, down="int8").explain()["spec"] == "none"


class Two:
    """A session's other rank, whose bytes are given."""

    world = 2

    def __init__(self, other):
        self.other = other

    def gather_bytes(self, data):
        return self.other(data) + data


def test_weights_that_differ_are_error_and_rank_0_replaces_them(jax):
    flat = laconic.jax.Averager("none", {"w": array()}).flat
    flat.session = Two(lambda data: data)
    flat.compare([array()], "the weights")
    flat.session = Two(lambda data: bytes(len(data)))
    with pytest.raises(LaconicError, match="the weights of rank 1 differ from those of rank 0"):
        flat.compare([array()], "the weights")
    large = array((700, 700))  # several pieces
    for values in (large, numpy.int64(3)):
        assert (flat.of_rank_0(values) == 0).all() and flat.of_rank_0(values).shape == values.shape
