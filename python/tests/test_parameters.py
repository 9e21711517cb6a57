# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Parameters that no codec takes go the group's own way, as under plain DDP; a model with nothing to compress, too."""

from __future__ import annotations

import contextlib
import io

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402


class Mixed(torch.nn.Module):
    """A sparse embedding, float64 and complex weights, and an ordinary layer."""

    def __init__(self, kinds):
        super().__init__()
        self.kinds = kinds
        self.plain = torch.nn.Linear(24, 80)
        if "sparse" in kinds:
            self.table = torch.nn.Embedding(50, 24, sparse=True)
        if "bag" in kinds:
            self.bag = torch.nn.EmbeddingBag(50, 24, sparse=True)
        if "double" in kinds:
            self.wide = torch.nn.Linear(80, 20).double()
        if "complex" in kinds:
            self.phase = torch.nn.Parameter(torch.randn(80, 20, dtype=torch.complex64))

    def forward(self, x, rows):
        if "sparse" in self.kinds:
            x = x + self.table(rows)
        if "bag" in self.kinds:
            x = x + self.bag(rows[:, None])
        h = torch.relu(self.plain(x))
        out = h.sum()
        if "double" in self.kinds:
            out = out + self.wide(h.double()).square().mean()
        if "complex" in self.kinds:
            out = out + (h.to(torch.complex64) @ self.phase).abs().square().mean()
        return out


def _train(kinds, spec, steps=4, **options):
    """Parameters after training, the handle's words, and what was said at attach."""
    rank, heard = dist.get_rank(), io.StringIO()
    torch.manual_seed(3)
    ddp = DistributedDataParallel(Mixed(kinds))
    handle = None
    if spec is not None:
        with contextlib.redirect_stderr(heard):
            handle = laconic.attach(ddp, spec, small_elements=64, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.randn(6, 24, generator=generator), torch.randint(0, 50, (6,), generator=generator)).backward()
        optimizer.step()
    values = {name: p.detach().clone() for name, p in ddp.module.named_parameters()}
    if handle is None:
        return values, None, None, None
    said = values, handle.stats(), handle.explain(), heard.getvalue()
    state = handle.state_dict()
    handle.load_state_dict(state)  # names only what it holds
    handle.close()
    return said


KINDS = [["sparse"], ["bag"], ["double"], ["complex"], ["sparse", "double", "complex"]]
FOREIGN = {"sparse": ("table.weight", "sparse gradients"), "bag": ("bag.weight", "sparse gradients"), "double": ("wide.weight", "float64"),
           "complex": ("phase", "complex64")}


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
def test_unsupported_parameters_use_plain_all_reduce(pools, kinds):
    plain = pools(2).run(_plain, kinds=kinds)
    if isinstance(plain[0], str):
        pytest.skip(f"this PyTorch does not train such a model: {plain[0]}")
    for (expected, *_), (got, stats, _, _) in zip(plain, pools(2).run(_train, kinds=kinds, spec="none")):
        assert all(torch.equal(expected[name], got[name]) for name in expected)  # bit for bit
        assert stats["ratio"] == 1
    for values, stats, explained, said in pools(2).run(_train, kinds=kinds, spec="topk:ratio=0.05"):
        assert not torch.equal(values["plain.weight"], plain[0][0]["plain.weight"])  # which is compressed
        entries = {p["name"]: p for p in explained["parameters"]}
        for kind in kinds:
            name, reason = FOREIGN[kind]
            assert entries[name]["codec"] == "none" and entries[name]["reason"] == f"no codec supports {reason}"
            assert not said or f"{name} ({reason})" in said
        assert stats["steps"] == 4 and stats["failures"] == 0


def _plain(kinds):
    try:
        return _train(kinds, None)
    except RuntimeError as error:
        return str(error).splitlines()[0]


def test_start_line_names_plain_parameters_on_rank_0_only(pools):
    said = [outcome[3] for outcome in pools(2).run(_train, kinds=["double", "sparse"], spec="topk")]
    assert "wide.weight (float64)" in said[0] and said[0].count("\n") == 1 and said[1] == ""


def test_replicas_stay_equal_despite_plain_parameters(pools):
    outcomes = pools(3).run(_train, kinds=["double"], spec="3lc")
    for values, *_ in outcomes[1:]:
        assert all(torch.equal(values[name], p) for name, p in outcomes[0][0].items())


def _after_a_failure():
    """The engine fails in the first step: what the next one says, and what it asks of the group."""
    ddp = DistributedDataParallel(Mixed(["double"]))
    handle = laconic.attach(ddp, "topk:ratio=0.05", small_elements=64, quiet=True)

    class Counting:
        calls = 0

        def allreduce(self, buffers):
            Counting.calls += 1
            raise RuntimeError("the test ends the network")

    said = []
    handle.worker.exchanges.broken = laconic.LaconicError(62, "engine_failed", "the engine failed before")
    handle.hook.sums.group = Counting()
    try:
        ddp(torch.randn(6, 24), torch.zeros(6, dtype=torch.long)).backward()
    except RuntimeError as error:
        said.append(str(error))
    return said, Counting.calls


def test_failure_stops_plain_parameters_too(pools):
    for said, calls in pools(2).run(_after_a_failure):
        assert len(said) == 1 and "the engine failed before" in said[0] and calls == 0


def _on_another_device():
    class Moved(torch.nn.Parameter):
        """Says that it lies elsewhere; no second device is needed for that."""

        device = torch.device("meta")

    ddp = DistributedDataParallel(torch.nn.Linear(80, 80))
    ddp.module.weight.__class__ = Moved
    try:
        laconic.attach(ddp, "3lc")
    except laconic.LaconicError as error:
        return error.name, error.message


def test_parameters_on_another_device_are_named(pools):
    for name, message in pools(2).run(_on_another_device):
        assert name == "unsupported" and message.startswith("parameter weight is on meta")


# ---- nothing to compress ----

def _small(spec, **options):
    rank, heard = dist.get_rank(), io.StringIO()
    torch.manual_seed(3)
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4)))
    with contextlib.redirect_stderr(heard):
        handle = laconic.attach(ddp, spec, **options) if spec else None
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.randn(5, 20, generator=generator)).square().mean().backward()
    grads = [p.grad.clone() for p in ddp.parameters()]
    return grads, handle.stats() if handle else None, heard.getvalue()


@pytest.mark.parametrize("strategy", ["auto", "gather_all", "two_shot"])
def test_model_of_small_tensors_sends_what_plain_ddp_sends(pools, strategy):
    plain = pools(4).run(_small, spec=None)
    for (expected, _, _), (got, stats, said) in zip(plain, pools(4).run(_small, spec="topk:ratio=0.01", strategy=strategy)):
        assert all(map(torch.equal, expected, got))
        assert stats["wire_bytes"] == stats["dense_bytes"] > 0 and stats["exchanges"] == 0
        assert not said or ("nothing to compress in 4 tensors (none has more than 4096 elements): PyTorch's own all-reduce" in said
                            and "ratio" not in said)


def _sends_more(steps):
    """topk with half of the elements: eight bytes for each, to everybody."""
    heard = io.StringIO()
    ddp = DistributedDataParallel(torch.nn.Linear(80, 80))
    handle = laconic.attach(ddp, "topk:ratio=0.9", strategy="gather_all", quiet=True)
    with contextlib.redirect_stderr(heard):
        for _ in range(steps):
            ddp(torch.randn(2, 80)).square().mean().backward()
        handle.worker.commands.between_jobs(lambda: None)  # the check comes after the jobs
    return handle.stats()["ratio"], heard.getvalue()


def test_ratio_below_one_warns_once_on_rank_0(pools):
    outcomes = pools(3).run(_sends_more, steps=25)
    assert all(ratio < 0.9 for ratio, _ in outcomes)
    lines = outcomes[0][1].splitlines()
    assert len(lines) == 1 and "more is sent than PyTorch's own all-reduce would send" in lines[0]
    assert [said for _, said in outcomes[1:]] == ["", ""]


def _perceptron_bytes(specs):
    """Bytes that a rank sends in a step of the demo's perceptron, by spec and options; lengths are known after the
    first one."""
    found = []
    for spec, options in specs:
        torch.manual_seed(3)
        layers = [torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)]
        ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
        handle = laconic.attach(ddp, spec, quiet=True, **options)
        sent = []
        for _ in range(3):
            ddp(torch.randn(8, 64)).square().mean().backward()
            sent.append(handle.stats()["wire_bytes"])
        found.append(sent[2] - sent[1])
        handle.close()
    return found


def test_small_ratios_without_ballast_send_a_third(pools):
    whole = "topk:ratio=0.001", {}
    narrow = "topk:ratio=0.001,values=bf16", {"small_elements": 512}
    for usual, small in pools(2).run(_perceptron_bytes, specs=[whole, narrow]):
        kept = 65, 1048, 10  # of 64, 1024 and 10 times 1024, in 16, 20 and 14 bits each
        indices = sum(-(-count * width // 8) for count, width in zip(kept, (16, 20, 14)))
        headers = usual - (indices + 4 * sum(kept) + 4 * (1024 + 1024 + 10))
        assert 0 < headers < 200
        # Two biases more, with an element each of ten bits.
        assert 0 < small - (indices + 2 * sum(kept) + 2 * (2 + 2) + 4 * 10) < 200
        assert 0.31 < small / usual < 0.35


# ---- padding rows, whose gradients are zero ----


def _padded(spec, padding_idx=0, rules=None):
    """The line at attach."""
    net, heard = torch.nn.Sequential(torch.nn.Embedding(50, 24, padding_idx=padding_idx), torch.nn.Linear(24, 80)), io.StringIO()
    net.small = torch.nn.Embedding(4, 4, padding_idx=1)
    with contextlib.redirect_stderr(heard):
        laconic.attach(DistributedDataParallel(net), spec, small_elements=64, rules=rules).close()
    return [line.removeprefix("laconic: ") for line in heard.getvalue().splitlines()][1:]


def test_padding_rows_that_move_are_reported_on_rank_0(pools):
    said = ["zeros do not stay zero, so padding rows change: 0.weight (signsgd); use rules to give them another spec"]
    assert pools(2).run(_padded, spec="signsgd") == [said, []]
    assert pools(2).run(_padded, spec="onebit+noef")[0] == [said[0].replace("signsgd", "onebit+noef")]
    for quiet in ({"spec": "topk:ratio=0.1"}, {"spec": "signsgd", "padding_idx": None},
                  {"spec": "signsgd", "rules": [{"match": "0.*", "spec": "topk:ratio=0.1"}]}):
        assert pools(2).run(_padded, **quiet) == [[], []], quiet
