# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`torchrun --nproc-per-node 4 -m laconic.run --spec "topk:ratio=0.01" train.py ARGS`: compression without a change of the script.

Attaches to every DistributedDataParallel model of the script, at its first forward pass that records gradients, and to those of
Python processes that the script starts. If the script registers its own communication hook, laconic.run does not attach to that model.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from .core._checks import U64
from .launch import automatic
from .launch._bootstrap import laconic_imports


def _whole(least: int):
    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= U64 >> 1:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least}")
        return int(text)

    return parse


def _threads(text: str):
    return text if text == "auto" else _whole(0)(text)


def _parse(arguments):
    parser = argparse.ArgumentParser(prog="python -m laconic.run", description="Runs a script, and attaches laconic to its models.")
    parser.add_argument("--spec", default=None, help='codec and options, e.g. "3lc:s=1.5" (else LACONIC_SPEC)')
    parser.add_argument("--seed", type=int, default=0, help="seed for all random streams")
    parser.add_argument("--strategy", default="auto", help="auto, native_sum, gather_all, two_shot or server_sum")
    parser.add_argument("--down", metavar="SPEC", default=None, help="codec of the means that owners send (else as --spec)")
    parser.add_argument("--small-elements", type=int, default=4096, help="parameters up to this size are sent uncompressed")
    parser.add_argument("--threads", type=_threads, default="auto", metavar="N",
                        help="for encoding and decoding: auto (1; with an accelerator the rank's share of the CPUs) or a number")
    parser.add_argument("--every", type=_whole(1), default=None, metavar="N",
                        help="exchange the changes of parameters after every N optimizer steps, in place of gradients: 1 for Adam (laconic.OuterStep)")
    parser.add_argument("--warmup-steps", type=_whole(0), default=0, metavar="K", help="the first K steps are sent uncompressed; with --every, each of them is a round")
    parser.add_argument("--nodes", metavar="WHICH", default=None,
                        help="two levels, the ranks of each host first: auto, on, off or the number of ranks of a host (else LACONIC_NODES, else auto)")
    parser.add_argument("--codecs", choices=("auto", "host", "device"), default="auto",
                        help="where codecs run for gradients on a GPU: auto (the host, until GPUs have been measured), host or device")
    parser.add_argument("--control", metavar="TEXT", default=None,
                        help="control policy that changes settings during training, such as dc2 (else LACONIC_CONTROL)")
    parser.add_argument("--record", metavar="FILE", default=None,
                        help="rank 0 records reports and decisions (else LACONIC_RECORD); see laconic replay")
    parser.add_argument("--rules", metavar="FILE", default=None, help="TOML: which parameters get another spec (else LACONIC_RULES)")
    parser.add_argument("--aggregator", metavar="HOST:PORT", default=None,
                        help="aggregation servers, separated by commas (else LACONIC_AGGREGATOR); see laconic serve")
    parser.add_argument("--token", metavar="FILE", default=None, help="the servers' secret (else LACONIC_TOKEN_FILE)")
    parser.add_argument("--quorum", type=float, default=1.0, metavar="Q",
                        help="share of the ranks that completes a sum after its deadline (1)")
    parser.add_argument("--deadline-ms", type=float, default=20.0, metavar="MS", help="milliseconds after which a quorum is enough (20)")
    parser.add_argument("--auth", choices=("header", "full"), default="header", help="what the tags of datagrams cover (header)")
    parser.add_argument("--multicast", action="store_true", help="receive each sum by multicast, from servers with --multicast")
    parser.add_argument("--state", metavar="DIR", default=None,
                        help="save every rank's residuals in DIR, and resume with those that match the model's parameters")
    parser.add_argument("--state-every", type=_whole(1), default=500, metavar="N",
                        help="steps between saved states: a divisor of the steps between the script's checkpoints (500)")
    parser.add_argument("--state-keep", type=_whole(2), default=3, metavar="K", help="number of states to keep, at least 2 (3)")
    parser.add_argument("--summary", action="store_true", help="print rank 0's counters at the end")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is a module name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.every is not None and options.aggregator is not None:
        parser.error("--aggregator sums gradients; leave it or --every out")
    if options.every is not None and options.nodes not in (None, "auto", "off"):
        parser.error("--nodes is for gradients; leave it or --every out")
    if options.every is not None and options.codecs == "device":
        parser.error("--codecs device is for gradients; leave it or --every out")
    if options.every is not None and options.state is not None and options.state_every % options.every:
        parser.error(f"--state-every {options.state_every} is not a multiple of --every {options.every}: ranks have the same parameters after a round only")
    return options


def _listen_for_torch() -> None:
    """In this process and in the Python processes that it starts."""
    here = os.path.dirname(os.path.abspath(laconic_imports.__file__))
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *(folder for folder in folders if folder != here)])
    laconic_imports.install()


def main(arguments=None) -> None:
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    automatic.start(options)  # under LACONIC_DISABLE=1 too: attach then tells the ranks without it
    _listen_for_torch()
    sys.argv = [options.script, *options.arguments]
    ended = "failed"
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(options.script))
            runpy.run_path(options.script, run_name="__main__")
        ended = "returned"
    except SystemExit:
        ended = "left"
        raise
    finally:
        automatic.finish(ended)


if __name__ == "__main__":
    main()
