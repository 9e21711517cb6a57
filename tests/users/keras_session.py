# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic.keras on two ranks, on each backend of Keras: the example, the guide's programs, half batches, mixed precision with an overflow on one rank,
accumulated gradients, missing and sparse ones, other weights, jit_compile=True, saved models, resume by hand and by the callback, distribution in the process, a rank that dies."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from _launch import blocks, by_hand, check, free_port, lab, run_page, start, torchrun

NEEDS = ["keras", "tensorflow-cpu", "jax", "scikit-learn"]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "keras_train.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def rank_of_job(folder):
    import keras
    import numpy

    import laconic

    backend, rank = keras.backend.backend(), int(os.environ["RANK"])
    draw = numpy.random.default_rng(0)
    x, y = draw.normal(size=(96, 32)).astype("float32"), draw.integers(0, 10, 96)
    mine = slice(rank, None, 2)

    def model(optimizer, seed=0, **options):
        keras.utils.set_random_seed(seed)
        made = keras.Sequential([keras.Input((32,)), keras.layers.Dense(200, activation="relu"), keras.layers.Dense(10)])
        made.compile(optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
        return made

    def fit(made, x=x[mine], y=y[mine], batch=8, epochs=1):
        made.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
        return made

    def weights(made):
        return b"".join(value.tobytes() for value in made.get_weights())

    def equal(made, other=None):
        made.optimizer.laconic.flat.compare([numpy.frombuffer(weights(made), "uint8")], "the results")
        return other is None or weights(other) == weights(made)

    def refused(what, words, call):
        try:
            call()
        except Exception as error:  # noqa: BLE001
            return check(words in str(error), f"{backend}: {what} is refused: {type(error).__name__}: {words}")
        return check(False, f"{backend}: {what} is refused")

    adam = keras.optimizers.Adam
    two = fit(model(laconic.keras.compressed(keras.optimizers.SGD(0.1, clipnorm=1.0), "none")))
    one = fit(model(keras.optimizers.SGD(0.1, clipnorm=1.0)), x, y, batch=16)
    near = max(float(abs(a - b).max()) for a, b in zip(one.get_weights(), two.get_weights()))
    check(equal(two) and near < 1e-5, f"{backend}: half batches with none equal whole batches: {near:.1e}")

    trained = fit(model(laconic.keras.compressed(adam(0.01), "3lc")))
    check(equal(trained) and trained.optimizer.laconic.stats()["ratio"] > 2, f"{backend}: 3lc, ranks are equal, bit for bit")
    trained.save(f"{folder}/{rank}.keras")
    plain = keras.models.load_model(f"{folder}/{rank}.keras")
    check(not hasattr(plain.optimizer, "laconic") and type(plain.optimizer).__name__ == "Adam", f"{backend}: a saved model has the plain optimizer")
    state = trained.optimizer.laconic.state_dict()
    fit(trained)
    plain.compile(optimizer=laconic.keras.compressed(plain.optimizer, "3lc"), loss=plain.loss)
    plain.optimizer.laconic.load_state_dict(state)
    check(equal(fit(plain), trained), f"{backend}: resumed equals uninterrupted, bit for bit")

    resumed_by_callback(backend, rank, folder, adam, x[mine], y[mine])

    accumulated = fit(model(laconic.keras.compressed(adam(0.01, gradient_accumulation_steps=3), "3lc")))
    check(equal(accumulated) and accumulated.optimizer.laconic.stats()["steps"] == 2, f"{backend}: accumulated gradients are exchanged once an update")

    refused("other weights", "the weights of rank 1 differ", lambda: fit(model(laconic.keras.compressed(adam(), "3lc"), seed=rank)))
    check(equal(fit(model(laconic.keras.compressed(adam(), "3lc", sync=True), seed=rank))), f"{backend}: sync=True takes rank 0's weights")
    if backend == "tensorflow":
        refused("jit_compile=True", "jit_compile=False", lambda: fit(model(laconic.keras.compressed(adam(), "3lc"), jit_compile=True)))
        auto_is_false(model, laconic.keras.compressed(adam(), "3lc"))
    replicas(backend, model, fit, refused, adam)
    refused("an optimizer that is compressed already", "compressed already",
            lambda: laconic.keras.compressed(laconic.keras.compressed(adam(), "3lc"), "3lc"))

    optimizer = laconic.keras.compressed(keras.optimizers.SGD(1.0), "none")
    variables = [keras.Variable(numpy.zeros((4, 3), "float32"), name=name) for name in ("first", "second")]
    optimizer.apply([keras.ops.full((4, 3), 2.0 * rank), None if rank else keras.ops.ones((4, 3))], variables)
    values = [float(keras.ops.convert_to_numpy(variable.value)[0, 0]) for variable in variables]
    check(values == [-1.0, -0.5], f"{backend}: a gradient that one rank lacks counts as zeros")
    if backend == "tensorflow":
        import tensorflow as tf

        optimizer.apply([tf.IndexedSlices(tf.ones((1, 3)), tf.constant([rank]), tf.constant([4, 3])), None], variables)
        check(keras.ops.convert_to_numpy(variables[0].value)[:, 0].tolist() == [-1.5, -1.5, -1.0, -1.0], "tensorflow: sparse gradients are exchanged dense")

    optimizer = laconic.keras.compressed(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0), "none")
    variable = keras.Variable(numpy.zeros(5, "float32"), name="scaled")
    optimizer.build([variable])

    def apply(value):
        if backend != "jax":
            return optimizer.apply([keras.ops.full((5,), value)], [variable])
        (new,), state = optimizer.stateless_apply([v.value for v in optimizer.variables], [keras.ops.full((5,), value)], [variable.value])
        for v, given in zip((variable, *optimizer.variables), (new, *state)):  # as Keras itself trains there
            v.assign(given)
        return None

    apply(numpy.inf if rank else 8.0)
    skipped = float(keras.ops.convert_to_numpy(variable.value)[0])
    apply(8.0)
    value, scale = (keras.ops.convert_to_numpy(v.value) for v in (variable, optimizer.dynamic_scale))
    check(skipped == 0 and value[0] == -2 and scale == 4, f"{backend}: an overflow on one rank skips the step on all")
    outer = keras.optimizers.LossScaleOptimizer(laconic.keras.compressed(keras.optimizers.SGD(1.0), "none"))
    refused("a loss scale around it", "LossScaleOptimizer is around", lambda: outer.apply([keras.ops.ones((5,))], [variable]))
    keras.mixed_precision.set_global_policy("mixed_float16")
    check(equal(fit(model(laconic.keras.compressed(adam(0.01), "3lc")))), f"{backend}: mixed_float16, ranks are equal, bit for bit")


def resumed_by_callback(backend, rank, folder, adam, x, y):
    import keras
    import numpy

    import laconic

    def run(*callbacks, model=None, raises=None, **options):
        if model is None:
            keras.utils.clear_session()  # the same layers' names
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(200, activation="relu"), keras.layers.Dropout(0.0), keras.layers.Dense(10)])
            model.compile(optimizer=laconic.keras.compressed(adam(0.01, gradient_accumulation_steps=2), "topk:ratio=0.05", small_elements=64),
                          loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        try:
            history = model.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=list(callbacks), **options)
        except KeyboardInterrupt:
            return None, None
        return model, history

    def weights(model):
        return b"".join(value.tobytes() for value in model.get_weights())

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    path = f"{folder}/{rank}-{{epoch}}.keras"
    whole, history = run(laconic.keras.Callback(), keras.callbacks.ModelCheckpoint(path))
    check(len(history.history["laconic_ratio"]) == 4 and history.history["laconic_ratio"][-1] > 5, f"{backend}: the ratio is in the logs of every epoch")
    backup = f"{folder}/backup-{rank}"
    run(keras.callbacks.BackupAndRestore(backup), laconic.keras.Callback(), Stops())
    check(os.listdir(f"{backup}/latest.weights.h5.laconic") == [f"rank-{rank}.npz"], f"{backend}: a state beside what BackupAndRestore saves")
    again, _ = run(laconic.keras.Callback(), keras.callbacks.BackupAndRestore(backup))
    check(weights(again) == weights(whole) and not os.path.exists(backup), f"{backend}: resumed by BackupAndRestore equals uninterrupted, bit for bit")
    loaded = keras.models.load_model(path.format(epoch=2))
    loaded.compile(optimizer=laconic.keras.compressed(loaded.optimizer, "topk:ratio=0.05", small_elements=64), loss=loaded.loss)
    run(laconic.keras.Callback(resume_from=path.format(epoch=2)), model=loaded, initial_epoch=2)
    check(weights(loaded) == weights(whole), f"{backend}: resumed from ModelCheckpoint's file equals uninterrupted, bit for bit")
    flushed, _ = run(laconic.keras.Callback(flush=5))
    left = [saved for name, saved in flushed.optimizer.laconic.state_dict().items() if name.startswith("entries/residual")]
    check(left and not any(numpy.any(saved) for saved in left), f"{backend}: flush=5 leaves no residuals")


def replicas(backend, model, fit, refused, adam):
    import keras

    import laconic

    words = "one process, one replica, or let XLA sum inside the process"
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            refused("tf.distribute", words, lambda: laconic.keras.compressed(adam(), "3lc"))
    if backend == "jax":
        optimizer = laconic.keras.compressed(adam(), "3lc")
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"], auto_shard_dataset=False))
        try:
            refused("keras.distribution", words, lambda: laconic.keras.compressed(adam(), "3lc"))
            refused("keras.distribution, set later", words, lambda: fit(model(optimizer)))
        finally:
            keras.distribution.set_distribution(None)


def guide_of_rank():
    import keras
    import numpy

    whole, *others = run_page("keras.md")
    exchange = whole["optimizer"].laconic
    for found in others:
        exchange.flat.compare([numpy.asarray(value) for value in found["model"].get_weights()], "the weights")
    check(exchange.world == 2 and exchange.stats()["ratio"] > 5, f"{keras.backend.backend()}: the guide's programs: ranks are equal, bit for bit")


def guide(backend, folder):
    environment = {"KERAS_BACKEND": backend, **QUIET}
    say(torchrun(__file__, "guide", cwd=folder, **environment))
    if backend != "tensorflow":
        return
    train, port = Path(folder, "train.py"), free_port()
    train.write_text(blocks("keras.md")[0] + "\nprint(f'rank {rank} of {world}')\n")
    cluster = {"worker": [f"127.0.0.1:{port}", "127.0.0.1:1"]}
    configured = by_hand(train, per_rank=lambda rank: {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}, **environment)
    for how, output in (("TF_CONFIG", "\n".join(configured)), ("laconic lab", lab(train, **environment))):
        check(sorted(re.findall(r"rank \d of 2", output)) == ["rank 0 of 2", "rank 1 of 2"], f"{backend}: the guide's program by {how}")


def say(output):
    print("\n".join(dict.fromkeys(line[line.index("ok: "):] for line in output.splitlines() if "ok: " in line)), flush=True)


def auto_is_false(model, optimizer):
    """As on a machine whose accelerator lets Keras choose XLA."""
    import tensorflow as tf

    listed, tf.config.list_physical_devices = tf.config.list_physical_devices, lambda *_: [tf.config.PhysicalDevice("x", "GPU")]
    try:
        check(model("sgd").jit_compile is True and model(optimizer).jit_compile is False, 'tensorflow: jit_compile="auto" is False')
    finally:
        tf.config.list_physical_devices = listed


def dying_rank():
    import keras
    import numpy

    import laconic

    class Dies(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3 and os.environ["RANK"] == "1":
                os._exit(0)

    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((32,)), keras.layers.Dense(200)])
    made.compile(optimizer=laconic.keras.compressed(keras.optimizers.Adam(), "3lc", timeout=60), loss="mse")
    try:
        made.fit(numpy.ones((80, 32), "float32"), numpy.ones((80, 200), "float32"), batch_size=8, verbose=0, callbacks=[Dies()])
    except Exception as error:  # noqa: BLE001
        check("rank 1 is gone" in str(error), f"{keras.backend.backend()}: {type(error).__name__} names the rank that died")
        check("rank 1 is gone" in str(made.optimizer.laconic.last_error), f"{keras.backend.backend()}: last_error has it")
        sys.stdout.flush()
        os._exit(0)


def example(backend):
    def ranks(output):
        return re.findall(r"rank \d of \d: accuracy ([\d.]+), weights ([0-9a-f]+), ([\d.]+) : 1", output)

    environment = {"KERAS_BACKEND": backend, **QUIET}
    (alone,), together = ranks(start(EXAMPLE, **environment)), ranks(torchrun(EXAMPLE, **environment))
    check(float(alone[0]) > 0.95 and float(together[0][0]) >= float(alone[0]) - 0.02, f"{backend}: accuracy {alone[0]} alone, {together[0][0]} on two")
    check(len(together) == 2 and together[0][:2] == together[1][:2], f"{backend}: replicas are equal bit for bit, {together[0][2]} : 1")


if __name__ == "__main__":
    if "RANK" in os.environ:
        {"whole": rank_of_job, "dying": dying_rank, "guide": guide_of_rank}[sys.argv[1]](*sys.argv[2:])
    else:
        for backend in sys.argv[1:] or ("tensorflow", "jax", "torch"):
            example(backend)
            with tempfile.TemporaryDirectory() as folder:
                guide(backend, folder)
                for arguments in (["whole", folder], ["dying"]):
                    say(torchrun(__file__, *arguments, seconds=300, KERAS_BACKEND=backend, **QUIET))
