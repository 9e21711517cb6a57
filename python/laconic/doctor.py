# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.doctor`: checks what training with laconic needs, and tries an exchange between two processes; started by a launcher,
between its ranks.

Exit status 0 if the exchange works, else 1; each line with a problem names a command that fixes it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import fcntl
import importlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

from .core import _checks, _lib, environment
from .core.errors import LaconicError
from .engines import _nccl
from .launch import together

#: characters of what a process that failed has written, for --json
_MOST_SAID = 4000
#: seconds until processes that do not start, and an exchange that does not come about, are given up
TIMEOUT = 60.0
SPEC = "3lc"
_STEPS = 3
_SIOCGIFADDR = 0x8915  # netdevice(7)


class Check:
    """One line. `ok`: False if it prevents training, None if it is only information. `mend`: a command that fixes it."""

    def __init__(self, name: str, ok: bool | None, text: str, mend: str = ""):
        self.name, self.ok, self.text, self.mend = name, ok, text, mend

    def line(self) -> str:
        mend = f"; fix it with: {self.mend}" if self.mend else ""
        return f"{self.name:<12} {'NO: ' if self.ok is False else ''}{self.text}{mend}"


# ---- what is here -----------------------------------------------------------------------------------------------------------


def _library() -> Check:
    build = json.loads(_lib.lib.laconic_build_info().decode())
    return Check("laconic", True, f"{build['version']}, {_lib.lib.path}, kernels for {build['isa']}")


def _imported(name: str):
    """The module; None where it is not installed; the text of the failure where it is and cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's word on NumPy: there is a line of ours
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        return None if error.name == name else f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  a library that is missing, another Python's package
        return f"{type(error).__name__}: {error}"


def _torch() -> tuple[Check, Check]:
    """torch itself, and whether its distributed part has Gloo."""
    torch, pip = _imported("torch"), f"{sys.executable} -m pip install"
    if torch is None:
        return (Check("torch", False, "not installed; laconic.Codec works without it, training does not", f"{pip} torch"),
                Check("gloo", None, "comes with torch"))
    if isinstance(torch, str):
        return (Check("torch", False, f"cannot be imported: {torch}", f"{pip} --force-reinstall torch"),
                Check("gloo", None, "comes with torch"))
    import torch.distributed as dist

    try:
        _checks.supported_torch(torch.__version__)
    except LaconicError as error:
        return Check("torch", False, error.message, f"{pip} --upgrade torch"), Check("gloo", None, "comes with torch")
    here = Check("torch", True, torch.__version__)
    if not dist.is_available() or not dist.is_gloo_available():
        return here, Check("gloo", False, "this torch was built without it", f"{pip} --force-reinstall torch")
    return here, Check("gloo", True, "part of this torch")


def _numpy() -> Check:
    numpy = _imported("numpy")
    if numpy is None:
        return Check("numpy", None, "not installed, and not needed: decode() then returns array.array. torch prints a warning "
                     "when it is imported, and its all_gather_object() needs it")
    return Check("numpy", None, f"cannot be imported: {numpy}" if isinstance(numpy, str) else numpy.__version__)


def _nccl_here() -> Check:
    """For the C++ engine; training in Python needs none."""
    found = _nccl.find()
    if not found.version:
        mend = "unset LACONIC_NCCL_LIB" if os.environ.get("LACONIC_NCCL_LIB") else ""
        return Check("nccl", None, f"not found: {found.why_not}", mend)
    here = f"{found.version}, {found.library} ({found.chosen})"
    return Check("nccl", None, f"{here}; cannot run: {found.why_not}" if found.why_not else f"{here}; GPUs: {found.gpus}")


def _kernels_here() -> Check:
    """For codecs on a GPU; training needs none."""
    found = json.loads(_lib.lib.laconic_device_info(None).decode())
    if found["why_not"]:
        return Check("gpu", None, f"cannot run: {found['why_not']}")
    return Check("gpu", None, f"{found['image']} on {found['gpu']}; driver of CUDA {found['driver']}")


def _variables() -> Check:
    """The LACONIC_* variables: those that are set, and those that mean nothing."""
    here = {name: value for name, value in sorted(os.environ.items()) if name.startswith(environment.PREFIX)}
    told, unknown = [f"{name}={value}" for name, value in here.items()], set(here).difference(environment.KNOWN)
    for name in sorted(unknown):
        near = environment.nearest(name)
        told.append(f"{name} is not a variable of laconic" + (f": did you mean {near}?" if near else ""))
    told += environment.misread()
    if environment.disabled():
        told.append(f"LACONIC_DISABLE={here['LACONIC_DISABLE']} disables laconic: training is plain DDP")
    mend = "unset " + " ".join(sorted(unknown)) if unknown else ""
    return Check("variables", None, "; ".join(told) if told else "no LACONIC_* variable is set", mend)


# ---- the exchange, between two processes of this file -------------------------------------------------------------------------


def _clean_environment(folder: Path, interface: str | None) -> dict[str, str]:
    """Removes all variables of laconic except the library's path; files that torch leaves go into the folder."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(environment.PREFIX) or name == "LACONIC_LIBRARY"}
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept["TMPDIR"] = str(folder)
    if interface is not None:
        kept["GLOO_SOCKET_IFNAME"] = interface
    return kept


def exchange(timeout: float, interface: str | None = None) -> dict:
    """{"ratio", "equal", "address"} of rank 0, or {"error"}. Leaves no process and no file, also when it is interrupted."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="laconic-doctor-"))
    except OSError as error:
        return {"error": f"no folder for temporary files: {error}"}
    ranks: list[subprocess.Popen] = []
    try:
        for rank in range(2):
            with open(folder / f"{rank}.out", "wb") as out, open(folder / f"{rank}.err", "wb") as err:
                command = [sys.executable, "-m", "laconic.doctor", "--rank", str(rank), "--folder", str(folder),
                           "--timeout", str(timeout)]
                ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err,
                                              env=_clean_environment(folder, interface)))
        if _wait(ranks, timeout, lambda: len(list(folder.glob("*.ready"))) == 2):  # importing torch may take its time
            _wait(ranks, timeout, lambda: False)
        return _answer(folder, [process.poll() for process in ranks], timeout)
    except (OSError, ValueError) as error:  # no disk, not enough memory for a process, an answer that is cut off
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            process.stdin.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(ranks: list[subprocess.Popen], seconds: float, reached) -> bool:
    """Until both have ended, one has failed, or it is too late; True as soon as `reached()`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not reached():
        statuses = [process.poll() for process in ranks]
        if None not in statuses or any(statuses):
            return False
        time.sleep(0.05)
    return reached()


def _answer(folder: Path, statuses: list[int | None], timeout: float) -> dict:
    if statuses == [0, 0]:
        return json.loads((folder / "0.out").read_text(encoding="utf-8"))
    for rank, status in enumerate(statuses):
        if status:
            said = (folder / f"{rank}.err").read_text(encoding="utf-8", errors="replace")
            how = f"was killed by signal {-status}" if status < 0 else "failed"
            return {"error": f"process {rank} {how}: {_reason(said)}", "said": said[-_MOST_SAID:]}
    return {"error": f"no answer for {timeout:.0f} s"}


def _reason(said: str) -> str:
    """The line of a process's output that has the reason for its end."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b|Fatal|Segmentation|terminate called", line)]
    specific = [line for line in named if line != "Fatal Python error: Aborted"]  # something before it says why
    return (specific or named or lines or ["it printed nothing"])[-1]


def _rank(rank: int, folder: Path, timeout: float) -> None:
    """One of the two processes. Ends when its parent does, which holds its stdin open."""
    faulthandler.enable()  # a library that aborts says where
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    import datetime

    import torch
    import torch.distributed as dist

    from .api import attach  # noqa: F401  before the time is counted

    torch.set_num_threads(1)
    (folder / f"{rank}.ready").touch()
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=timeout))
    found = {"address": _listening(), **_train()}
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _train() -> dict:
    """A few steps over torch's group, of any world: {"ratio", "port_ratio", "equal"}."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from .api.attach import attach

    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(512, 128))
    handle = attach(ddp, SPEC, quiet=True)
    data = torch.Generator("cpu").manual_seed(dist.get_rank())
    for _ in range(_STEPS):
        ddp(torch.randn(16, 512, generator=data, dtype=torch.float32, device="cpu")).square().mean().backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    from .exchange.state import fingerprint

    hashes = handle.gather_texts(fingerprint(ddp.module.named_parameters()))
    stats = handle.stats()
    handle.close()
    return {"ratio": stats["ratio"], "port_ratio": stats["port_ratio"], "equal": len(set(hashes)) == 1}


def _end_with_parent(folder: Path) -> None:
    os.read(0, 1)  # not sys.stdin, whose lock the end of the interpreter wants
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _listening() -> str:
    """The address on which this process, that is Gloo, is listening; empty where /proc does not tell."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        targets = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        sockets = {found[1] for found in map(re.compile(r"socket:\[(\d+)\]").fullmatch, targets) if found}
        for family, file in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
            for line in Path(f"/proc/self/net/{file}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in sockets:  # LISTEN
                    words = bytes.fromhex(fields[1].partition(":")[0])
                    raw = struct.pack(f"={len(words) // 4}I", *struct.unpack(f">{len(words) // 4}I", words))
                    return socket.inet_ntop(family, raw)
    return ""


# ---- what the exchange says ---------------------------------------------------------------------------------------------------


def _name_of(address: str) -> str:
    """The interface that has an IPv4 address; empty if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _interface(found: dict) -> Check:
    given = os.environ.get("GLOO_SOCKET_IFNAME", "")
    names = [name for _, name in socket.if_nameindex()]
    unknown = [name for name in given.split(",") if name and name not in names]
    if unknown:
        return Check("interface", False, f"GLOO_SOCKET_IFNAME names {', '.join(unknown)}; available: {', '.join(names)}",
                     "unset GLOO_SOCKET_IFNAME")
    chosen = "GLOO_SOCKET_IFNAME" if given else "Gloo's choice; GLOO_SOCKET_IFNAME chooses another"
    address = found.get("address", "")
    if not address:
        return Check("interface", None, f"{given} ({chosen})" if given else "Gloo's choice: GLOO_SOCKET_IFNAME is not set")
    name = _name_of(address)
    note = ", reachable from this machine only" if address.startswith("127.") or address == "::1" else ""
    return Check("interface", None, f"{name} " * bool(name) + f"{address}{note} ({chosen})")


def _exchanged(found: dict) -> Check:
    if "error" in found:
        return Check("exchange", False, f"two processes, {SPEC}: {found['error']}", _mend())
    if not found["equal"]:
        return Check("exchange", False, f"two processes, {SPEC}: the replicas differ; please report this")
    return Check("exchange", True, f"two processes, {SPEC}: {found['ratio']:.1f} to 1, replicas equal")


def _mend() -> str:
    """After an exchange that failed: another interface, if it works with that one."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return "unset GLOO_SOCKET_IFNAME"
    return "export GLOO_SOCKET_IFNAME=lo  # on one machine" if "error" not in exchange(TIMEOUT / 2, "lo") else ""


def _where() -> str:
    """The interface and address at which this process is listening."""
    address = _listening()
    return f"{_name_of(address)} {address}".strip()


def _examine_together(launcher: environment.Launcher) -> tuple[list[Check], dict]:
    """With all ranks of the launcher. Rank 0 has all checks, another one that failed has its own failure."""
    found = together.met(launcher, SPEC, TIMEOUT, _train, _where)
    if "error" in found:
        return [Check("exchange", False, f"rank {found['rank']} under {launcher.name}, {SPEC}: {found['error']}")], found
    checks = [] if found["rank"] != 0 else [_library(), _python(), *_torch(), _nccl_here(), _kernels_here(), _numpy(), _variables()]
    return [*checks, *(Check(*line) for line in together.lines(launcher, found, SPEC))], found


def _python() -> Check:
    return Check("python", True, f"{platform.python_version()}, {sys.executable}")


def examine() -> tuple[list[Check], dict]:
    """Every check, and what the exchange gave."""
    torch, gloo = _torch()
    checks = [_library(), _python(), torch, gloo, _nccl_here(), _kernels_here(), _numpy(), _variables()]
    if not (torch.ok and gloo.ok):
        return [*checks, Check("exchange", False, "not tried")], {}
    found = exchange(TIMEOUT)
    return [*checks, _interface(found), _exchanged(found)], found


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m laconic.doctor", description="Is everything here that training with laconic needs? Tries it with two processes.")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        _rank(options.rank, options.folder, options.timeout)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # cleans up on its way, as after Ctrl-C
    try:
        launcher = together.started_by()
        checks, found = examine() if launcher is None else _examine_together(launcher)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    usable = all(check.ok is not False for check in checks)
    if found.get("rank") and "error" not in found:
        return 0 if usable else 1  # rank 0 prints
    if options.json:
        listed = [{"name": c.name, "ok": c.ok, "text": c.text, "mend": c.mend} for c in checks]
        print(json.dumps({"ok": usable, "checks": listed, "exchange": found}, indent=2))
    else:
        for check in checks:
            print(check.line())
        print(f"{'usable':<12} {'yes' if usable else 'no'}")
    return 0 if usable else 1


if __name__ == "__main__":
    sys.exit(main())
