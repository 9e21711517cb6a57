# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Files of one rank's saved state: written whole or not at all. torch is imported for its own format only."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .state import corrupt

PARTIAL = ".partial"


def save(path: Path, content: dict) -> None:
    """Writes tensors and plain values to `path`, as `write` does."""
    import torch

    write(path, lambda file: torch.save(content, file))


def write(path: Path, fill) -> None:
    """Makes `path` and its folder; `fill` writes to the open file. After a crash the file is there whole or not at all.

    OSError where the disk refuses.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL)
    try:
        with open(partial, "wb") as file:
            writer = _Writer(file)
            fill(writer)
            if writer.error is not None:
                raise writer.error
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except RuntimeError as error:  # torch's writer hides what the system said
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    with contextlib.suppress(OSError):  # a folder that cannot be opened for this
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Writer:
    """Keeps the first failure for later: out of `write` it it may end the process."""

    def __init__(self, file):
        self._file = file
        self.error: OSError | None = None

    def write(self, data) -> int:
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        pass


def load(path: Path) -> dict:
    """Loads what `save` wrote. Raises LaconicError (state_corrupt) if the file is damaged, OSError if it cannot be read."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  torch raises whatever its unpickler met
        raise corrupt(f"{path}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
    if not isinstance(content, dict):
        raise corrupt(f"{path} holds a {type(content).__name__}, not a dict")
    return content
