# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Zero lines: `torchrun --nproc-per-node 4 -m laconic.run --spec "topk:ratio=0.01" train.py ARGS`.

Attaches to every DistributedDataParallel model of the script, at its first forward pass that records gradients. The class
stays what it is; only its constructor is wrapped. A hook that the script registers itself wins: laconic stands aside.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import runpy
import sys

from . import environment


def _parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m laconic.run", description=__doc__.splitlines()[0])
    parser.add_argument("--spec", default=None, help='codec and options, e.g. "3lc:s=1.5" (else LACONIC_SPEC)')
    parser.add_argument("--seed", type=int, default=0, help="of all random streams")
    parser.add_argument("--strategy", default="auto", help="auto, native_sum, gather_all or two_shot")
    parser.add_argument("--small-elements", type=int, default=4096, help="parameters up to this size go uncompressed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--summary", action="store_true", help="print counters of rank 0 at the end")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def install(options, handles: list) -> None:
    """Wraps DistributedDataParallel.__init__: registration happens at the wrapper's first forward."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    from .ddp import other_hook

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def construct(self, *args, **kwargs):
        original(self, *args, **kwargs)

        def first_forward(module, _inputs):
            if not torch.is_grad_enabled():  # an evaluation, perhaps on one rank only: attaching takes all of them
                return
            removal.remove()
            hook = other_hook(module)
            if hook is None:
                handles.append(laconic.attach(module, options.spec, seed=options.seed, strategy=options.strategy,
                                              small_elements=options.small_elements, threads=options.threads))
            elif torch.distributed.get_rank() == 0 and not environment.disabled():
                environment.say(f"the script has a communication hook of its own ({hook}); standing aside",
                                logging.WARNING)

        removal = self.register_forward_pre_hook(first_forward)

    DistributedDataParallel.__init__ = construct


def main(arguments=None) -> None:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    handles: list = []
    install(options, handles)  # under LACONIC_DISABLE=1 too: attach then tells the ranks where it is not set
    sys.argv = [options.script, *options.arguments]
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(options.script))
            runpy.run_path(options.script, run_name="__main__")
    finally:
        if options.summary and handles and handles[0].explain().get("rank") == 0:
            stats = handles[0].stats()
            print(f"laconic: {stats['steps']} steps, {stats['wire_bytes']} bytes sent, {stats['ratio']:.1f}:1 against a "
                  f"float32 ring, encode {stats['encode_seconds']:.2f} s, wire {stats['wire_seconds']:.2f} s, "
                  f"decode {stats['decode_seconds']:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
