# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Aggregation servers over real UDP, on a slow network that loses packets: four hosts, servers in the switch. One lab goes
through all scenarios (scenarios.py); each test looks at what one of them found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import in_lab  # noqa: E402


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    if missing := in_lab.why_not():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("aggregation")
    lab = in_lab.run(folder, 280, "scenarios.py", folder / "found", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert lab.returncode == 0, lab.stdout
    return json.loads((folder / "found").read_text())


def of(found, name):
    assert "found" in found[name], found[name]["trouble"]
    return found[name]["found"]


def expect_done(ranks, steps=5):
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert rank["strategy_is_server_sum"] and len(rank["all"]) == steps
        assert rank["all"] == ranks[0]["all"]  # replicas stay equal, bit for bit


def expect_bits(found, ranks, job=0):
    """The compressed parameters' means are those of the group's own integer sums."""
    expect_done(ranks)
    by_the_group = of(found, "by_the_group")[job]
    assert [rank["compressed"] for rank in ranks] == [rank["compressed"] for rank in by_the_group]


def test_references_differ_and_match_their_groups(found):
    first, second = of(found, "by_the_group")
    assert not first[0]["strategy_is_server_sum"] and len(set(first[0]["all"])) == 5
    assert first[0]["compressed"] != second[0]["compressed"]


def test_means_match_without_loss(found):
    expect_bits(found, of(found, "lossless"))


@pytest.mark.parametrize("scenario", ["one_percent", "five_percent", "loss_in_the_first_window"])
def test_loss_changes_no_bit(found, scenario):
    ranks = of(found, scenario)
    expect_bits(found, ranks)
    assert sum(rank["resent_datagrams"] for rank in ranks) > 0


def test_multicast_changes_no_bit_and_leaves_server_once(found):
    scenario = of(found, "multicast")
    ranks, sent = scenario["ranks"], scenario["sent"]
    for one in ranks.values():
        expect_bits(found, one)
    assert all(rank["multicast_datagrams"] == rank["multicast_servers"] == 0 for rank in ranks["unicast"])
    assert all(rank["multicast_servers"] == 1 for name in ("multicast", "lossy") for rank in ranks[name])
    # Lost results, and they alone, come by unicast.
    assert min(rank["multicast_datagrams"] for rank in ranks["multicast"]) > 1000
    assert min(rank["multicast_datagrams"] for rank in ranks["lossy"]) > 1000
    assert sent["multicast"] < 0.5 * sent["unicast"], sent  # 0.25, and what a busy machine asks for again
    # A host that receives no multicast gets unicast.
    assert [rank["multicast_servers"] for rank in ranks["deaf"]] == [1, 1, 1, 0]
    assert [rank["multicast_datagrams"] > 1000 for rank in ranks["deaf"]] == [True, True, True, False]


def test_kernel_program_of_switch_changes_no_bit(found):
    scenario = of(found, "xdp")
    if "why" in scenario:
        pytest.skip(f"no xdp: {scenario['why']}")
    for ranks in scenario["ranks"].values():
        expect_bits(found, ranks)
    assert sum(rank["resent_datagrams"] for rank in scenario["ranks"]["lossy"]) > 0
    assert scenario["server"]["in_kernel"] > 0.8 * scenario["server"]["datagrams"], scenario["server"]
    # The host's queue shapes all that it receives, if this kernel has ifb.
    arrived = scenario["arrived"]
    assert arrived["eth0"] > 100_000 and ("arrivals" in arrived) == bool(in_lab.features()["xdp_at_switch"])
    assert arrived.get("arrivals", arrived["eth0"]) >= 0.95 * arrived["eth0"], arrived


def test_two_jobs_of_one_server_are_independent(found):
    first, second = of(found, "two_jobs")
    expect_bits(found, first, 0)
    expect_bits(found, second, 1)


def test_two_servers_share_a_job(found):
    ranks = of(found, "two_servers")
    expect_bits(found, ranks)
    assert found["servers"][1]["datagrams"] > 1000


def test_restarted_server_changes_no_bit(found):
    ranks = of(found, "server_restarted")
    expect_bits(found, ranks)
    assert all(rank["aggregator_restarts"] == 2 for rank in ranks)


def test_killed_worker_is_named_on_every_other_rank(found):
    scenario = of(found, "worker_killed")
    for killed in scenario["killed"]:
        assert killed[2] is None
        for rank in killed[:2] + killed[3:]:
            assert "rank 2" in rank["error"]["message"], rank["error"]
    expect_bits(found, scenario["after"])


def test_hostile_datagrams_change_no_bit(found):
    scenario = of(found, "hostile_sender")
    for ranks, wanted in zip(scenario["ranks"], (0, 1)):
        expect_bits(found, ranks)
        assert all(rank["multicast_servers"] == wanted for rank in ranks)
    for sent in scenario["sent"]:
        assert min(sent.get(kind, 0) for kind in ("same", "cut", "turned", "random")) > 50, sent
    up = scenario["sent"][0]
    assert scenario["server"]["rejected"] + scenario["server"]["strangers"] >= 0.9 * (up["cut"] + up["turned"] + up["random"])


def test_slow_worker_is_skipped_and_replicas_stay_equal(found):
    ranks = of(found, "slow_worker")
    expect_done(ranks)
    assert all(rank["stats"]["partial_granules"] > 0 for rank in ranks)
    assert ranks[3]["stats"]["excluded_granules"] > 400  # most of an exchange
    assert ranks[0]["compressed"] != of(found, "by_the_group")[0][0]["compressed"]
