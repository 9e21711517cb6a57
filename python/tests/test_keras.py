# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic.keras with stand-ins in place of Keras: make users runs the real one, on each of its backends."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path

import pytest

import laconic
from laconic import LaconicError

numpy = pytest.importorskip("numpy")

from stand_ins import SGD, BackupAndRestore, Keras, LossScaleOptimizer, Model, Optimizer, Sparse, Variable  # noqa: E402


@pytest.fixture
def keras():
    with Keras() as stub:
        yield stub


class Other:
    """A session of two ranks whose other one has gradients of zeros, and other weights where `differs`."""

    rank, world = 0, 2

    def __init__(self, differs=False):
        self.differs = differs

    def average(self, step, array):
        array /= 2

    def gather_bytes(self, data):
        return data + (bytes(len(data)) if self.differs else data)


def two(optimizer, spec="none", **options):
    """Compressed, with that session."""
    made = laconic.keras.compressed(optimizer, spec, **options)
    of = made.laconic.of

    def with_other(variables):
        flat = of(variables)
        if not isinstance(flat.session, Other):
            flat.session = Other()
        return flat

    made.laconic.of = with_other
    return made


def ones(*variables, value=1.0):
    return [numpy.full(v.shape, value, v.dtype) for v in variables]


def test_optimizer_keeps_class_and_configuration(keras):
    class Mine(SGD):
        pass

    for given, module in ((SGD(0.5, momentum=0.9), "keras.optimizers"), (Mine(0.5), Mine.__module__)):
        made = laconic.keras.compressed(given, "3lc")
        assert isinstance(made, type(given)) and (type(made).__name__, type(made).__module__) == (type(given).__name__, module)
        assert made.get_config() == given.get_config() and "laconic" not in made.get_config()
    keras.policy = "mixed_float16"
    assert isinstance(laconic.keras.compressed(SGD(), "3lc"), LossScaleOptimizer)


def test_means_are_applied(keras):
    optimizer, variables = two(SGD()), Model(None).trainable_variables
    optimizer.apply(ones(*variables, value=4.0), variables)
    assert (variables[0].value == -2).all() and variables[1].value.tolist() == [-1, 0] and optimizer.laconic.flat.step == 1


def test_missing_and_sparse_gradients_are_exchanged_dense(keras, caplog):
    caplog.set_level("INFO", "laconic")
    optimizer, variables = two(SGD()), Model(None).trainable_variables
    for _ in range(2):
        optimizer.apply([Sparse(ones(variables[0])[0]), None], variables)
    assert (variables[0].value == -1).all() and variables[1].value.tolist() == [1, 2]
    lines = [record.message for record in caplog.records]
    assert lines.count("dense/bias has no gradient: zeros are exchanged") == 1 and sum("dense/kernel is sparse" in line for line in lines) == 1


def test_accumulated_gradients_are_exchanged_once_per_update(keras):
    optimizer, variables = two(SGD(gradient_accumulation_steps=3)), Model(None).trainable_variables
    for number in range(1, 7):
        optimizer.apply(ones(*variables), variables)
        assert optimizer.laconic.flat.step == number // 3


def test_overflow_on_one_rank_skips_the_step_on_all(keras):
    optimizer, variables = two(LossScaleOptimizer(SGD())), Model(None).trainable_variables
    seen = []
    optimizer.build(variables)
    optimizer.laconic.flat.session.average = lambda step, array: (seen.append(array[0]), array.fill(numpy.inf if step else 3))
    optimizer.apply(ones(*variables, value=8.0), variables)
    assert seen == [1] and (variables[0].value == -3).all()  # travels without its scale
    optimizer.apply(ones(*variables, value=8.0), variables)  # the other rank's overflow
    assert (variables[0].value == -3).all()


def test_built_optimizer_keeps_its_variables(keras):
    given, variables = SGD(momentum=0.5), Model(None).trainable_variables
    given.build(variables)
    given.apply(ones(*variables), variables)
    made = laconic.keras.compressed(given, "none")
    assert made.built and made.laconic.world == 1
    made.apply(ones(*variables), variables)
    assert (variables[0].value == -2.5).all()


def test_weights_are_compared_or_taken_from_rank_0(keras):
    variables = Model(None).trainable_variables
    optimizer = two(SGD())
    optimizer.laconic.of(variables).session.differs = True
    with pytest.raises(LaconicError, match="the weights of rank 1 differ from those of rank 0"):
        optimizer.build(variables)
    optimizer = two(SGD(), sync=True)
    optimizer.laconic.of(variables).session.gather_bytes = lambda data: bytes(len(data)) + data
    optimizer.build(variables)
    assert not variables[1].value.any()


def compressed_twice(_):
    laconic.keras.compressed(laconic.keras.compressed(SGD(), "3lc"), "3lc")


def scaled_around(_):
    variables, outer = Model(None).trainable_variables, LossScaleOptimizer(laconic.keras.compressed(SGD(), "none"))
    outer.build(variables)
    namespace = {}  # as Keras's own file is called
    exec(compile("def apply(outer, grads): outer.inner_optimizer.apply(grads)", "keras/src/loss_scale_optimizer.py", "exec"), namespace)
    namespace["apply"](outer, ones(*variables))


def distributed(keras):
    keras.distributed = object()
    laconic.keras.compressed(SGD(), "3lc")


def integers(_):
    laconic.keras.compressed(SGD(), "3lc").build([Variable("table/ids", [1, 2], "int32")])


def complex_values(_):
    laconic.keras.compressed(SGD(), "3lc").build([Variable("waves/kernel", [1, 2], "complex64")])


@pytest.mark.parametrize(("call", "words"), [
    (lambda _: laconic.keras.compressed("adam", "3lc"), "str is not an optimizer of Keras 3"),
    (compressed_twice, "compressed already"), (scaled_around, "a LossScaleOptimizer is around the compressed optimizer"),
    (distributed, "several replicas of the model .one process, one replica, or let XLA sum inside the process"),
    (integers, "table/ids is of int32"), (complex_values, "waves/kernel is of complex64"),
    (lambda _: laconic.keras.compressed(SGD(), "3lc").laconic.stats(), "the optimizer is not built"),
    (lambda _: Model(SGD()).fit(None, 1, 1, [laconic.keras.Callback()]), "for a model with a compressed optimizer"),
    (lambda _: laconic.keras.Callback(flush=0), "flush"),
])
def test_unsuitable_use_is_refused(keras, call, words):
    with pytest.raises(LaconicError, match=words):
        call(keras)


def test_tf_distribute_is_refused():
    with Keras("tensorflow") as stub:
        laconic.keras.compressed(Optimizer(), "3lc")
        stub.replicas = True
        with pytest.raises(LaconicError, match="several replicas of the model"):
            laconic.keras.compressed(Optimizer(), "3lc")


# ---- the callback --------------------------------------------------------------------------------------------------------------


def gradients(rank):
    def of(batch):
        draw = numpy.random.default_rng([rank, batch])
        return [draw.normal(size=(40, 50)).astype("float32"), draw.normal(size=2).astype("float32")]

    return of


class Lines(list):
    """The lines that laconic logs."""

    def __enter__(self):
        from laconic.integrations import states

        self._environment, self._kept = states.environment, states.environment.say
        states.environment.say = lambda text, level=20: self.append(text)
        return self

    def __exit__(self, *_):
        self._environment.say = self._kept


def fitted(folder, spec="topk:ratio=0.05", epochs=4, until=None, harm=None, **options):
    """On a rank: one run of fit with its backup. {"weights", "lines", "logs", "residual", "files"}"""
    import torch.distributed as dist

    rank = dist.get_rank()
    backup = Path(folder, f"{rank}", "latest")
    backup.parent.mkdir(parents=True, exist_ok=True)
    if harm is not None:
        harm(backup, rank)
    with Keras(), Lines() as lines:
        model = Model(laconic.keras.compressed(SGD(0.1, momentum=0.9), spec, small_elements=100))
        logs = model.fit(gradients(rank), epochs, 3, [laconic.keras.Callback(**options), BackupAndRestore(backup)], until)
        exchange = model.optimizer.laconic
        residual = max(float(abs(saved).max()) for name, saved in exchange.state_dict().items() if name.startswith("entries/residual") and saved.size)
        found = {"weights": pickle.dumps([v.value for v in model.trainable_variables]), "lines": list(lines), "logs": logs, "residual": residual,
                 "files": sorted(str(p.relative_to(backup.parent)) for p in backup.parent.rglob("*.npz")), "step": exchange.flat.step,
                 "left": sorted(vars(model).keys() & {"save", "save_weights", "load_weights"})}
        exchange.close()
    dist.barrier()
    return found


def about_residuals(outcomes):
    assert not any("residuals" in line for line in outcomes[1]["lines"])
    return [line for line in outcomes[0]["lines"] if "residuals" in line]


def test_resumed_fit_equals_the_uninterrupted_one(pools, tmp_path):
    whole = pools(2).run(fitted, folder=tmp_path / "whole")
    assert [outcome["files"] for outcome in whole] == [["latest.laconic/rank-0.npz"], ["latest.laconic/rank-1.npz"]]
    assert len({outcome["weights"] for outcome in whole}) == 1 and not about_residuals(whole) and whole[0]["residual"] > 0
    assert [sorted(logs) for logs in whole[0]["logs"][:3]] == [["laconic_ratio", "laconic_wire_bytes"]] * 3 and whole[0]["left"] == []
    assert whole[0]["logs"][3]["laconic_steps"] == 12 and whole[0]["logs"][0]["laconic_ratio"] > 5
    pools(2).run(fitted, folder=tmp_path / "half", until=2)
    resumed = pools(2).run(fitted, folder=tmp_path / "half")
    assert about_residuals(resumed) == ["residuals continue at step 6"]
    assert {outcome["weights"] for outcome in resumed} == {whole[0]["weights"]} and resumed[1]["step"] == 12


def lose(backup, rank):
    if rank == 1:
        shutil.rmtree(f"{backup}.laconic")


def tear(backup, rank):
    path = Path(f"{backup}.laconic", f"rank-{rank}.npz")
    path.write_bytes(path.read_bytes()[:-500])


def put_text(backup, rank):
    if rank == 0:
        numpy.savez(Path(f"{backup}.laconic", "rank-0.npz"), something=1)


def change_model(backup, rank):
    first, values = pickle.loads(backup.read_bytes())
    values[0] += 1
    backup.write_bytes(pickle.dumps((first, values)))


def start_alone(backup, rank):
    if rank == 1:
        backup.unlink()


def test_all_ranks_load_or_none_and_rank_0_reports_why(pools, tmp_path):
    pools(2).run(fitted, folder=tmp_path / "saved", until=2)
    for harm, words in ((lose, "rank 1: there is no "), (tear, "rank 0, 1: "), (put_text, "rank 0: "), (change_model, "belongs to other parameters")):
        folder = shutil.copytree(tmp_path / "saved", tmp_path / harm.__name__)
        resumed = pools(2).run(fitted, folder=folder, harm=harm)
        [line] = about_residuals(resumed)
        assert line.startswith("residuals start at zero: ") and words in line, line
        assert [outcome["step"] for outcome in resumed] == [6, 6] and resumed[0]["weights"] == resumed[1]["weights"]
    folder = shutil.copytree(tmp_path / "saved", tmp_path / "alone")
    errors = pools(2).errors(fitted, folder=folder, harm=start_alone)
    assert all("the weights of rank 1 differ from those of rank 0 (resume all ranks from the same epoch)" in error.message for error in errors)


@pytest.mark.parametrize("flush", [2, 11])
def test_flush_ends_with_the_last_batch(pools, tmp_path, flush):
    assert [outcome["residual"] for outcome in pools(2).run(fitted, folder=tmp_path, flush=flush)] == [0, 0]


def test_flush_needs_enough_batches(keras):
    for steps, words in ((3, "flush=9 takes 10 batches, and fit has 6"), (None, "fit has an unknown number")):
        model = Model(laconic.keras.compressed(SGD(), "3lc"))
        with pytest.raises(LaconicError, match=words):
            model.fit(gradients(0), 2, steps, [laconic.keras.Callback(flush=9)])


def test_checkpoint_to_resume_from_may_be_named(keras, tmp_path, caplog):
    caplog.set_level("INFO", "laconic")
    model = Model(laconic.keras.compressed(SGD(), "3lc"))
    model.fit(gradients(0), 2, 3, [laconic.keras.Callback(), BackupAndRestore(tmp_path / "it")])
    again = Model(laconic.keras.compressed(SGD(), "3lc"))
    again.load_weights(tmp_path / "it")
    callback = laconic.keras.Callback(resume_from=tmp_path / "it")
    again.fit(gradients(0), 3, 3, [callback])
    assert "residuals continue at step 6" in caplog.text and again.optimizer.laconic.flat.step == 9
    caplog.clear()
    again.fit(gradients(0), 4, 3, [callback])
    assert "residuals" not in caplog.text


def test_states_are_kept_in_local_folders(keras, tmp_path, caplog, monkeypatch):
    model = Model(laconic.keras.compressed(SGD(), "3lc"))
    monkeypatch.setattr(Model, "save", lambda self, filepath, overwrite=True: None)
    monkeypatch.chdir(tmp_path)

    class Saves(BackupAndRestore):
        def on_epoch_end(self, epoch, logs):
            self.model.save("gs://bucket/it")

    model.fit(gradients(0), 2, 1, [laconic.keras.Callback(), Saves(tmp_path / "it")])
    assert caplog.text.count("states are saved to local folders only") == 1 and not list(tmp_path.iterdir())


def test_callback_is_imported_with_keras_only():
    assert "laconic.integrations.keras_callback" not in sys.modules
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        laconic.keras.Nothing  # noqa: B018
