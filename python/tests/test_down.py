# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""attach(down=): means come down by another spec than contributions went up by."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import RankError  # noqa: E402

import laconic  # noqa: E402


def _explained(spec, **options):
    _, handle, _ = training.build(dist.group.WORLD, spec, attach_options=options)
    found = handle.explain(), handle.describe()
    handle.close()
    return found


def test_explain_and_start_line_name_down_spec(pools):
    for explained, line in pools(3).run(_explained, spec="3lc", down="int8"):
        assert (explained["spec"], explained["down"], explained["strategy"]) == ("3lc", "int8", "two_shot")
        assert {s["rule"]: s["down"] for s in explained["settings"]} == {"*": "int8"}
        assert "by two_shot, means are encoded by int8" in line
        for parameter in explained["parameters"]:
            packed = parameter["codec"] == "3lc"
            assert parameter["down"] == ("int8" if packed else None)
            assert not packed or parameter["mean_bytes_at_most"] > parameter["payload_bytes_at_most"]
    for explained, line in pools(3).run(_explained, spec="none", down="int8"):
        assert explained["parameters"][0]["codec"] == "none" and " on 0 of " not in line
    assert all(explained["down"] is None for explained, _ in pools(3).run(_explained, spec="3lc"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replicas_are_bit_identical(pools, dtype):
    given = dict(spec="topk:ratio=0.1", steps=6, dtype=dtype)
    results = pools(3).run(training.train, attach_options={"down": "int8"}, **given)
    assert len({r["hash"] for r in results}) == 1 and all(r["finite"] for r in results)
    same = pools(3).run(training.train, attach_options={"strategy": "two_shot"}, **given)
    assert same[0]["hash"] != results[0]["hash"]


def test_float32_both_ways_equals_two_shot_mean(pools):
    """float32 up and down: two_shot's sums, whatever they are called."""
    results = pools(2).run(_mean, down="none")
    assert results == pools(2).run(_mean, strategy="two_shot")


def _mean(**options):
    with laconic.Session("none", [("w", (64, 128))], engine="c10d", **options) as session:
        gradient = torch.arange(64 * 128, dtype=torch.float32) * (1 + session.rank)
        session.average(0, gradient)
        return gradient.double().sum().item()


REFUSED = [
    ({"down": "powersgd"}, "unsupported", "down=powersgd: owners send ranges of parameters, which this codec cannot encode"),
    ({"down": "thc"}, "unsupported", "down=thc: owners send means in one round, and this codec needs several"),
    ({"down": "int8", "strategy": "gather_all"}, "unsupported", "down=int8: strategy gather_all has no owners that send means"),
    ({"down": "int9"}, "unknown_codec", "down: "),
    ({"down": 8}, "invalid_argument", "down"),
]


def _refusal(options):
    try:
        training.build(dist.group.WORLD, "3lc", attach_options=options)
    except laconic.LaconicError as error:
        return error.name, str(error)
    return "", ""


@pytest.mark.parametrize(("options", "name", "says"), REFUSED)
def test_impossible_down_specs_give_one_message_on_every_rank(pools, options, name, says):
    outcomes = pools(2).run(_refusal, options=options)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == name and says in outcomes[0][1]


def _two_downs():
    training.build(dist.group.WORLD, "3lc", attach_options={"down": "int8" if dist.get_rank() == 0 else "fp16"})


def test_ranks_with_different_down_specs_are_reported(pools):
    with pytest.raises(RankError, match="rank 0 has '3lc with down=int8', rank 1 has '3lc with down=fp16'"):
        pools(2).run(_two_downs)
