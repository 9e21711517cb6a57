# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Rules from PyTorch: a list, a TOML file, the environment, laconic.run."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from launches import launch  # noqa: E402
from ranks import RankError  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange.rules import given  # noqa: E402

RULES = [{"match": "hidden.*", "spec": "topk:ratio=0.1"}, {"match": "first.*", "max_elements": 10**6, "spec": "fp16"},
         {"match": "branch.*", "spec": "none", "optional": True}]


def _explained(rules=None, variables=None):
    os.environ.update(variables or {})
    try:
        _, handle, _ = training.build(dist.group.WORLD, "3lc", attach_options={"rules": rules})
    finally:
        for name in variables or {}:
            del os.environ[name]
    found = handle.explain(), handle.describe()
    handle.close()
    return found


def settings_of(explained):
    return {s["rule"]: (s["spec"], s["parameters"]) for s in explained["settings"]}


def test_explain_shows_settings(pools):
    for explained, line in pools(3).run(_explained, rules=RULES):
        assert settings_of(explained) == {"hidden.*": ("topk:ratio=0.1", 2), "first.*": ("fp16", 2), "branch.*": ("none", 0), "*": ("3lc", 2)}
        codecs = {p["name"].removeprefix("module."): p["codec"] for p in explained["parameters"]}
        assert codecs["hidden.weight"] == "topk:ratio=0.1" and codecs["first.weight"] == "fp16" and codecs["last.weight"] == "3lc"
        assert codecs["hidden.bias"] == "none", "small ones go as they are"
        assert sum(s["memory_bytes"] for s in explained["settings"]) == explained["residual_bytes"] + explained["state_bytes"] - 8
        assert "hidden.*: topk:ratio=0.1 by gather_all" in line and "first.*: fp16 by native_sum" in line
    for explained, line in pools(3).run(_explained):
        assert settings_of(explained) == {"*": ("3lc", 6)} and "3lc on " in line


def test_file_and_environment_give_same_rules(pools, tmp_path):
    file = tmp_path / "laconic.toml"
    file.write_text('[[rule]]\nmatch = "hidden.*"\nspec = "topk:ratio=0.1"\n\n[[rule]]\nmatch = "first.*"\nspec = "none"\nmin_elements = 100\n')
    for explained, _ in pools(3).run(_explained, rules=str(file)) + pools(3).run(_explained, variables={"LACONIC_RULES": str(file)}):
        assert settings_of(explained) == {"hidden.*": ("topk:ratio=0.1", 2), "first.*": ("none", 1), "*": ("3lc", 3)}


MODES = {
    "plain": {},
    "many_buckets": {"buckets": 4},
    "accumulation": {"accumulate": 2},
    "static_graph": {"ddp_options": {"static_graph": True}},
    "unused": {"ddp_options": {"find_unused_parameters": True}, "model_options": {"unused": True}, "branch": training.on_odd_steps},
    "bf16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("mode", MODES)
def test_replicas_are_bit_identical(pools, mode):
    results = pools(3).run(training.train, spec="3lc", steps=6, attach_options={"rules": RULES}, **MODES[mode])
    assert len({r["hash"] for r in results}) == 1 and all(r["finite"] for r in results)
    alone = pools(3).run(training.train, spec="3lc", steps=6, **MODES[mode])
    assert alone[0]["hash"] != results[0]["hash"]


def test_rule_equals_the_spec_it_names(pools):
    """All parameters by a rule: the bits of the plain spec."""
    ruled = pools(3).run(training.train, spec="3lc", steps=5, attach_options={"rules": [{"match": "*", "spec": "topk:ratio=0.1"}]})
    plain = pools(3).run(training.train, spec="topk:ratio=0.1", steps=5)
    assert ruled[0]["hash"] == plain[0]["hash"]


def test_rules_resume_bit_for_bit(pools):
    for hashes in pools(3).run(training.resume, spec="3lc", buckets=2, attach_options={"rules": RULES}):
        assert hashes[0] == hashes[1]
    others = [{"match": "hidden.*", "spec": "topk:ratio=0.2"}, *RULES[1:]]
    with pytest.raises(RankError, match="rules"):
        pools(3).run(training.resume, spec="3lc", buckets=2, attach_options={"rules": RULES}, resumed_options={"rules": others})


def _refusal(by_rank):
    try:
        _, handle, _ = training.build(dist.group.WORLD, "3lc", attach_options={"rules": by_rank[dist.get_rank()]})
    except laconic.LaconicError as error:
        return str(error)
    handle.close()
    return None


@pytest.mark.parametrize("rules, said", [
    ([{"match": "nothing.*", "spec": "none"}], "nothing.*"),
    ([{"match": "first.*", "spec": "topq"}], "rule 1"),
    ([{"mach": "first.*"}], "mach"),
    ([{"match": 3}], "match is 3"),
    ([{"min_elements": True}], "min_elements is True"),
    ("no/such/file.toml", "no/such/file.toml"),
    (["first.*"], "first.*"),
    ([{"match": "*", "spec": "none"}] * 32, "31"),
])
def test_bad_rules_give_one_message_on_every_rank(pools, rules, said):
    found = pools(3).run(_refusal, by_rank=[rules] * 3)
    assert len(set(found)) == 1 and said in found[0], found
    found = pools(3).run(_refusal, by_rank=[RULES, rules, RULES])
    assert len(set(found)) == 1 and found[0] is not None and said in found[0], found


def test_ranks_with_other_rules_do_not_attach(pools):
    found = pools(3).run(_refusal, by_rank=[RULES, RULES, RULES[:2]])
    assert len(set(found)) == 1 and "the rules" in found[0]


def test_invalid_files_are_refused(tmp_path):
    for text, said in (("[[rule]\n", "laconic.toml"), ("[rule]\nmatch = 'a'\n", "rule"), ("spec = 'topk'\n", "spec"), ("\xff", "laconic.toml"),
                       (f"[[rule]]\nmax_elements = {2**63}\n", "64 bits"), ("rule = " + "[" * 5000, "laconic.toml")):
        file = tmp_path / "laconic.toml"
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(laconic.LaconicError, match=said):
            given(str(file))


SCRIPT = """
import json, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(80, 80), torch.nn.Linear(80, 80)))
ddp(torch.ones(2, 80)).sum().backward()
dist.destroy_process_group()
"""


def test_laconic_run_takes_rules_file(tmp_path):
    (tmp_path / "rules.toml").write_text('[[rule]]\nmatch = "*0.weight"\nspec = "topk:ratio=0.1"\n')
    (tmp_path / "train.py").write_text(SCRIPT)
    outcomes = launch(["-m", "laconic.run", "--spec", "3lc", "--rules", "rules.toml", "train.py"], tmp_path, cwd=tmp_path)
    assert [one.code for one in outcomes] == [0, 0], [one.err for one in outcomes]
    assert "*0.weight: topk:ratio=0.1 by gather_all" in outcomes[0].err, outcomes[0].err


def test_laconic_run_reports_last_change_of_policy(tmp_path):
    steps = "for _ in range(6): ddp(torch.ones(2, 80)).sum().backward()\n"
    (tmp_path / "train.py").write_text(SCRIPT.replace("ddp(torch.ones(2, 80)).sum().backward()\n", steps))
    outcomes = launch(["-m", "laconic.run", "--spec", "topk:ratio=0.1", "--control", "schedule:0=0.1,4=0.5", "train.py"], tmp_path, cwd=tmp_path)
    assert [one.code for one in outcomes] == [0, 0], [one.err for one in outcomes]
    assert "control of *: schedule:0=0.1,4=0.5: ratio 0.1 -> 0.5 from step 4: scheduled" in outcomes[0].err, outcomes[0].err
    assert "control of" not in outcomes[1].err
