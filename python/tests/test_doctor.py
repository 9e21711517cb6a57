# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.doctor`: what it finds, what it says of what is missing, and that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import laconic
from laconic import doctor

PACKAGE = str(Path(laconic.__file__).parents[1])
BLOCK = """
import runpy, sys


class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Block())
sys.argv = ["doctor", *sys.argv[1:]]
runpy.run_module("laconic.doctor", run_name="__main__")
"""
#: a torch in which no rank ever finds another one
HANGING_TORCH = {
    "torch/__init__.py": "__version__ = '2.4'\ndef set_num_threads(n): pass\n",
    "torch/distributed.py": "import time\nFileStore = lambda *_: None\ndef is_available(): return True\ndef is_gloo_available(): return True\n"
                            "def init_process_group(*_, **__): time.sleep(1000)\n",
    "torch/nn/__init__.py": "",
    "torch/nn/parallel.py": "DistributedDataParallel = None\n",
}


def environment(tmp_path, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LACONIC_") or name == "LACONIC_LIBRARY"}
    kept.pop("GLOO_SOCKET_IFNAME", None)
    temporary = tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    return {**kept, "PYTHONPATH": PACKAGE, "TMPDIR": str(temporary), **variables}


def run(tmp_path, *words, program=("-m", "laconic.doctor"), timeout=600, **variables):
    """The doctor in a process of its own. Whatever it finds, nothing stays in its folder for temporary files."""
    done = subprocess.run([sys.executable, *program, *words], env=environment(tmp_path, **variables), capture_output=True,
                          text=True, timeout=timeout, check=False)
    assert not list((tmp_path / "temporary").iterdir())
    return done


def lines(done):
    """{name: the rest of its line}"""
    return dict(line.split(None, 1) for line in done.stdout.splitlines())


def test_two_processes_exchange(tmp_path):
    """Variables of a launcher, a spec and the kill switch change nothing of what is tried."""
    pytest.importorskip("torch")
    done = run(tmp_path, "--json", LACONIC_DISABLE="1", LACONIC_SPEC="none", RANK="5", WORLD_SIZE="9",
               MASTER_ADDR="nowhere.invalid")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert report["ok"] is True and report["exchange"]["equal"] is True and report["exchange"]["ratio"] > 15
    assert list(checks) == ["laconic", "python", "torch", "gloo", "nccl", "gpu", "numpy", "variables", "interface", "exchange"]
    assert laconic.__version__ in checks["laconic"]["text"] and "liblaconic.so" in checks["laconic"]["text"]
    assert "disables laconic" in checks["variables"]["text"] and "LACONIC_SPEC=none" in checks["variables"]["text"]
    assert f"{report['exchange']['ratio']:.1f} to 1, replicas equal" in checks["exchange"]["text"]
    assert checks["torch"]["text"] == sys.modules["torch"].__version__
    address = report["exchange"]["address"]
    assert address in checks["interface"]["text"] and not any(check["mend"] for check in checks.values())


def test_invalid_values_are_named(monkeypatch):
    monkeypatch.setenv("LACONIC_DISABLE", "ja")
    monkeypatch.setenv("LACONIC_LOG", "loud")
    text = doctor._variables().text
    assert "LACONIC_DISABLE=ja does not disable laconic" in text and "LACONIC_LOG=loud is not a level" in text


def test_missing_torch_and_numpy_are_reported(tmp_path):
    done = run(tmp_path, program=("-c", f"BLOCKED = ('torch', 'numpy')\n{BLOCK}"), LACONIC_SPEK="3lc", LACONIC_WHATEVER="1")
    assert done.returncode == 1, done.stderr
    said = lines(done)
    assert said["torch"].startswith("NO: not installed")
    assert said["torch"].endswith(f"fix it with: {sys.executable} -m pip install torch")
    assert "not needed" in said["numpy"] and said["exchange"] == "NO: not tried" and said["usable"] == "no"
    assert "LACONIC_SPEK is not a variable of laconic: did you mean LACONIC_SPEC?" in said["variables"]
    assert said["variables"].endswith("fix it with: unset LACONIC_SPEK LACONIC_WHATEVER")


def test_broken_torch_is_reported(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open shared object file')\n")
    done = run(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), PACKAGE]))
    assert done.returncode == 1, done.stderr
    assert "cannot be imported: OSError: libtorch.so" in lines(done)["torch"]


def test_torch_without_gloo_is_reported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.4'\n")
    (tmp_path / "torch" / "distributed.py").write_text("def is_available(): return True\ndef is_gloo_available(): return False\n")
    done = run(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), PACKAGE]))
    assert done.returncode == 1, done.stderr
    assert lines(done)["gloo"].startswith("NO: this torch was built without it") and lines(done)["exchange"] == "NO: not tried"


def test_old_torch_is_reported(tmp_path):
    """Both say it: the doctor, and what imports any part of the package that trains."""
    for name, content in HANGING_TORCH.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content.replace("'2.4'", "'2.3.1'"))
    path = os.pathsep.join([str(tmp_path), PACKAGE])
    done = run(tmp_path, PYTHONPATH=path)
    assert done.returncode == 1, done.stderr
    assert lines(done)["torch"] == f"NO: torch 2.3.1 is too old; fix it with: {sys.executable} -m pip install --upgrade torch"
    code = ("import importlib, laconic\n"
            "for name in ('ddp.hook', 'engines.c10d', 'exchange.worker', 'launch.state_folder'):\n"
            "    try:\n        importlib.import_module(f'laconic.{name}')\n"
            "    except laconic.LaconicError as error:\n        print(error.name, error)\n")
    told = "unsupported torch 2.3.1 is too old (laconic needs torch 2.4 or newer: pip install --upgrade torch)"
    assert run(tmp_path, program=("-c", code), PYTHONPATH=path).stdout.splitlines() == [told] * 4


def test_missing_interface_is_reported(tmp_path, monkeypatch):
    """Gloo names it as soon as a process begins; of `exchange`, which then ends, other tests know the rest."""
    pytest.importorskip("torch")
    from launches import program

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonexistent0")
    monkeypatch.setattr(doctor, "_torch", lambda: (doctor.Check("torch", True, ""), doctor.Check("gloo", True, "")))
    rank = program(["-m", "laconic.doctor", "--rank", 0, "--folder", tmp_path, "--timeout", 60], tmp_path, GLOO_SOCKET_IFNAME="nonexistent0")
    assert rank.code != 0
    monkeypatch.setattr(doctor, "exchange", lambda timeout, interface=None: {"error": doctor._reason(rank.err)})
    said = {check.name: check.line() for check in doctor.examine()[0]}
    assert "NO: GLOO_SOCKET_IFNAME names nonexistent0; available: lo" in said["interface"]
    assert "nonexistent0" in said["exchange"] and said["exchange"].endswith("fix it with: unset GLOO_SOCKET_IFNAME")


def test_missing_library_is_reported(tmp_path):
    done = run(tmp_path, LACONIC_LIBRARY="/nonexistent/liblaconic.so")
    assert done.returncode == 1
    assert "/nonexistent/liblaconic.so" in done.stderr.splitlines()[-1] and "LACONIC_LIBRARY" in done.stderr.splitlines()[-1]


# ---- NCCL: which one, and why it cannot run ----


def nccl_line(tmp_path, name="nccl", **variables):
    """What a process says of it. Without torch, so that no exchange is tried."""
    done = run(tmp_path, program=("-c", f"BLOCKED = ('torch',)\n{BLOCK}"), **variables)
    return lines(done)[name]


@pytest.fixture
def fake_nccl():
    """Its CUDA driver is the same library: the loader finds it before a real one."""
    library = Path(laconic.core._lib.lib.path).parent / "liblaconic_fake_nccl.so"
    if not library.exists():
        pytest.skip("the recording NCCL is not built: scripts/build release laconic_fake_nccl")
    return library


def test_nccl_from_variable_is_tried_with_and_without_gpus(tmp_path, fake_nccl):
    (tmp_path / "libcuda.so.1").symlink_to(fake_nccl)
    variables = {"LACONIC_NCCL_LIB": str(fake_nccl), "LD_LIBRARY_PATH": str(tmp_path)}
    here = f"2.27.3, {fake_nccl} (LACONIC_NCCL_LIB)"
    assert nccl_line(tmp_path, **variables) == f"{here}; GPUs: 2"
    why = "no GPU: no CUDA-capable device is detected"
    assert nccl_line(tmp_path, **variables, FAKE_NCCL_DEVICES="0") == f"{here}; cannot run: {why}"


def test_kernels_for_gpus_are_reported(tmp_path, fake_nccl):
    (tmp_path / "libcuda.so.1").symlink_to(fake_nccl)
    said = nccl_line(tmp_path, "gpu", LD_LIBRARY_PATH=str(tmp_path))
    assert said in ("sm_90 on Fake GPU, compute capability 9.0; driver of CUDA 13.0", "cannot run: this build has no kernels for GPUs")
    none = nccl_line(tmp_path, "gpu", LD_LIBRARY_PATH=str(tmp_path), FAKE_NCCL_DEVICES="0")
    assert none == "cannot run: no GPU: cuInit failed: no CUDA-capable device is detected"


def test_old_nccl_and_missing_driver_are_reported(tmp_path, fake_nccl):
    old = fake_nccl.with_name("liblaconic_fake_nccl_old.so")
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    said = nccl_line(tmp_path, LACONIC_NCCL_LIB=str(old), LD_LIBRARY_PATH=str(tmp_path))
    assert said.startswith(f"2.7.8, {old} (LACONIC_NCCL_LIB); cannot run: no NVIDIA driver: ")


def test_nccl_from_pip_precedes_system_nccl(tmp_path, fake_nccl):
    lib = tmp_path / "site" / "nvidia" / "nccl" / "lib"
    lib.mkdir(parents=True)
    (lib / "libnccl.so.2").symlink_to(fake_nccl)
    said = nccl_line(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path / "site"), PACKAGE]))
    assert said.startswith(f"2.27.3, {lib / 'libnccl.so.2'} (installed by pip)")
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "libnccl.so.2").symlink_to(fake_nccl)
    if importlib.util.find_spec("nvidia") is None:
        assert nccl_line(tmp_path, LD_LIBRARY_PATH=str(tmp_path / "system")).startswith("2.27.3, libnccl.so.2 (the system's)")


def test_missing_nccl_is_reported(tmp_path):
    said = nccl_line(tmp_path, LACONIC_NCCL_LIB="/nonexistent/libnccl.so.2")
    assert said.startswith("not found: /nonexistent/libnccl.so.2: cannot open shared object file")
    assert said.endswith("fix it with: unset LACONIC_NCCL_LIB")
    assert "undefined symbol: ncclGetVersion" in nccl_line(tmp_path, LACONIC_NCCL_LIB="libm.so.6")


@pytest.fixture
def hanging(tmp_path):
    """PYTHONPATH of a torch that hangs."""
    for name, text in HANGING_TORCH.items():
        path = tmp_path / "hanging" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return os.pathsep.join([str(tmp_path / "hanging"), PACKAGE])


def test_unconnected_processes_are_reported(tmp_path, hanging):
    program = "import sys; from laconic import doctor; doctor.TIMEOUT = 1.0; sys.exit(doctor.main())"
    done = run(tmp_path, program=("-c", program), PYTHONPATH=hanging)
    assert done.returncode == 1, done.stderr
    assert "no answer for 1 s" in lines(done)["exchange"]


def test_aborted_process_reports_where(tmp_path, hanging):
    """What the processes wrote is seen nowhere else."""
    (tmp_path / "hanging/torch/__init__.py").write_text("import os\n__version__ = '2.4'\ndef set_num_threads(n): os.abort()\n")
    code = "import json; from laconic import doctor; print(json.dumps(doctor.exchange(100.0)))"
    found = json.loads(run(tmp_path, program=("-c", code), PYTHONPATH=hanging).stdout)
    assert "was killed by signal 6: Fatal Python error: Aborted" in found["error"] and "in set_num_threads" in found["said"]


def children(process) -> list[int]:
    with contextlib.suppress(OSError):
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    return []


def eventually(condition, seconds=100.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def in_init(process: int) -> bool:
    """Whether a rank has come as far as it will: it watches its parent, beside the main thread."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{process}/task")) >= 2
    return False


def running(process: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # a zombie has none
    return False


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupt_leaves_nothing(tmp_path, hanging, ending):
    process = subprocess.Popen([sys.executable, "-m", "laconic.doctor"], env=environment(tmp_path, PYTHONPATH=hanging),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               # a background job of a shell hands on that SIGINT is ignored
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        if not Path(f"/proc/{process.pid}/task/{process.pid}/children").exists():
            pytest.skip("this kernel does not list children")
        eventually(lambda: len(children(process.pid)) == 2 and all(map(in_init, children(process.pid))))
        ranks = children(process.pid)
        process.send_signal(ending)
        _, said = process.communicate(timeout=280)
    finally:
        process.kill()
    eventually(lambda: not any(map(running, ranks)))
    eventually(lambda: not list((tmp_path / "temporary").iterdir()))
    assert process.returncode == (-ending if ending == signal.SIGKILL else 128 + ending)
    assert said == ""


def test_working_interface_is_suggested(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    tried = []
    monkeypatch.setattr(doctor, "exchange", lambda timeout, interface=None: tried.append(interface) or {"ratio": 20.0})
    assert "GLOO_SOCKET_IFNAME=lo" in doctor._exchanged({"error": "no route"}).mend
    assert tried == ["lo"]
    monkeypatch.setattr(doctor, "exchange", lambda timeout, interface=None: {"error": "no route"})
    assert doctor._exchanged({"error": "no route"}).mend == ""


def test_full_machine_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path / "absent"))
    assert "no folder for temporary files" in doctor.exchange(1.0)["error"]
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(doctor, "_answer", lambda *_: json.loads('{"rat'))
    monkeypatch.setattr(doctor.sys, "executable", "/bin/true")
    assert "JSONDecodeError" in doctor.exchange(60.0)["error"]
    monkeypatch.setattr(doctor.sys, "executable", "/nonexistent/python")
    assert "FileNotFoundError" in doctor.exchange(60.0)["error"]
    assert not list(tmp_path.iterdir())


def test_different_replicas_are_failure():
    assert doctor._exchanged({"ratio": 20.0, "equal": False, "address": ""}).ok is False


@pytest.mark.parametrize(("said", "reason"), [
    ("Traceback\n  x\nRuntimeError: no route\n[W] leaked\n", "RuntimeError: no route"), ("", "it printed nothing"),
    ("Fatal Python error: x\nThread 1\n  File y\n", "Fatal Python error: x"),
    ("terminate called without y\nFatal Python error: Aborted\n\nThread 1\n  File y\n", "terminate called without y"),
    ("Fatal Python error: Aborted\n  File y\n", "Fatal Python error: Aborted"), ("only this\n", "only this")])
def test_line_with_reason_is_found(said, reason):
    assert doctor._reason(said) == reason
