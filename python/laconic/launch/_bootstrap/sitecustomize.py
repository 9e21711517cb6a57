# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python process of a script under laconic.run: PYTHONPATH contains this folder.

Removes this folder from sys.path, waits for the import of torch, and runs the sitecustomize that Python would have found without it.
"""

import os
import sys


def _listen_for_torch():
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        if os.environ.get("LACONIC_RUN"):
            sys.path.insert(0, here)
            import laconic_imports

            laconic_imports.install()
    except Exception as error:  # noqa: BLE001  an interpreter has to start, whatever is wrong with us
        if sys.stderr is not None:
            what = f"{type(error).__name__}: {error}"
            print(f"laconic: nothing will be compressed in process {os.getpid()}: {what}", file=sys.stderr)
    finally:
        sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]


def _hand_on():
    """Python reports whatever the next one raises."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_listen_for_torch()
_hand_on()
