# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Engines of C++ in libraries of their own, include/laconic/plugin.h through ctypes. No torch in here."""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import sys
import weakref
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_int32, c_uint32, c_uint64, c_void_p
from pathlib import Path

from ..core import _lib, environment, errors
from ..core.errors import LaconicError

VERSION = 1
MPI_LIBRARY, GLOO_LIBRARY = "LACONIC_MPI_LIB", "LACONIC_GLOO_LIB"
_ROOM = 1024  # bytes of a message
_OPENMPI, _MPICH, _GLOO = "liblaconic_mpi_openmpi.so", "liblaconic_mpi_mpich.so", "liblaconic_gloo.so"
#: what each stands on, the packages that bring this, and the variable that names another one
_PLUGINS = {_OPENMPI: ("Open MPI", "libopenmpi-dev openmpi-bin", MPI_LIBRARY),
            _MPICH: ("MPICH", "libmpich-dev mpich", MPI_LIBRARY),
            _GLOO: ("Gloo", "libgloo-dev", GLOO_LIBRARY)}
#: of each MPI in environment.LAUNCHERS
_OF_MPI = {"openmpi": _OPENMPI, "mpich": _MPICH}


class _Options(_lib._Sized):  # noqa: SLF001
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("timeout", c_double), ("rank", c_uint32),
                ("world", c_uint32), ("rendezvous", c_char_p), ("interface_", c_char_p)]


class _Info(_lib._Sized):  # noqa: SLF001
    _fields_ = [("struct_size", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("sums", c_uint32),
                ("short_sends", c_uint32), ("reserved", c_uint32)]


class Table(ctypes.Structure):
    """laconic_plugin."""

    _fields_ = [("struct_size", c_uint32), ("version", c_uint32), ("engine", c_char_p), ("library", c_char_p),
                ("open", CFUNCTYPE(c_int32, POINTER(_Options), POINTER(c_void_p), c_void_p, c_uint64)),
                ("close", CFUNCTYPE(None, c_void_p)),
                ("describe", CFUNCTYPE(c_int32, c_void_p, POINTER(_Info))),
                ("start", CFUNCTYPE(c_int32, c_void_p, POINTER(_lib.Step), c_uint32, c_uint32, POINTER(c_uint64), c_void_p,
                                    c_uint64)),
                ("wait", CFUNCTYPE(c_int32, c_void_p, c_uint64, c_double, c_void_p, c_uint64))]


# ---- finding and loading ------------------------------------------------------------------------------------------------------


def _folders() -> list[Path]:
    """Folders of plug-ins: next to the library."""
    path = Path(_lib.lib.path).absolute()
    return list(dict.fromkeys([path.parent, path.resolve().parent]))


def _beside(file: str) -> Path | None:
    return next((folder / file for folder in _folders() if (folder / file).exists()), None)


def _need(file: str, what: str) -> str:
    found = _beside(file)
    if found is not None:
        return str(found)
    library, packages, variable = _PLUGINS[file]
    if Path(__file__).resolve().parents[1] / "lib" in _folders():
        hint = f"this wheel was built without {library}: apt install {packages} and build laconic from its source again"
    else:
        hint = f"apt install {packages} && scripts/build release {file.removeprefix('lib').removesuffix('.so')}"
    raise errors.error("unsupported", f"{what} was not found: there is no {file} in {' or '.join(map(str, _folders()))}",
                       f"{hint}, or set {variable} to a plug-in")


def _named(variable: str) -> str:
    """The plug-in that a variable names; "": none."""
    path = os.environ.get(variable, "")
    if "/" in path and not Path(path).exists():
        raise errors.error("unsupported", f"{variable} is {path}, which does not exist", f"unset {variable}, or correct it")
    return path


def mpi_path() -> str:
    """The plug-in of the MPI whose launcher has started this process: the others would make it a world of its own."""
    named = _named(MPI_LIBRARY)
    if named:
        return named
    launcher = environment.launcher(of_mpi=True)
    if launcher is not None:
        files = [_OF_MPI[mpi] for mpi in launcher.mpi]  # srun does not tell which it is: the one that is here
        file = next(filter(_beside, files), files[0])
        whose = f"{_PLUGINS[file][0]}, whose launcher started this process," if len(files) == 1 else f"MPI under {launcher.name}"
        return _need(file, f"the plug-in for {whose}")
    found = [str(path) for path in map(_beside, _OF_MPI.values()) if path is not None]  # one process
    if not found:
        return _need(_OPENMPI, "the plug-in for MPI")
    return next(filter(_has_its_library, found), found[0])


def gloo_path() -> str:
    return _named(GLOO_LIBRARY) or _need(_GLOO, "the plug-in for Gloo")


def _is_cut_off(path: str) -> bool:
    """The dynamic loader maps what is not there, and the process dies of it."""
    try:
        file = Path(path).read_bytes()
    except OSError:
        return False  # the loader says why
    if not file.startswith(b"\x7fELF"):
        return False  # as above
    try:
        (at,), (each, count) = struct.unpack_from("<Q", file, 32), struct.unpack_from("<HH", file, 54)
        segments = [struct.unpack_from("<Q16xQ", file, at + each * i + 8) for i in range(count)]  # place, bytes
    except struct.error:
        return True
    return any(place + size > len(file) for place, size in segments)


def _cannot_open(path: str, why: str) -> LaconicError:
    """From the dynamic loader's words, "FILE: WHY". What it has searched for and not found has no folder."""
    lacking = why.partition(": ")[0]
    if "/" in lacking or "/" not in path:
        return errors.error("engine_failed", why, "build or install the plug-in, or set another path")
    library, packages, _ = _PLUGINS.get(Path(path).name, (lacking, "the package that provides it", ""))
    return errors.error("unsupported", f"{library} was not found: {path} needs {why}",
                        f"apt install {packages}, or add the folder of {lacking} to LD_LIBRARY_PATH")


def _has_its_library(path: str) -> bool:
    try:
        load(path)
    except LaconicError as error:
        return error.name != "unsupported"
    return True


def load(path: str) -> Table:
    """The table of a plug-in that this package understands; it stays open until the process ends. A path with a slash is that
    file, a name is searched for as the dynamic loader does."""
    again = "build it from the same release of laconic"
    if "/" in path and _is_cut_off(path):
        raise errors.error("engine_failed", f"{path} is truncated", "install the plug-in again")
    try:
        library = ctypes.CDLL(path)
        entry = library.laconic_plugin_v1
    except OSError as error:
        raise _cannot_open(path, str(error)) from None
    except AttributeError:
        raise errors.error("engine_failed", f"{path} is not a plug-in for this version: it has no laconic_plugin_v1", again) from None
    entry.restype, entry.argtypes = POINTER(Table), []
    given = entry()
    why = None
    if not given:
        why = "it returns no table"
    elif given.contents.version != VERSION:
        why = f"it has version {given.contents.version}, expected {VERSION}"
    elif given.contents.struct_size < ctypes.sizeof(Table):
        why = "its table is incomplete"
    if why is not None:
        raise errors.error("engine_failed", f"{path} is not a plug-in for this version: {why}", again)
    return given.contents


# ---- an engine -----------------------------------------------------------------------------------------------------------------


class Batch:
    """Steps on their way. They are kept until they have been waited for."""

    __slots__ = ("steps", "ticket")

    def __init__(self, steps, count: int):
        self.steps = (_lib.Step * max(count, 1))()
        ctypes.memmove(self.steps, steps, count * ctypes.sizeof(_lib.Step))
        self.ticket = c_uint64()


class PluginEngine:
    """A plug-in's engine. After the first failure it is of no use any more: later calls give the same one."""

    of_cpp = True  #: other ranks may be laconic::Session's
    lasting = taken = False  #: see open_mpi

    def __init__(self, path: str, *, timeout: float, rank: int = 0, world: int = 0, rendezvous: str | None = None,
                 interface: str | None = None):
        self.path, self.timeout = path, timeout
        self._table = load(path)
        self.name, self.library = self._table.engine.decode(), self._table.library.decode()
        self._message = ctypes.create_string_buffer(_ROOM)
        self.failure: LaconicError | None = None
        options = _Options(timeout=timeout, rank=rank, world=world, rendezvous=rendezvous and rendezvous.encode(),
                           interface_=interface and interface.encode())
        self._handle = c_void_p()
        self._check(self._table.open(ctypes.byref(options), ctypes.byref(self._handle), self._message, _ROOM))
        self._close = weakref.finalize(self, self._table.close, self._handle)
        self._close.atexit = False  # see _end
        info = _Info()
        self._check(self._table.describe(self._handle, ctypes.byref(info)))
        self.rank, self.world = info.rank, info.world
        self.sums, self.short_sends = info.sums, bool(info.short_sends)
        _engines.add(self)

    def _check(self, code: int) -> None:
        if code == 0:
            return
        error = LaconicError(code, _lib.error_name(code), self._message.value.decode(errors="replace") or
                             f"{self.path}: {_lib.error_name(code)}", "restart the job from the last checkpoint")
        self.failure = self.failure or error
        abandon()
        raise error

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self._close.alive:
            raise errors.error("engine_failed", f"{self.name}: the engine is closed", "create another session")

    def probe_sums(self) -> int:
        return self.sums

    def start(self, steps, count: int) -> Batch:
        """Issues a batch."""
        self._check_usable()
        batch = Batch(steps, count)
        self._check(self._table.start(self._handle, batch.steps, ctypes.sizeof(_lib.Step), count, ctypes.byref(batch.ticket),
                                      self._message, _ROOM))
        return batch

    def wait(self, batch: Batch) -> None:
        """Returns when all of a batch has arrived."""
        self._check_usable()
        code = self._table.wait(self._handle, batch.ticket, self.timeout, self._message, _ROOM)
        if code != 0:
            keep_for_good(batch)
        self._check(code)

    def settle(self, batch: Batch) -> None:
        """As wait, ignoring failures; after a failure. It may return while memory is still in use."""
        if self._close.alive:
            self._table.wait(self._handle, batch.ticket, self.timeout if self.failure is None else 0.0, None, 0)

    def glance(self) -> None:
        """For who waits for something else: raises if the engine has failed."""
        self._check_usable()

    def fail(self, batch: Batch | None, error: BaseException) -> None:
        """Something outside the engine failed: raises it. This process will not synchronize with the others at its end."""
        if batch is not None:
            self.settle(batch)
        abandon()
        raise error

    def gather_bytes(self, data: bytes) -> bytes:
        """Every rank's `data` (equal lengths), in rank order."""
        counts = c_uint64 * self.world
        sizes, own = counts(*[len(data)] * self.world), ctypes.create_string_buffer(data, len(data))
        out = ctypes.create_string_buffer(len(data) * self.world)
        step = _lib.Step(kind=_lib.ALL_GATHER, dtype=_lib.U8, send=ctypes.addressof(own), recv=ctypes.addressof(out),
                         send_counts=sizes, send_offsets=counts(), recv_counts=sizes,
                         recv_offsets=counts(*[len(data) * rank for rank in range(self.world)]), send_bytes=len(data),
                         recv_bytes=len(out))
        try:
            self.wait(self.start((_lib.Step * 1)(step), 1))
        except LaconicError:
            keep_for_good(step, own, out)
            raise
        return out.raw

    def close(self) -> None:
        """After a failure, too. No batch may be on its way otherwise."""
        self.taken = False
        if self.lasting:
            return
        if self._close.detach() is not None:  # a finalizer does nothing when weakref's own end comes before ours
            self._table.close(self._handle)


_kept: list = []


def keep_for_good(*memory) -> None:
    """Keeps the memory into which a failed engine may still write."""
    _kept.extend(memory)


# ---- the end of the process ----------------------------------------------------------------------------------------------------

_engines: weakref.WeakSet[PluginEngine] = weakref.WeakSet()
_first_of_mpi: dict[str, PluginEngine] = {}
_abandoned = False


def open_mpi(*, timeout: float) -> PluginEngine:
    """An engine over all processes of the job. MPI is initialised once per process and finalised by the engine that initialised it:
    that one is kept until the process ends, so that several sessions can follow each other. They use it in turn; a second session
    at the same time has its own engine."""
    path = mpi_path()
    engine = _first_of_mpi.get(path)
    if engine is None:
        engine = _first_of_mpi[path] = PluginEngine(path, timeout=timeout)
    elif engine.taken or engine.failure is not None:
        return PluginEngine(path, timeout=timeout)
    engine.timeout, engine.lasting, engine.taken = timeout, True, True
    return engine


def abandon() -> None:
    """This process will not meet the others at the end. Without that, and without MPI_Finalize, the launcher ends the job when
    this process ends, so that no rank waits for one that has gone."""
    global _abandoned  # noqa: PLW0603
    _abandoned = True


@atexit.register
def _end() -> None:
    if _abandoned or hasattr(sys, "last_value"):  # an uncaught exception
        return
    for engine in list(_engines):
        if engine not in _first_of_mpi.values():
            engine.close()
    for engine in _first_of_mpi.values():
        engine.lasting = False
        engine.close()
