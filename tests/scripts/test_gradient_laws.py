# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/gradient_laws.py: what it records, that recording changes nothing, its files, its tables."""

import contextlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

from bench.learning import gradient_laws, gradient_laws_tables
from bench.lib import tables
from training_here import needs, needs_models  # noqa: E402

SETTINGS = ["--model", "mlp", "--steps", "4", "--every", "2", "--world", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(…): `python …`, a program that trains, with the build under test; on `world` ranks."""
    needs_models()
    from launches import launch, program

    files = {"LACONIC_LIBRARY": "lib/liblaconic.so", "LACONIC_BIN": "bin/laconic"}
    variables = {variable: needs(variable, place) for variable, place in files.items()}
    def started(*words, world=None):
        said = tmp_path_factory.mktemp("said")
        return program(words, said, cwd=ROOT, **variables) if world is None else launch(words, said, world=world, **variables)

    return started


@pytest.fixture(scope="module")
def recorded(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("laws")
    done = run("-m", "bench.learning.gradient_laws", *SETTINGS, "--out", out)
    assert done.code == 0, done.err
    return out


# ---- recording ----

RECORDS = """
import os, tempfile
from pathlib import Path
import numpy, torch, torch.distributed as dist
from bench.learning import gradient_laws
from bench.lib import models
from bench.lib.trainer import Trainer

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    dist.init_process_group("gloo")
    kind = models.load("mlp")
    data = kind.data(None)
    plain = Trainer(kind, "sidco:ratio=0.001", 0, data, 5, rank, 2)
    for _ in range(5):
        plain.train_step()
    trainer = Trainer(kind, "sidco:ratio=0.001", 0, data, 5, rank, 2)
    recorder = gradient_laws.Recorder(trainer, folder)
    residual = {}
    for _ in range(5):
        recorder.step()
        for i, (name, p) in enumerate(recorder.parameters.items()):
            seen = torch.from_numpy(numpy.fromfile(folder / f"{i}.f32", dtype="<f4")[-p.numel():])
            left = trainer.handle.state_dict()["tensors"].get(f"residual/{name}")
            if p.numel() > gradient_laws.SMALL:  # what is no longer there was sent, and there as it was recorded
                sent = seen != left.flatten()
                wanted = max(1, int(0.001 * p.numel()))
                assert 0.8 * wanted <= sent.sum() <= 1.2 * wanted, (name, int(sent.sum()), wanted)
                assert (left.flatten()[sent] == 0).all()
            else:
                assert left is None
                both = seen / 2
                dist.all_reduce(both)
                assert torch.allclose(both, p.grad.flatten(), rtol=1e-5, atol=1e-8)
    assert recorder.about()["steps"] == [0, 1, 2, 3, 4]
    assert gradient_laws.digest(plain.model.module) == gradient_laws.digest(trainer.model.module)
    held = recorder.gradients.of(trainer.train_step)
    p.grad.add_(1)  # as DDP puts the mean there
    assert not torch.equal(held[name], p.grad)
    dist.destroy_process_group()
"""


def test_recorded_values_match_codec_input(run, tmp_path):
    """And a training is the same, recorded or not."""
    (tmp_path / "records.py").write_text(RECORDS)
    for done in run(tmp_path / "records.py", world=2):
        assert done.code == 0, done.err


# ---- files ----


def test_figures_match_hand_computation(recorded):
    assert sorted(path.name for path in recorded.iterdir()) == ["mlp-with-0.json", "mlp-without-0.json"], "vectors are gone"
    found = {name: json.loads((recorded / f"mlp-{name}-0.json").read_text()) for name in ("with", "without")}
    for mode, figures in found.items():
        assert figures["plan"]["feedback"] == (mode == "with") and figures["steps"] == [0, 2]
        layers = {layer["name"]: layer for layer in figures["layers"]}
        assert layers["2.weight"]["compressed"] and not layers["2.bias"]["compressed"]
        assert [record["step"] for record in layers["2.weight"]["records"]] == [0, 2]
        record = layers["2.weight"]["records"][1]
        assert set(record["ks"]) == set(gradient_laws_tables.LAWS) and 0 < record["ks"]["gamma"] < 0.2
        assert len(record["fits"]) == len(gradient_laws.specs(0.001)) == 36
        assert {gradient_laws_tables.setting_of(spec)[:3] for spec in record["fits"]} == set(gradient_laws_tables.ROWS)
        for fit in record["fits"].values():
            assert fit["wanted"] == 1048 and fit["stages"][-1][gradient_laws_tables.SELECTED] == fit["fitted"]
            assert fit["seconds"] > 0 and record["copy_seconds"] > 0
        assert layers["4.bias"]["records"][0]["why"].startswith("too few values: 10")
    first, later = ([figures["layers"][2]["records"][i]["ks"] for figures in found.values()] for i in (0, 1))
    assert first[0] == first[1], "the first step has no residual yet"
    assert later[0] != later[1]


def test_run_continues_where_it_stopped(recorded, tmp_path, monkeypatch):
    """A file that was cut off is as none."""
    for path in recorded.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = (tmp_path / "mlp-with-0.json").read_text()
    (tmp_path / "mlp-with-0.json").write_text(whole[:50])
    seen = []

    def record(_out, plan, _command):
        seen.append(plan["feedback"])
        return json.loads(whole)

    monkeypatch.setattr(gradient_laws, "record", record)
    monkeypatch.setattr(gradient_laws, "laconic_command", lambda: "")
    assert gradient_laws.main([*SETTINGS, "--out", str(tmp_path)]) == 0
    assert seen == [True]
    assert gradient_laws.main([*SETTINGS, "--out", str(tmp_path), "--again"]) == 0
    assert seen == [True, False, True]


def test_figures_of_other_plan_are_ignored(recorded, tmp_path):
    plan = gradient_laws.plans(gradient_laws.options([*SETTINGS, "--out", str(recorded)]))[0]
    assert gradient_laws.recorded(recorded, plan) is not None
    assert gradient_laws.recorded(recorded, {**plan, "every": 3}) is None
    assert gradient_laws.recorded(tmp_path, plan) is None


@pytest.mark.parametrize("words", [["--model", "vgg"], ["--every", "0"], ["--ratio", "2"], ["--steps", "0"]])
def test_impossible_options_are_refused(words):
    with contextlib.redirect_stderr(None), pytest.raises(SystemExit):
        gradient_laws.options(words)


def test_missing_records_make_no_tables(tmp_path, capsys):
    assert gradient_laws.main(["--page", "--out", str(tmp_path), "--publish", str(tmp_path)]) == 1
    assert "nothing was recorded" in capsys.readouterr().err and not (tmp_path / "gradient-laws.md").exists()


# ---- tables ----


def test_tables_show_run(recorded, tmp_path):
    words = [*SETTINGS, "--page", "--out", str(recorded), "--publish", str(tmp_path)]
    assert gradient_laws.main(words) == 0
    found = json.loads((tmp_path / "gradient-laws.json").read_text())["tables"]
    assert {"distances", "tails", "compressibility", "guard", "settings, with feedback", "settings, without feedback"} < set(found)
    assert all(each["rows"] for each in found.values()) and "nan" not in (tmp_path / "gradient-laws.json").read_text().lower()
    assert len(found["settings, with feedback"]["rows"]) == len(gradient_laws_tables.ROWS)


def fit(fitted, sent=None, corrections=0, passes=2, wanted=100, seconds=0.003):
    return {"wanted": wanted, "fitted": fitted, "sent": sent or fitted, "corrections": corrections, "exact": False,
            "memory_passes": passes, "seconds": seconds, "stages": [[25000, 30000, 0.2], [1600, 1500, 0.1], [wanted, fitted, 0.01]]}


def figures(model, feedback, exponential, records=3, fitted=100, shape=(1000, 100)):
    """Every setting fits `fitted`; the default twice that, and reads more."""
    fits = {spec: fit(fitted) for spec in gradient_laws.specs(0.001)}
    fits["sidco:ratio=0.001,law=p,mode=fixed,guard=on"] = fit(2 * fitted, 110, 2, 4, seconds=0.005)
    record = {"nonzero": 10 ** 5, "compressibility": 0.4, "copy_seconds": 0.001, "shape": {}, "fits": fits,
              "ks": {"exponential": exponential, "gamma": 0.04, "pareto": 0.2, "normal": 0.3, "laplace": 0.001}}
    layer = {"name": "a", "shape": list(shape), "kind": "linear", "compressed": True,
             "records": [{**record, "step": 10 * i} for i in range(records)]}
    bad = {**record, "step": 0, "ks": {**record["ks"], "gamma": 0.4}}
    small = {**layer, "kind": "bias", "compressed": False, "records": [bad, {"step": 1, "nonzero": 3, "why": "too few values"}]}
    plan = {"model": model, "feedback": feedback, "seed": 0, "steps": 30, "every": 10, "times": 5, "ratio": 0.001, "world": 4, "data": None}
    return {"plan": plan, "environment": {"CPU": "one"}, "seconds": {"training": 1.0, "fits": 2.0}, "layers": [layer, small]}


def rows_of(key, *found):
    return tables.markdown(gradient_laws_tables.tables_of(list(found))[key]).splitlines()[2:]


def test_distribution_that_fits_is_bold():
    assert rows_of("distances", figures("mlp", True, 0.049), figures("gpt", True, 0.051)) == [
        "| mlp | with | **0.049** | **0.040** | 0.200 | 0.300 | **0.001** |", "| gpt | with | 0.051 | **0.040** | 0.200 | 0.300 | **0.001** |"]


def test_default_is_shown_with_others():
    rows = rows_of("settings, with feedback", figures("mlp", True, 0.04))
    assert next(line for line in rows if "**" in line) == (
        "| **`law=p`, `mode=fixed`** | 2.00 (2.00 – 2.00) | 0 % | 1.00 (1.00 – 1.00) | 2.00 | 1.10 (1.10 – 1.10) | 2.00 | 4.00 | 5.00 |")
    assert "| `law=exp`, `stages=2` | 1.00 (1.00 – 1.00) | 100 % |" in "\n".join(rows)
    assert rows_of("guard", figures("mlp", True, 0.04)) == ["| mlp | with | 2.00 (2.00 – 2.00) | 100 % | 2.00 | 2 | 0 % |"]


def test_times_cover_all_elements_and_weigh_models_equally():
    slow = figures("mlp", True, 0.1)
    slow["layers"][0]["records"][0] = {**slow["layers"][0]["records"][0], "copy_seconds": 0.004,
                                       "fits": {spec: fit(100, seconds=0.1) for spec in gradient_laws.specs(0.001)}}
    found = gradient_laws_tables.Figures([slow, figures("gpt", True, 0.1)])
    row = ("exp", 2, "fixed")
    assert gradient_laws_tables.time_over_copy(found, True, row, "mlp") == pytest.approx((0.1 + 2 * 0.003) / 0.006)
    assert gradient_laws_tables.time_over_copy(found, True, row) == pytest.approx(((0.1 + 2 * 0.003) / 0.006 + 3) / 2)


def test_models_weigh_the_same():
    found = gradient_laws_tables.Figures([figures("mlp", True, 0.1, records=9, fitted=50), figures("gpt", True, 0.1, records=1)])
    row = ("exp", 2, "fixed")
    parts = found.weighted(True, lambda r: gradient_laws_tables.part_of(r, row, "fitted"))
    assert sorted({(value, round(weight, 6)) for value, weight in parts}) == [(0.5, round(1 / 9, 6)), (1.0, 1.0)]
    assert gradient_laws_tables.mean(parts) == pytest.approx(0.75)
    assert gradient_laws_tables.quantile(parts, 0.5) == 0.5 and gradient_laws_tables.quantile(parts, 0.6) == 1.0
    assert gradient_laws_tables.share(parts, gradient_laws_tables.in_band) == pytest.approx(0.5)


def test_passes_are_counted_per_element():
    big, small = figures("mlp", True, 0.1), figures("mlp", True, 0.1, shape=(100, 100))
    for spec in small["layers"][0]["records"][0]["fits"].values():
        spec["memory_passes"] = 13
    big["layers"] += small["layers"]
    found = gradient_laws_tables.Figures([big])
    assert gradient_laws_tables.element_passes(found, True, ("exp", 2, "fixed"), "on") == pytest.approx((10 * 2 + 13) / 11)
