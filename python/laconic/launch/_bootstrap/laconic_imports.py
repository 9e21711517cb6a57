# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Calls laconic.launch.automatic when a module of torch has been executed, at no cost if torch is never imported.

Read at the start of every process under laconic.run: nothing here may import more than the interpreter has loaded by then.
"""

import os
import sys

#: what laconic.launch.automatic wants to see; not every torch has every one
WATCHED = (
    "torch.distributed.distributed_c10d",
    "torch.nn.parallel.distributed",
    "torch.optim.optimizer",
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.fsdp._fully_shard._fsdp_state",
    "torch.distributed._composable.fsdp._fsdp_state",
)

#: the folder that holds the package
_PLACE = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


class Watcher:
    """A finder that finds nothing by itself: it lets the others look, and listens in."""

    watches_for_laconic = True

    def find_spec(self, name, path=None, target=None):
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    _listen(spec.loader, name)
                return spec
        return None


def _listen(loader, name):
    """The loader keeps its type, which others look at; some loaders serve several modules."""
    execute = loader.exec_module

    def exec_module(module):
        execute(module)
        if module.__name__ == name:
            loader.exec_module = execute
            tell(module)

    loader.exec_module = exec_module


def tell(module):
    """A failure is said and not raised: it must not be in the way of `import torch`. The other ranks will miss this one."""
    try:
        sys.path.append(_PLACE)  # the interpreter of a process that the script starts may not know it
        try:
            from laconic.launch import automatic
        finally:
            sys.path.remove(_PLACE)
        automatic.imported(module)
    except Exception as error:  # noqa: BLE001
        sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_ours(finder)]  # once is enough
        complain(error)


def _is_ours(finder):
    """There may be two copies of this module in a process."""
    return getattr(finder, "watches_for_laconic", False)


def complain(error):
    if sys.stderr is not None:
        print(f"laconic: nothing will be compressed in process {os.getpid()}: {type(error).__name__}: {error}", file=sys.stderr)


def install():
    """Once per process. Modules that are already imported are reported at once."""
    if any(_is_ours(finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Watcher())
    for name in WATCHED:
        if name in sys.modules:
            tell(sys.modules[name])
