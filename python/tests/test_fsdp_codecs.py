# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Sharded training under every codec: means are those of an oracle that knows no FSDP, replicas are equal, overlap changes nothing."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

import sharding  # noqa: E402  skips below torch 2.13
import training  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402

WEEKLY = os.environ.get("TEST_TIER") == "weekly"
SPECS = training.SPECS + training.OTHER_SPECS


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4)
    yield ranks
    ranks.close()


def test_specs_name_every_codec():
    assert {spec.partition(":")[0].partition("+")[0] for spec in SPECS} == set(laconic.codecs())


# Every codec weekly; two fifths, stateless and with residuals, at every change.
@pytest.mark.parametrize("specs", [SPECS[i::5] for i in (range(5) if WEEKLY else (1, 4))], ids=lambda specs: specs[0])
def test_means_equal_oracle_overlapping_or_inline(four, specs):
    outcomes = four.run(sharding.both_ways, specs=specs)
    for spec in specs:
        found = [outcome[spec] for outcome in outcomes]
        for (overlapping, explained, stats), (inline, told, _), expected in found:
            assert overlapping == inline == expected, spec
            assert explained["overlap"]["overlapped"] > 0 == explained["overlap"]["inline"] and told["overlap"]["overlapped"] == 0
            assert stats["failures"] == 0 and stats["steps"] == 3
        assert found[0][0][0] == found[2][0][0] and found[1][0][0] == found[3][0][0], spec  # replicas
        assert found[0][0][0] != found[1][0][0]  # shards


@pytest.mark.parametrize("spec", ["3lc:s=1.75", "int8", "topk:ratio=0.05"])
def test_means_equal_loop_over_ranks(four, spec):
    expected = four.run(sharding.with_codecs, spec=spec)
    found = [digests for digests, _, _ in four.run(sharding.with_hook, spec=spec, strategy="gather_all")]
    assert found == expected


@pytest.mark.parametrize(("way", "shape"), [("1d", (2, 2)), ("2d", (4, 1)), ("replicate", (4, 1))])
def test_means_equal_oracle_on_every_mesh(four, way, shape):
    expected = four.run(sharding.with_session, spec="3lc", shape=shape) if way != "replicate" else None
    found = [digests for digests, _, _ in four.run(sharding.with_hook, spec="3lc", way=way, shape=shape)]
    if expected is not None:
        assert found == expected
    replicas = [found[0], found[2]] if shape == (2, 2) else found
    assert len(set(map(tuple, replicas))) == 1


def test_residuals_take_four_bytes_per_shard_element(four):
    for _, explained, stats in four.run(sharding.with_hook, spec="3lc", strategy="gather_all"):
        elements = sum(p["elements"] for p in explained["parameters"] if p["codec"] != "none")
        assert stats["residual_bytes"] == 4 * elements
        assert 0 < elements < sum(g["elements"] for g in explained["groups"])
