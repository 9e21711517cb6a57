# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The demo's models: shapes, seeds, replicas, resuming, the page of a quality of which less is better, files that are no data."""

import functools
import hashlib
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the demo needs torch")
numpy = pytest.importorskip("numpy", reason="the demo's data need NumPy")
pytest.importorskip("sklearn", reason="the digits are scikit-learn's")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))

from bench.lib import digits, models, quality, text
from examples.demo import run
from ranks import Ranks  # noqa: E402

SMALL = {"mlp": (1.0e6, 1.2e6), "cnn": (0.2e6, 0.5e6), "lstm": (1e6, 2e6), "gpt": (1e6, 3e6), "recommendation": (1.5e6, 1.7e6)}
LINES = "the quick brown fox jumps over the lazy dog.\n" * 400
OWN_TEXT = ["--model", "lstm", "--workers", "2", "--specs", "3lc", "--emulate", "--rate", "1gbit", "--steps", "6", "--every", "3", "--repeats", "1",
            "--slow-steps", "1", "--fast-steps", "1", "--pairs", "1", "--pair-steps", "1", "--target", "0.1"]


@pytest.fixture(scope="module")
def pair():
    ranks = Ranks(2)
    yield ranks
    ranks.close()


# ---- every model ----

@pytest.mark.parametrize("name", models.MODELS)
def test_model_has_everything_demo_needs(name):
    model, kind = models.MODELS[name], models.load(name)
    data = kind.data(None)
    net = kind.build(data)
    assert SMALL[name][0] <= sum(p.numel() for p in net.parameters()) <= SMALL[name][1]
    first, other, again = (next(data.batches(kind.BATCH, seed, 1, 4)) for seed in (0, 1, 0))
    assert all(torch.equal(a, b) for a, b in zip(first, again)) and not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], next(data.batches(kind.BATCH, 0, 2, 4))[0])  # every rank its own
    loss = data.loss(net, first)
    assert loss.ndim == 0 and loss.requires_grad and math.isfinite(loss.item())
    value = data.evaluate(net.eval())
    assert 0 <= value <= (1 if model.quality is quality.ACCURACY else 9)
    assert data.evaluate(net) == value and not model.quality.reached(value, model.target)
    assert str(kind.LEARNING_RATE) in kind.TRAINING and str(kind.BATCH) in kind.TRAINING


def _digest(*tensors):
    return hashlib.sha256(b"".join(t.detach().flatten().view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()


def _trained(name, spec, seed, steps, state=None):
    """(parameters' hash, state) after `steps` more steps."""
    from bench.lib import models
    import torch.distributed as dist
    from bench.lib.trainer import Trainer

    kind = models.load(name)
    data = kind.data(None)
    trainer = Trainer(kind, spec, seed, data, 20, dist.get_rank(), 2)
    if state:
        trainer.step = state["step"]
        trainer.model.module.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        trainer.handle.load_state_dict(state["laconic"])
        trainer.batches = itertools.islice(trainer.batches, state["step"], None)
    for _ in range(steps):
        trainer.train_step()
    after = {"step": trainer.step, "model": {k: v.clone() for k, v in trainer.model.module.state_dict().items()},
             "optimizer": trainer.optimizer.state_dict(), "laconic": trainer.handle.state_dict() if trainer.handle else None}
    found = _digest(*trainer.model.parameters())
    trainer.close()
    return found, after


def _replicas(name):
    return [_trained(name, spec, seed, 2)[0] for spec, seed in (("pytorch:ddp", 0), ("3lc", 0), ("3lc", 0), ("3lc", 1))]


@pytest.mark.parametrize("name", models.MODELS)
def test_replicas_are_bit_identical_for_each_seed(pair, name):
    (plain, one, again, other), second = pair.run(_replicas, name=name)
    assert [plain, one, again, other] == second
    assert one == again and len({plain, one, other}) == 3


def _interrupted(name, spec):
    whole, _ = _trained(name, spec, 0, 3)
    _, state = _trained(name, spec, 0, 2)
    return whole, _trained(name, spec, 0, 1, state)[0]


def _judged(name):
    """Whether a second look sees the same, the first changed nothing, and the model trains on."""
    from bench.lib import models
    from bench.lib.trainer import Trainer

    kind = models.load(name)
    trainer = Trainer(kind, "pytorch:ddp", 0, kind.data(None), 20, 0, 2)
    trainer.train_step()
    before = _digest(*trainer.model.module.state_dict().values())
    first, second = trainer.quality(), trainer.quality()
    return first == second, before == _digest(*trainer.model.module.state_dict().values()), trainer.model.module.training


def test_evaluating_changes_nothing(pair):
    """Batch norm's averages would, in training mode."""
    assert pair.run(_judged, name="cnn") == [(True, True, True)] * 2


def test_likes_are_drawn_from_a_fixed_law():
    from bench.lib.models import recommendation

    pairs, liked = recommendation.drawn(20_000)
    assert all(map(torch.equal, (pairs, liked), recommendation.drawn(20_000)))
    for column, count in enumerate((recommendation.USERS, recommendation.ITEMS)):
        assert 0 <= pairs[:, column].min() and pairs[:, column].max() < count
        assert (pairs[:, column] < count // 1000).float().mean() == pytest.approx(0.001 ** (1 / 6), abs=0.02)
    assert liked.float().mean() == pytest.approx(0.36, abs=0.02)  # always "no" is far below the target
    with pytest.raises(ValueError, match="draws its data"):
        recommendation.data("likes.csv")


def test_momentum_is_kept_once():
    """Momentum is kept by the codec, else by the optimizer."""
    from bench.lib import optimizers

    parameters = [torch.nn.Parameter(torch.zeros(2))]
    for model in set(models.MODELS) - {"recommendation"}:  # Adagrad has none
        def has_momentum(spec, kind=models.load(model)):
            group = optimizers.optimizer_for(kind, parameters, spec).param_groups[0]
            return (group["momentum"] if "momentum" in group else group["betas"][0]) > 0

        assert {spec: has_momentum(spec) for spec in ("pytorch:ddp", "none", "topk", "thc@switch", "dgc+noef")} == dict.fromkeys(
            ("pytorch:ddp", "none", "topk", "thc@switch", "dgc+noef"), True)
        assert not any(map(has_momentum, ("dgc", "signum", "topk:ratio=0.1+momentum=0.5")))


@pytest.mark.parametrize("name", ["lstm", "gpt"])
def test_adam_resumes_bit_for_bit(pair, name):
    for whole, resumed in pair.run(_interrupted, name=name, spec="3lc"):
        assert whole == resumed


def _stands(name):
    from bench.lib import models
    from bench.lib.trainer import Trainer, first_parameters

    kind = models.load(name)
    trainer = Trainer(kind, "pytorch:ddp", 0, kind.data(None), 20, 0, 2)
    last = []
    for label, p in trainer.model.module.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, label=label: last.append(label))
    trainer.train_step()
    of_first = {label for label, p in trainer.model.module.named_parameters()
                if any(p is q for q in first_parameters(trainer.model.module))}
    return last[-1], of_first


@pytest.mark.parametrize("name", models.MODELS)
def test_last_gradient_belongs_to_first_layer(pair, name):
    """Modules split into compute and exchange there would otherwise be split too early."""
    for last, of_first in pair.run(_stands, name=name):
        assert last in of_first


def test_bytes_match_pytorch_exchanges():
    from bench.lib.trainer import baseline_bytes

    shapes = [torch.zeros(s) for s in ((1024, 64), (1024,), (32, 16, 3, 3), (8, 8))]
    elements = 65536 + 1024 + 4608 + 64
    assert baseline_bytes("pytorch:ddp", shapes, 4) == 0  # nothing of them is trained
    for tensor in shapes:
        tensor.requires_grad_()
    assert baseline_bytes("pytorch:ddp", shapes, 4) == 2 * 4 * elements * 3 // 4
    assert baseline_bytes("pytorch:fp16", shapes, 4) == 2 * 2 * elements * 3 // 4
    # rank 4: 4 * (1024 + 64) and 4 * (32 + 144); 8 x 8 is not worth it
    assert baseline_bytes("pytorch:powersgd", shapes, 4) == 2 * 4 * (4352 + 1024 + 704 + 64) * 3 // 4


@pytest.mark.parametrize(("networks", "times_only", "runs"), [
    (["1gbit"], False, True), (["20mbit", "1gbit"], False, False), (["1gbit"], True, False)])
def test_runs_to_target_happen_on_one_network_only(networks, times_only, runs):
    from examples.demo.worker import Worker

    worker = Worker.__new__(Worker)
    worker.plan, worker.quality = {"networks": networks, "times_only": times_only, "target": 0.5}, quality.ACCURACY
    worker.done = {"learn": [{"spec": "3lc", "curve": [[0, 0.1], [5, 0.6]]}, {"spec": "int8", "curve": [[0, 0.1]]}]}
    assert worker.runs_to_target("3lc") == runs and not worker.runs_to_target("int8")


def _sent_zeros(payload, strategy):
    """(what went into the collectives, bytes that the loopback interface carried, whether gradients are this rank's)"""
    from bench.lib import models
    import torch.distributed as dist
    from bench.lib import zeros
    from bench.lib.trainer import Trainer

    def carried():
        dist.barrier()
        return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())

    kind = models.load("mlp")
    data = kind.data(None)
    trainer = Trainer(kind, zeros.SPEC, 0, data, 20, dist.get_rank(), 2)
    trainer.zeros.payload = 1
    trainer.train_step()  # DDP's own first messages
    before = [p.detach().clone() for p in trainer.model.parameters()]
    calls, originals = [], {name: getattr(dist, name) for name in ("isend", "irecv", "all_reduce")}

    def recorded(name, tensor, *words):
        calls.append((name, tensor.dtype, len(tensor), *words))
        assert name == "irecv" or not tensor.any()
        return originals[name](tensor, *words)

    trainer.zeros.payload, trainer.zeros.strategy = payload, strategy
    try:
        for name in originals:
            setattr(dist, name, functools.partial(recorded, name))
        begin = carried()
        trainer.train_step()
        sent = carried() - begin
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    alone = kind.build(data)
    for p, value in zip(alone.parameters(), before):
        p.data = value
    batches = data.batches(kind.BATCH, 0, dist.get_rank(), 2)
    batch = [next(batches) for _ in range(2)][1]
    data.loss(alone, batch).backward()
    return calls, sent, all(torch.equal(p.grad, q.grad) for p, q in zip(alone.parameters(), trainer.model.parameters()))


@pytest.mark.parametrize(("strategy", "rounds"), [("gather_all", [500_000]), ("two_shot", [250_000] * 2), ("native_sum", None)])
def test_zeros_replace_gradients(pair, strategy, rounds):
    for rank, (calls, sent, unchanged) in enumerate(pair.run(_sent_zeros, payload=500_000, strategy=strategy)):
        if rounds is None:  # a ring of two sends half of it twice
            assert calls == [("all_reduce", torch.uint8, 500_000)]
        else:
            assert calls == [(name, torch.uint8, n, 1 - rank) for n in rounds for name in ("irecv", "isend")]
        assert sent >= 1_000_000 and unchanged  # both ranks use this interface, and so may others


@pytest.mark.parametrize(("strategy", "expected"), [("gather_all", 100), ("two_shot", 50)])
def test_zeros_are_shared_among_other_ranks(monkeypatch, strategy, expected):
    import torch.distributed as dist
    from bench.lib import zeros

    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    assert zeros.Zeros(301, strategy).message_bytes() == expected
    assert zeros.Zeros(600, "native_sum").sum_bytes() == 400  # a ring of four sends 6/4 of it


# ---- quality, page ----

def test_less_is_better_for_loss_metrics():
    assert quality.ACCURACY.reached(0.95, 0.95) and not quality.ACCURACY.reached(0.94, 0.95)
    assert quality.BITS.reached(3.0, 3.0) and not quality.BITS.reached(3.01, 3.0)
    assert (quality.ACCURACY.best([1, 2]), quality.BITS.best([1, 2])) == (2, 1)
    assert quality.BITS.top([3.3, 2.2]) == 2.0 and quality.BITS.short(3.0) == "3 bits"


def test_user_file_is_measured_in_bits_per_character(tmp_path, monkeypatch, capsys):
    """From what two workers have recorded (lstm.json)."""
    (tmp_path / "own.txt").write_text(LINES)
    recorded = json.loads(Path(__file__).with_name("lstm.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(run, "train", lambda given, plan, progress: recorded)
    run.demo(run.options([*OWN_TEXT, "--data", str(tmp_path / "own.txt"), "--out", str(tmp_path / "out"), "--publish", str(tmp_path)]))
    said = capsys.readouterr().out
    assert "steps to 0.1 bits" in said.replace("\u00a0", " ") and "final bits a character" in said
    row = next(line for line in said.splitlines() if line.startswith("Laconic 3lc"))
    assert "not reached" in row
    page = (tmp_path / "out/report.html").read_text()
    assert "Bits a character over seconds" in page and "own.txt" in page and "1,257,600" in page
    assert "| final bits a character |" in (tmp_path / "demo-lstm.md").read_text()
    assert (tmp_path / "demo-lstm.svg").exists()


def _of_worker(plan):
    from examples.demo.worker import Worker

    worker = Worker(plan)
    return sum(p.numel() for p in worker.kind.build(worker.data).parameters()), len(worker.data.train)


def test_workers_read_file_of_user(pair, tmp_path):
    (tmp_path / "own.txt").write_text(LINES)
    plan = run.plan_of(run.options([*OWN_TEXT, "--data", str(tmp_path / "own.txt")]))
    assert pair.run(_of_worker, plan=plan) == [(1_257_600, 9 * len(LINES) // 10)] * 2


def test_better_is_above_on_charts():
    import re

    from bench.lib import charts

    series = [charts.Series("x", "s0", [(1, 4.0), (2, 3.0)])]
    down = charts.curves(series, "t", "steps", 3.5, quality.BITS.short, 5.0, 2.0)
    up = charts.curves(series, "t", "steps", 3.5, quality.BITS.short, 2.0, 5.0)
    heights = [[float(point.split(",")[1]) for point in re.search(r'points="([^"]+)"', chart)[1].split()] for chart in (down, up)]
    assert heights[0][1] < heights[0][0] and heights[1][1] > heights[1][0]


# ---- data ----

def test_shifting_moves_at_most_a_pixel_and_differs_by_sample():
    image = torch.zeros(64, 1, 8, 8)
    image[:, :, 4, 4] = 1
    places = {tuple(place[2:]) for place in digits.shifted(image, 1, torch.Generator().manual_seed(0)).nonzero().tolist()}
    assert places == {(y, x) for y in (3, 4, 5) for x in (3, 4, 5)}


def _archive(path, **more):
    pixels, labels = numpy.arange(4 * 32 * 32 * 3).reshape(4, 32, 32, 3).astype("uint8"), numpy.array([0, 9, 3, 1], "uint8")
    parts = {"train_images": pixels, "train_labels": labels, "test_images": pixels, "test_labels": labels}
    numpy.savez(path, **{**parts, **more})
    return str(path)


def test_cifar10_loads_from_arrays(tmp_path):
    images = digits.cifar10(_archive(tmp_path / "a.npz"))
    assert images.train.shape == (4, 3, 32, 32) and images.train.dtype == torch.float32
    assert images.train[1, 2, 0, 5] == pytest.approx((32 * 32 * 3 + 5 * 3 + 2) % 256 / 255)
    assert images.test_labels.tolist() == [0, 9, 3, 1]
    kind = models.load("cifar10")
    net = kind.build(images)
    assert net(images.train).shape == (4, 10) and 1.1e6 < sum(p.numel() for p in net.parameters()) < 1.3e6
    assert str(kind.LEARNING_RATE) in kind.TRAINING and str(kind.BATCH) in kind.TRAINING


def test_file_makes_cnn_another_model(tmp_path, monkeypatch):
    path = _archive(tmp_path / "a.npz")
    given = run.options(["--model", "cnn", "--data", path])
    plan = run.plan_of(given)
    assert [plan[key] for key in ("model", "steps", "every", "target")] == ["cifar10", 1000, 100, 0.55]
    assert run.command_line(given) == f'make demo MODEL="cnn" DATA="{path}"'
    without = run.plan_of(run.options(["--model", "cnn"]))
    assert (without["model"], without["steps"]) == ("cnn", 200)
    limits = []
    monkeypatch.setattr(run, "laconic_command", lambda: "laconic")
    monkeypatch.setattr(run, "run_lab", lambda command, hosts, worker, limit, emulate, progress: limits.append(limit) or Path(worker[-1]).write_text("{}"))
    for some in (plan, without):
        run.train(run.options(["--emulate"]), some, None)
    assert limits[0] > 3600 > limits[1]
    with pytest.raises(ValueError, match="DATA=FILE"):
        models.load("cifar10").data(None)
    with pytest.raises(ValueError, match="cnn is for the digits"):
        models.load("cnn").data(path)


def test_cifar10_loads_from_jpeg_files(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="JPEG files need Pillow")
    import io

    files = []
    for shade in (0, 128, 255, 64):
        buffer = io.BytesIO()
        image.new("RGB", (32, 32), (shade, 0, 0)).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    packed = {"jpeg": numpy.frombuffer(b"".join(files), "uint8"), "offsets": numpy.cumsum([0, *map(len, files)]).astype("uint32"),
              "labels": numpy.array([1, 2, 3, 4])}
    numpy.savez(tmp_path / "a.npz", **{f"{name}_{what}": values for name in ("train", "test") for what, values in packed.items()})
    red = digits.cifar10(str(tmp_path / "a.npz")).train[:, 0].mean((1, 2))
    assert red.tolist() == pytest.approx([0, 128 / 255, 1, 64 / 255], abs=0.02)


def _no_jpeg(path):
    parts = {"jpeg": numpy.zeros(4, "uint8"), "offsets": numpy.array([0, 4]), "labels": numpy.array([1])}
    numpy.savez(path, **{f"{name}_{what}": values for name in ("train", "test") for what, values in parts.items()})
    return str(path)


def test_invalid_jpeg_files_are_refused(tmp_path):
    pytest.importorskip("PIL.Image", reason="JPEG files need Pillow")
    with pytest.raises(ValueError, match="is not CIFAR-10"):
        digits.cifar10(_no_jpeg(tmp_path / "a.npz"))


def test_jpeg_files_need_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match="pip install pillow"):
        digits.cifar10(_no_jpeg(tmp_path / "a.npz"))


def test_last_tenth_of_text_is_for_evaluation(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 9000 + "z" * 1000)
    one = text.Text(str(tmp_path / "a.txt"))
    assert set(one.train.tolist()) == {ord("a")} and set(one.test[0].flatten().tolist()) == {ord("z")}
    varied = tmp_path / "b.txt"
    varied.write_text("".join(chr(33 + i * i % 89) for i in range(20_000)))
    one, again = text.Text(str(varied)), text.Text(str(varied))
    assert torch.equal(one.test[0], again.test[0]) and torch.equal(one.test[0][:, 1:], one.test[1][:, :-1])


def test_invalid_data_files_are_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "cut.npz").write_bytes(Path(_archive(tmp_path / "whole.npz")).read_bytes()[:5000])
    numpy.savez(tmp_path / "other.npz", x=numpy.zeros(3))
    for path in ("text.npz", "cut.npz", "other.npz", _archive(tmp_path / "labels.npz", train_labels=numpy.array([0, 1, 2])),
                 _archive(tmp_path / "classes.npz", test_labels=numpy.array([0, 1, 2, 10]))):
        with pytest.raises(ValueError, match="is not CIFAR-10 as .npz"):
            digits.cifar10(str(tmp_path / path))
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(ValueError, match="has 9 characters"):
        text.Text(str(tmp_path / "short.txt"))
    with pytest.raises(ValueError, match="mlp is for the digits alone"):
        models.load("mlp").data("x.npz")


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--model", "resnet"], 2, "invalid choice: 'resnet'"), (["--model", "gpt", "--data", "absent.txt"], 1, "absent.txt cannot be read")])
def test_impossible_run_prints_one_line(tmp_path, words, code, said):
    done = subprocess.run([sys.executable, "-m", "examples.demo.run", *words, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == code and said in done.stderr.splitlines()[-1]
