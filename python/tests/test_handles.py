# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A handle's life: found from the model, ended with its wrapper, absent from pickles, silent at exit."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402


def _wrapped(width=80):
    return DistributedDataParallel(torch.nn.Linear(width, 80))


def _steps(ddp, count=3, width=80):
    for step in range(count):
        ddp.zero_grad()
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        ddp(torch.randn(4, width, generator=generator)).square().mean().backward()
    return [p.grad.clone() for p in ddp.parameters()]


# ---- found from the model ----

def _found():
    first, second = _wrapped(), _wrapped()
    one, two = laconic.attach(first, "3lc", quiet=True), laconic.attach(second, "topk", quiet=True)

    def ours():
        return [handle for handle in laconic.handles() if handle in (one, two)]

    outer = torch.nn.Module()
    outer.module = first.module  # not a wrapper
    found = [laconic.handle_of(first) is one, laconic.handle_of(first.module) is one, laconic.handle_of(second.module) is two,
             laconic.handle_of(torch.nn.Linear(2, 2)) is None, laconic.handle_of(outer) is None, ours() == [one, two]]
    found.append(laconic.handle_of(torch.compile(second)) is two)
    one.close()
    found += [laconic.handle_of(first) is None, ours() == [two]]
    two.close()
    return found


class _Framework(torch.nn.Module):
    """As Lightning Fabric's module: the wrapper is a part of it, under a name of its own."""

    def __init__(self, *forward_modules):
        super().__init__()
        self._forward_module = torch.nn.ModuleList(forward_modules)

    @property
    def module(self):
        return self._forward_module[0].module


def _looked_through():
    ddp = _wrapped()
    shells = [_Framework(ddp), torch.nn.Sequential(_Framework(ddp)), torch.compile(ddp), torch.compile(_Framework(ddp))]
    found = [laconic.handle_of(shell) is None for shell in shells]
    handle = laconic.attach(shells[1], "3lc", quiet=True)
    found += [laconic.handle_of(shell) is handle for shell in (*shells, ddp, ddp.module)]
    try:
        laconic.attach(_Framework(_wrapped(), _wrapped()), "3lc", quiet=True)
        found.append(False)
    except laconic.LaconicError as error:
        found.append("cannot attach to a " in error.message and "holds 2" in error.hint)
    handle.close()
    net = torch.nn.Linear(80, 80)
    inside = DistributedDataParallel(torch.compile(net, backend="eager"))
    handle = laconic.attach(inside, "3lc", quiet=True)
    found.append(laconic.handle_of(net) is handle)
    handle.close()
    return found


def test_module_with_one_wrapper_is_unwrapped(pools):
    assert all(all(found) for found in pools(2).run(_looked_through))


def test_handle_is_found_from_wrapper_and_its_model(pools):
    for found in pools(2).run(_found):
        assert all(found), found


def test_disabled_handle_has_all_attributes():
    from laconic.ddp.handle import Handle, PassThrough

    wanted = {name: method for name, method in vars(Handle).items() if not name.startswith("_")}
    del wanted["worker"]  # of hooks
    assert wanted.keys() | {"rank", "warmup"} <= set(dir(PassThrough)), wanted.keys() - set(dir(PassThrough))
    for name, method in wanted.items():
        if callable(method):
            takes = [[(p.name, p.default) for p in inspect.signature(of).parameters.values()] for of in (method, getattr(PassThrough, name))]
            assert takes[0] == takes[1], name
    handle = PassThrough()
    assert handle.close() is None and handle.set("3lc", control="dc2") is None and handle.last_error is None and handle.flush(3) == 0
    for call in (handle.close, handle.follow, handle.set):
        with pytest.raises(TypeError):
            call(*range(4))


# ---- ended with its wrapper ----

def _threads():
    return sum(t.name == "laconic" for t in threading.enumerate())


def _eventually(true, seconds=100.0):
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _ends(keep, width):
    """Wraps and drops models, with or without keeping their handles: threads left, sessions freed, groups made."""
    import ctypes

    from laconic.core import _lib

    destroyed, kept, groups, saved = [], [], set(), []
    threads, original = _threads(), _lib.lib.laconic_session_destroy

    class Counting:  # in the place of a ctypes function
        def __call__(self, handle):
            destroyed.append(ctypes.cast(handle, ctypes.c_void_p).value)
            return original(handle)

    _lib.lib.laconic_session_destroy = Counting()
    try:
        for _ in range(4):
            ddp = _wrapped(width)
            handle = laconic.attach(ddp, "3lc", quiet=True)
            _steps(ddp, width=width)
            groups.add(id(handle._opened.sibling.group))
            handle.at_end(lambda handle=handle: saved.append((handle.state_dict()["step"], len(handle.parameters))))
            if keep:
                kept.append(handle)
            del ddp, handle
            gc.collect()
            ended = _eventually(lambda: _threads() == threads)
    finally:
        _lib.lib.laconic_session_destroy = original
    after = [(h.closed, h.stats()["steps"], h.explain()["spec"], h.step) for h in kept]
    try:
        kept[0].state_dict() if kept else None
        refused = None
    except laconic.LaconicError as error:
        refused = error.name
    return ended, len(destroyed), len(groups), saved, after, refused


@pytest.mark.parametrize("keep", [False, True])
def test_end_of_wrapper_frees_session_thread_and_group(pools, keep):
    for ended, destroyed, groups, saved, after, refused in pools(2).run(_ends, keep=keep, width=120):
        assert ended and destroyed == 4
        assert groups == 1  # the next attach takes the one that was freed
        assert saved == [(3, 2)] * 4  # at its end a handle is still whole
        assert after == [(True, 3, "3lc", 3)] * (4 if keep else 0)
        assert refused == ("invalid_argument" if keep else None)


def _collected_at_a_bad_moment():
    """The collector may run while the counters are locked, in the thread that has locked them."""
    ddp = _wrapped()
    handle = laconic.attach(ddp, "3lc", quiet=True)
    _steps(ddp, 1)
    ended = []

    def collect():
        with handle.worker._reports._in_use, handle.worker.counters._lock, handle.worker.commands._lock:
            ended.append(handle.worker.end())

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(100)
    return ended


def test_wrapper_may_be_collected_while_counters_are_locked(pools):
    assert pools(2).run(_collected_at_a_bad_moment) == [[True]] * 2


def _closed_twice():
    """A handle that ended may be closed again; its model refuses to exchange."""
    ddp = _wrapped()
    handle = laconic.attach(ddp, "3lc", quiet=True)
    _steps(ddp, 1)
    handle.close()
    handle.close()
    try:
        _steps(ddp, 1)
    except RuntimeError as error:
        return str(error)


def test_closed_handle_refuses_to_exchange(pools):
    for said in pools(2).run(_closed_twice):
        assert "this model's handle is closed" in said


# ---- pickles ----

def _copied(how):
    """Gradients of a model, of its copy before attaching, and of its copy after; sizes of pickles with and without laconic."""
    plain = len(pickle.dumps(_wrapped()))
    ddp = _wrapped()
    handle = laconic.attach(ddp, "topk:ratio=0.05", quiet=True)
    expected = _steps(ddp)
    size = len(pickle.dumps(ddp))
    if how == "deepcopy":
        other = copy.deepcopy(ddp)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(ddp))
    else:
        file = io.BytesIO()
        torch.save(ddp, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    for p in other.parameters():
        p.grad = None
    uncompressed = _steps(other, 1)
    third = laconic.attach(copy.deepcopy(other), "topk:ratio=0.05", quiet=True)  # a wrapper without a reference
    again = laconic.attach(other, "topk:ratio=0.05", quiet=True)
    compressed = _steps(other)
    kept = len(getattr(other, "_comm_hooks", [1]))
    again.close(), third.close()
    assert handle.stats()["steps"] == 3  # the first is as it was
    handle.close()
    return {"equal": all(map(torch.equal, expected, compressed)), "dense": int((uncompressed[0] != 0).sum()),
            "sparse": int((compressed[0] != 0).sum()), "more": size - plain, "kept": kept}


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copy_has_no_residual_and_may_be_attached(pools, how):
    for outcome in pools(2).run(_copied, how=how):
        assert outcome["equal"] and outcome["dense"] == 6400 and outcome["sparse"] <= 640
        assert outcome["more"] < 1000  # a residual would take 25,600 bytes
        assert outcome["kept"] == 1


# ---- silent at exit ----

KEPT = """
import os, sys
sys.main = sys.modules["__main__"]  # dill keeps it, too: what the program holds outlives the modules of laconic
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import laconic

child = os.fork()
dist.init_process_group("gloo", store=dist.FileStore(f"{sys.argv[1]}/store", 2), rank=int(child == 0), world_size=2)
ddp = DistributedDataParallel(torch.nn.Linear(80, 80))
handle = laconic.attach(ddp, "3lc", quiet=True)
ddp(torch.ones(2, 80)).sum().backward()
codec, residual = laconic.Codec("3lc"), laconic.Residual(64)
codec.encode(torch.ones(64), residual=residual)
if child:
    assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def test_objects_kept_to_exit_print_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(laconic.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", KEPT, tmp_path], env=environment, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout) == (0, "done\ndone\n"), done.stderr
    said = done.stderr.replace(str(Path(torch.__file__).parents[1]), "")  # which its warnings name, and a checkout may be called so
    assert "laconic" not in said and "Traceback" not in said, said


# ---- keywords ----

def test_keywords_are_codec_keys():
    assert laconic.Codec("topk", ratio=0.05).spec == laconic.Codec("topk:ratio=0.05").spec == "topk:ratio=0.05"
    assert laconic.Codec("int8:round=stochastic+ef", block=512).spec == "int8:block=512,round=stochastic+ef"
    assert laconic.Codec("powersgd", warm=False).spec == "powersgd:warm=off"
    assert laconic.Codec("topk", ratio=1e-5).spec == "topk:ratio=1e-5"
    for spec, options, name in (("topk", {"ration": 0.1}, "unknown_key"), ("topk:ratio=0.1", {"ratio": 0.1}, "spec_syntax"),
                                ("topk", {"ratio": 2}, "value_out_of_range"), (3, {"ratio": 1}, "invalid_argument"),
                                ("topk", {"ratio": "0.1,x=2"}, "unknown_key")):
        with pytest.raises(laconic.LaconicError) as caught:
            laconic.Codec(spec, **options)
        assert caught.value.name == name


def _with_keywords():
    ddp, another = _wrapped(), _wrapped()
    handles = [laconic.attach(ddp, "topk", ratio=0.05, quiet=True), laconic.attach(another, "topk:ratio=0.05", quiet=True)]
    with pytest.raises(laconic.LaconicError) as caught:
        laconic.attach(_wrapped(), "topk", stratgy="two_shot")
    return [h.spec for h in handles], str(caught.value)


def test_attach_takes_codec_keys(pools):
    for specs, said in pools(2).run(_with_keywords):
        assert specs == ["topk:ratio=0.05"] * 2
        assert "stratgy" in said


def _held() -> tuple[int, int]:
    """Threads and open files of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def _cost_of_many():
    """Memory of fifteen more wrappers of a group, two of which exchange in one backward(), and what is left when all
    are closed."""
    gc.collect()  # what tests before have dropped
    dropped = _eventually(lambda: _threads() == 0)
    before, first = _held(), _wrapped()
    handles = [laconic.attach(first, "3lc", quiet=True)]
    _steps(first)
    one = _held()
    wrappers = [_wrapped() for _ in range(15)]
    handles += [laconic.attach(ddp, "3lc", quiet=True) for ddp in wrappers]
    for ddp in wrappers:
        _steps(ddp)
    for _ in range(3):
        x = torch.randn(4, 80)
        (wrappers[0](x).square().mean() + wrappers[1](x).square().mean()).backward()
    gradients = [p.grad.clone() for ddp in wrappers[:2] for p in ddp.parameters()]
    many = _held()
    steps = [handle.stats()["steps"] for handle in handles]
    handles[3].close()  # the others go on
    _steps(wrappers[0])
    for handle in handles:
        handle.close()
    settled = dropped and _eventually(lambda: _held()[0] < one[0])
    return [many[i] - one[i] for i in (0, 1)], steps, settled, [g.tolist() for g in gradients], before


def test_sixteen_models_use_threads_and_files_of_one(pools):
    results = pools(2).run(_cost_of_many)
    for (threads, files), steps, settled, gradients, _ in results:
        assert threads <= 4 and files <= 10, (threads, files)
        assert len(steps) == 16 and min(steps) > 0 and settled
        assert gradients == results[0][3]
