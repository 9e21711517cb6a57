# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Sharded training under `none` is native HSDP bit for bit: meshes, layouts, accumulation, types."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import sharding  # noqa: E402  skips below torch 2.13
from ranks import Ranks  # noqa: E402


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4)
    yield ranks
    ranks.close()


EQUAL = {
    "2 replicas of 2 shards": {},
    "4 replicas of 1 shard": {"shape": (4, 1)},
    "1 replica of 4 shards": {"shape": (1, 4)},
    "a 1-D mesh": {"way": "1d"},
    "named dimensions of a mesh": {"way": "dims", "kind": "Square"},
    "replicate()": {"way": "replicate", "shape": (4, 1), "unused": True},
    "two groups in a module": {"kind": "Experts"},
    "the second dimension": {"kind": "Square", "placement": True},
    "not resharded": {"reshard": False},
    "activation checkpointing": {"checkpoint": True},
    "clipping": {"how": "clipped"},
    "accumulation without synchronization": {"how": "without_sync"},
    "accumulation without all-reduce": {"how": "without_all_reduce"},
    "gradients that are added": {"how": "added"},
    "a module that is skipped": {"how": "seldom", "unused": True, "steps": 4},
    "bf16 sums": {"policy": {"reduce_dtype": "bfloat16"}},
    "fp16 sums": {"policy": {"reduce_dtype": "float16"}},
    "bf16 computation": {"policy": {"param_dtype": "bfloat16"}},
    "a bf16 model": {"dtype": "bfloat16"},
    "an offloaded model": {"offload": True},
    "an optimizer inside of backward": {"inside": True},
    "an optimizer inside of backward, and accumulation": {"inside": True, "how": "without_all_reduce"},
    "a divide factor": {"factor": 1.0},
    "a group that float64 keeps from every codec": {"dtype": "float64"},
}


@pytest.mark.parametrize("case", EQUAL)
def test_none_equals_native_bit_for_bit(four, case):
    native = four.run(sharding.train, spec=None, **{**EQUAL[case], **({"way": "2d"} if case == "a 1-D mesh" else {})})
    ours = four.run(sharding.train, spec="none", **{**EQUAL[case], "unused": False})
    for (expected, _, _), (found, explained, stats) in zip(native, ours):
        assert found == expected
        assert stats["steps"] == (2 if EQUAL[case].get("how") == "added" else 1) * EQUAL[case].get("steps", 3)
        assert stats["failures"] == 0
        assert len(explained["groups"]) == {"Experts": 2, "Square": 2}.get(EQUAL[case].get("kind"), 3 if case == "replicate()" else 5)
    assert len({found[-1] for found, _, _ in ours}) <= 4


def test_overflowing_loss_scale_skips_step_as_natively(four):
    for spec in ("none", "3lc"):
        outcomes = four.run(sharding.scaled, spec=spec)
        assert len({str(outcome["scales"]) for outcome in outcomes}) == 1 and outcomes[0]["scales"] == [2.0**120, 2.0**119, 2.0**119]
        assert all(outcome["skipped"] == [True, False, False] for outcome in outcomes)
        assert outcomes[0]["digest"] == outcomes[2]["digest"] != outcomes[1]["digest"] == outcomes[3]["digest"]
        if spec == "none":
            assert outcomes == four.run(sharding.scaled, spec=None)
