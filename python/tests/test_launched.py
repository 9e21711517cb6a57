# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""engine="auto": what is chosen in which environment, and what is logged. No process is started here."""

from __future__ import annotations

import json
import sys
import types
from array import array

import pytest

import laconic
from laconic import LaconicError
from laconic.core import environment
from laconic.exchange import launched

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}


def tensorflow(kind="worker", index=1, **cluster):
    cluster = cluster or {"worker": ["a.example:2222", "b.example:2222"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def jax(client=True, address="coordinator:1234"):
    return {"jax._src.distributed": types.SimpleNamespace(
        global_state=types.SimpleNamespace(client=object() if client else None, coordinator_address=address, process_id=2, num_processes=3))}


def torch(initialized=True):
    return {"torch.distributed": types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: initialized)}


@pytest.fixture
def around(monkeypatch):
    """Sets variables and modules, and no others that decide."""
    def put(variables=None, modules=None):
        for launcher in environment.LAUNCHERS:
            for variable in (launcher.rank, launcher.world, launcher.local_rank, launcher.local_world, launcher.also):
                if variable:
                    monkeypatch.delenv(variable, raising=False)
        for variable in ("MASTER_ADDR", "MASTER_PORT", "TF_CONFIG", "TORCHELASTIC_USE_AGENT_STORE", launched.PORT):
            monkeypatch.delenv(variable, raising=False)
        for name in ("torch.distributed", "jax._src.distributed"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        for variable, value in (variables or {}).items():
            monkeypatch.setenv(variable, value)
        for name, module in (modules or {}).items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(launched, "_opened", iter(range(9)))

    put()
    return put


@pytest.mark.parametrize(("variables", "modules", "expected"), [
    ({}, {}, ("none", "nothing", 0, 1, "", 0)),
    ({}, jax(), ("gloo", "jax.distributed", 2, 3, "coordinator", 1235)),
    ({}, jax(address="[::1]:1234"), ("gloo", "jax.distributed", 2, 3, "[::1]", 1235)),
    ({launched.PORT: "7000"}, jax(), ("gloo", "jax.distributed", 2, 3, "coordinator", 7000)),
    ({}, jax(client=False), ("none", "nothing", 0, 1, "", 0)),
    (TORCHRUN, {**jax(), **torch()}, ("gloo", "jax.distributed", 2, 3, "coordinator", 1235)),
    (TORCHRUN, torch(), ("c10d", "torch's process group", None, None, "", 0)),
    (OPENMPI, torch(), ("c10d", "torch's process group", None, None, "", 0)),
    (TORCHRUN, torch(initialized=False), ("gloo", "RANK", 1, 4, "10.77.0.1", 29500)),
    ({**TORCHRUN, **AGENT}, {}, ("gloo", "RANK", 1, 4, "10.77.0.1", 29501)),
    ({**TORCHRUN, **AGENT, launched.PORT: "7000"}, {}, ("gloo", "RANK", 1, 4, "10.77.0.1", 7000)),
    ({**TORCHRUN, **OPENMPI}, {}, ("mpi", "OMPI_COMM_WORLD_SIZE", None, None, "", 0)),
    (MPICH, {}, ("mpi", "PMI_SIZE", None, None, "", 0)),
    ({**TORCHRUN, "MASTER_ADDR": ""}, {}, ("none", "nothing", 0, 1, "", 0)),
    ({**tensorflow(), **TORCHRUN}, {}, ("gloo", "RANK", 1, 4, "10.77.0.1", 29500)),
    (tensorflow(), {}, ("gloo", "TF_CONFIG", 1, 2, "a.example", 2223)),
    (tensorflow("ps", 0, ps=["c:1"]), {}, ("none", "nothing", 0, 1, "", 0)),
])
def test_first_row_that_fits_chooses(around, variables, modules, expected):
    around(variables, modules)
    place = launched.place()
    engine, by, *rest = expected
    assert (place.engine, *place[2:]) == (engine, *rest) and place.by.startswith(by)


@pytest.mark.parametrize(("variables", "words"), [
    ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be used"),
    (tensorflow("evaluator", 0), "task evaluator 0"),
    (tensorflow(index=2), "task worker 2"),
    (tensorflow(worker=["a:1"], chief=["b:1"], index=0), "a cluster of workers"),
    ({**TORCHRUN, launched.PORT: "http"}, "LACONIC_PORT is 'http'"),
])
def test_unusable_variable_is_named(around, variables, words):
    around(variables)
    with pytest.raises(LaconicError) as caught:
        laconic.Session("3lc", [("w", 5)])
    assert caught.value.name == "invalid_argument" and words in str(caught.value)


def test_sessions_of_a_process_meet_at_different_ports(around):
    around(TORCHRUN)
    assert [launched.place().rendezvous() for _ in range(2)] == ["tcp:10.77.0.1:29500", "tcp:10.77.0.1:29501"]


def test_one_process_needs_no_plugin_and_logs_choice(around, monkeypatch, caplog):
    for variable in ("LACONIC_MPI_LIB", "LACONIC_GLOO_LIB"):
        monkeypatch.setenv(variable, "/nonexistent/plugin.so")
    caplog.set_level("INFO", "laconic")
    given = array("f", range(5000))
    with laconic.Session("3lc", [("w", 4900), ("b", 100)]) as session:
        gradient = array("f", given)
        session.average(0, gradient)
        assert (session.rank, session.world, session.explain()["engine"]) == (0, 1, "none") and gradient == given
        session.load_state_dict(session.state_dict())
    assert "one rank alone: no launcher's variables and no process group were found" in caplog.text


def test_arguments_win_over_variables(around, tmp_path):
    around(TORCHRUN)
    for options, words in (({"engine": "mpi", "rendezvous": "file:x"}, "does not accept rendezvous"),
                           ({"rendezvous": f"file:{tmp_path}"}, "needs rank, world and rendezvous"),
                           ({"rendezvous": "file:x", "group": object()}, "two engines"),
                           ({"group": None, "rank": 9, "world": 4}, "rank is 9")):
        with pytest.raises(LaconicError, match=words):
            laconic.Session("3lc", [("w", 5)], **options)
