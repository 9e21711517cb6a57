# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Which NCCL the C++ engine would open, and whether it could run: the library is asked, nothing is started."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

_SYSTEM = "libnccl.so.2"
_DRIVER = "libcuda.so.1"
_OLDEST = 2700  # 2.7, the first that sends messages


class Found(NamedTuple):
    library: str
    chosen: str  #: by what it was chosen
    version: str = ""  #: empty: there is none
    gpus: int = 0
    why_not: str = ""  #: why it cannot run; empty: it can


def library() -> tuple[str, str]:
    """Path or name, and by what it was chosen: the variable, the package that pip installed, the system."""
    named = os.environ.get("LACONIC_NCCL_LIB")
    if named:
        return named, "LACONIC_NCCL_LIB"
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for folder in spec.submodule_search_locations or () if spec else ():
            if (Path(folder) / "lib" / _SYSTEM).exists():
                return str(Path(folder) / "lib" / _SYSTEM), "installed by pip"
    return _SYSTEM, "the system's"


def find() -> Found:
    name, chosen = library()
    version, code = ctypes.c_int(), None
    try:
        code = ctypes.CDLL(name).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError) as error:
        return Found(name, chosen, why_not=str(error))
    if code != 0:
        return Found(name, chosen, why_not=f"ncclGetVersion of {name} failed: error {code}")
    unit = 1000 if version.value < 10000 else 10000
    text = f"{version.value // unit}.{version.value % unit // 100}.{version.value % 100}"
    if version.value < _OLDEST:
        return Found(name, chosen, text, why_not="the engine needs 2.7 or newer")
    return Found(name, chosen, text, *_gpus())


def _gpus() -> tuple[int, str]:
    """How many, or why none."""
    try:
        driver = ctypes.CDLL(_DRIVER)
        code = driver.cuInit(0)
        count = ctypes.c_int()
        if code == 0:
            code = driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError) as error:
        return 0, f"no NVIDIA driver: {error}"
    if code != 0:
        text = ctypes.c_char_p()
        known = driver.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value
        return 0, f"no GPU: {text.value.decode(errors='replace') if known else f'CUDA error {code}'}"
    return count.value, "" if count.value else "no GPU that this process can use"
