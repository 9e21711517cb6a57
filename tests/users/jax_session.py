# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic.jax on two ranks: the example, the guide's programs, `averaged` inside jit against `Averager` outside for every codec, half batches, resume, what is
refused, a rank that dies inside a jitted step."""

import os
import pickle
import re
import sys
import tempfile
from pathlib import Path

from _launch import blocks, by_hand, check, free_port, lab, run_page, start, torchrun, variables

NEEDS = ["jax", "optax", "flax", "scikit-learn"]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "jax_train.py"
SHAPES = {"dense": {"bias": (300,), "kernel": (64, 300)}, "out": (300, 10)}


def rank_of_job():
    import jax
    import jax.numpy as jnp
    import numpy
    import optax

    import laconic

    weights = jax.tree_util.tree_map(lambda shape: jnp.array(numpy.random.default_rng(1).normal(size=shape) * 0.1, jnp.float32), SHAPES,
                                     is_leaf=lambda node: isinstance(node, tuple))

    def loss(weights, x, y):
        return jnp.mean((jnp.tanh(x @ weights["dense"]["kernel"] + weights["dense"]["bias"]) @ weights["out"] - y) ** 2)

    draw = numpy.random.default_rng(2)
    x, y = draw.normal(size=(5, 64, 64)).astype("float32"), draw.normal(size=(5, 64, 10)).astype("float32")

    def bits(tree):
        return b"".join(numpy.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(tree))

    def equal_on_all(averager, tree):
        averager.flat.compare([numpy.frombuffer(bits(tree), "uint8")], "the results")

    def stepper(tx, **jit):
        def step(weights, state, x, y):
            updates, state = tx.update(jax.grad(loss)(weights, x, y), state, weights)
            return optax.apply_updates(weights, updates), state
        return jax.jit(step, **jit)

    def trained(tx, mine, steps=range(5), weights=weights, state=None):
        step, state = stepper(tx), tx.init(weights) if state is None else state
        for i in steps:
            weights, state = step(weights, state, x[i][mine], y[i][mine])
        return weights, state

    rank = int(os.environ["RANK"])
    mine = slice(rank, None, 2)

    average = laconic.jax.averaged("none")
    two, _ = trained(optax.chain(average, optax.adam(0.01)), mine)
    one, _ = trained(optax.adam(0.01), slice(None))
    near = max(float(abs(a - b).max()) for a, b in zip(*map(jax.tree_util.tree_leaves, (one, two))))
    check(near < 2e-5, f"half batches with none equal whole batches: {near:.1e}")

    names = list(laconic.codecs())
    for spec in names:
        average, outside = laconic.jax.averaged(spec, small_elements=100), laconic.jax.Averager(spec, weights, small_elements=100)
        tx = optax.chain(average, optax.sgd(0.1))
        state, plain, seen = tx.init(weights), optax.sgd(0.1), {"inside": weights, "outside": weights}
        sgd, grad = plain.init(weights), jax.jit(jax.grad(loss))
        within = jax.jit(lambda g, state, average=average: average.update(g, state))
        for i in range(3):
            g = grad(seen["inside"], x[i][mine], y[i][mine])
            a, _ = within(g, state[0])
            b = outside(g)
            if bits(a) != bits(b):
                raise SystemExit(f"{spec}: inside differs from outside")
            seen["inside"] = optax.apply_updates(seen["inside"], plain.update(a, sgd)[0])
        equal_on_all(outside, seen["inside"])
        average.averager.close()
        outside.close()
    check(len(names) > 15, f"{len(names)} codecs: ranks are equal, inside jit equals outside, bit for bit")

    average = laconic.jax.averaged("topk:ratio=0.05", small_elements=100)
    tx = optax.chain(average, optax.adam(0.01))
    whole, _ = trained(tx, mine)
    average.averager.close()
    average = laconic.jax.averaged("topk:ratio=0.05", small_elements=100)
    tx = optax.chain(average, optax.adam(0.01))
    half, state = trained(tx, mine, range(2))
    saved = pickle.dumps((half, state, average.averager.state_dict()))
    average.averager.close()
    half, state, residuals = pickle.loads(saved)
    average = laconic.jax.averaged("topk:ratio=0.05", small_elements=100)
    tx = optax.chain(average, optax.adam(0.01))
    tx.init(half)
    average.averager.load_state_dict(residuals)
    resumed, _ = trained(tx, mine, range(2, 5), half, state)
    check(bits(resumed) == bits(whole), "resumed equals uninterrupted, bit for bit")

    average = laconic.jax.averaged("3lc", small_elements=100)
    tx = optax.chain(average, optax.sgd(0.1))
    expected, _ = trained(tx, mine)
    average.averager.close()
    average = laconic.jax.averaged("3lc", small_elements=100)
    tx = optax.chain(average, optax.sgd(0.1))
    state = tx.init(weights)
    tx.init(weights)
    step = stepper(tx)
    scanned = jax.jit(lambda w, s, x, y: jax.lax.scan(lambda c, xy: (step(*c, *xy), None), (w, s), (x, y))[0], donate_argnums=(0, 1))
    got, state = scanned(jax.tree_util.tree_map(jnp.copy, weights), state, x[:, mine], y[:, mine])
    check(bits(got) == bits(expected) and int(state[0]) == 5, "lax.scan with donated buffers equals a loop")

    halves = jax.tree_util.tree_map(lambda leaf: leaf.astype(jnp.bfloat16), weights)
    averager = laconic.jax.Averager("none", halves)
    means = jax.jit(averager.inside)(halves)
    check(means["out"].dtype == jnp.bfloat16 and bits(means) == bits(halves) == bits(averager(halves)), "bfloat16 stays bfloat16")

    def refused(what, words, call):
        try:
            call()
        except Exception as error:  # noqa: BLE001
            return check(words in str(error), f"{what} is refused: {type(error).__name__}: {str(error).splitlines()[-1]}")
        return check(False, f"{what} is refused")

    averager = average.averager
    g = jax.tree_util.tree_map(lambda leaf: jnp.stack([leaf] * 2), weights)
    refused("vmap", "under vmap", lambda: jax.vmap(averager.inside)(g))
    refused("vmap of jit", "vmap", lambda: jax.vmap(jax.jit(averager.inside))(g))
    refused("grad", "no derivative", lambda: jax.grad(lambda w: averager.inside(w)["out"].sum())(weights))
    refused("grad of jit", "JVP", lambda: jax.grad(lambda w: jax.jit(averager.inside)(w)["out"].sum())(weights))
    one_each = jax.tree_util.tree_map(lambda leaf: leaf[None], weights)
    refused("pmap", "under pmap or shard_map", lambda: jax.pmap(averager.inside, axis_name="devices")(one_each))
    with jax.enable_x64(True):
        refused("float64", "['out'] is of float64", lambda: laconic.jax.Averager("3lc", {"out": jnp.zeros(3, jnp.float64)}))
    other = jax.tree_util.tree_map(lambda leaf: leaf + rank, weights)
    refused("other weights", "the weights of rank 1 differ from those of rank 0", lambda: laconic.jax.Averager("3lc", other))
    averager = laconic.jax.Averager("3lc", other, sync=True)
    check(bits(averager.broadcast(other)) == bits(weights), "broadcast gives rank 0's weights")


def dying_rank():
    import jax
    import jax.numpy as jnp

    import laconic

    averager = laconic.jax.Averager("3lc", {"w": jnp.zeros((100, 100))}, timeout=60)
    step = jax.jit(averager.inside)
    for i in range(9):
        if i == 3 and averager.rank == 1:
            os._exit(0)
        try:
            jax.block_until_ready(step({"w": jnp.ones((100, 100))}))
        except jax.errors.JaxRuntimeError as error:
            last = str(error).strip().splitlines()[-1]
            check(i == 3 and "LaconicError: " in last and "rank 1" in last, f"JAX's error ends with: {last}")
            check(averager.last_error is not None and str(averager.last_error) in last, "last_error has it")
            try:
                averager({"w": jnp.ones((100, 100))})
            except laconic.LaconicError as again:
                check(str(again) == str(averager.last_error), "the next call fails with it")
                sys.stdout.flush()
                os._exit(0)


def guide_of_rank(runs):
    """The page's first run: all of its blocks. The second: the program and its resume."""
    import jax
    import numpy

    import laconic

    if runs == "first":
        found = run_page("jax.md")
        averager = found[0]["average"].averager
    else:
        whole = {"__name__": "guide"}
        resume, = (block for block in blocks("jax.md") if "checkpoint.exists()" in block)
        for block in (blocks("jax.md")[0], resume):
            exec(compile(block, "jax.md", "exec"), whole)
        found, averager = [whole], whole["average"].averager
        check(averager.flat.step == 150, "the guide's second run continues after 100 steps")
    for names in found:
        for tree in ("params", "grads", "train_state"):
            if tree in names:
                averager.flat.compare([numpy.asarray(leaf) for leaf in jax.tree_util.tree_leaves(names[tree])], tree)
    check(isinstance(averager, laconic.jax.Averager), f"the guide's {runs} run: ranks are equal, bit for bit")


def guide():
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder, "train.py")
        train.write_text(blocks("jax.md")[0])
        for runs in ("first", "second"):
            say(torchrun(__file__, "guide", runs, cwd=folder, JAX_PLATFORMS="cpu"))
        address = f"127.0.0.1:{free_port()}"
        for how, output in (("variables set by hand", "\n".join(by_hand(train, per_rank=variables(), JAX_PLATFORMS="cpu"))),
                            ("laconic lab", lab(train, JAX_PLATFORMS="cpu")), ("one process", start(train, JAX_PLATFORMS="cpu"))):
            check(re.findall(r"rank (\d): [\d.]+ : 1", output) in (["0", "1"], ["1", "0"], ["0"]), f"the guide's program by {how}")
        say("\n".join(by_hand(__file__, "distributed", address, per_rank=lambda rank: {"OF_SLURM": str(rank)}, JAX_PLATFORMS="cpu")))


def distributed_rank(address):
    """As Slurm's processes are, which initialize() without arguments finds."""
    import jax

    jax.distributed.initialize(address, 2, int(os.environ["OF_SLURM"]))
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import laconic

    averager = laconic.jax.Averager("none", {"w": jax.numpy.zeros(5000)})
    mean = averager({"w": jax.numpy.full(5000, float(averager.rank))})["w"]
    check((averager.world, float(mean[0])) == (2, 0.5), "jax.distributed: the processes that it has started")
    everywhere = NamedSharding(Mesh(numpy.array(jax.devices()), "p"), PartitionSpec("p"))
    sharded = jax.make_array_from_process_local_data(everywhere, numpy.zeros(50, "float32"))
    for what, call in (("parameters", lambda: laconic.jax.Averager("none", {"w": sharded})), ("gradients", lambda: of_100({"w": sharded}))):
        of_100 = laconic.jax.Averager("none", {"w": jax.numpy.zeros(100)})
        try:
            call()
        except laconic.LaconicError as error:
            check("['w'] is sharded over processes" in str(error), f"{what} sharded over processes are refused: {error}")
        else:
            check(False, f"{what} sharded over processes are refused")


def say(output):
    print("\n".join(dict.fromkeys(line[line.index("ok: "):] for line in output.splitlines() if "ok: " in line)), flush=True)


def example():
    def ranks(output):
        return re.findall(r"rank \d of \d: accuracy ([\d.]+), weights ([0-9a-f]+), ([\d.]+) : 1", output)

    (alone,), together = ranks(start(EXAMPLE)), ranks(torchrun(EXAMPLE))
    check(float(alone[0]) > 0.95 and float(together[0][0]) >= float(alone[0]) - 0.01, f"accuracy {alone[0]} alone, {together[0][0]} on two ranks")
    check(len(together) == 2 and together[0][:2] == together[1][:2] and float(together[0][2]) > 5, f"replicas are equal bit for bit, {together[0][2]} : 1")


if __name__ == "__main__":
    if "RANK" in os.environ:
        {"whole": rank_of_job, "dying": dying_rank, "guide": guide_of_rank}[sys.argv[1]](*sys.argv[2:])
    elif "OF_SLURM" in os.environ:
        distributed_rank(sys.argv[2])
    else:
        example()
        guide()
        for what in ("whole", "dying"):
            say(torchrun(__file__, what, seconds=400, JAX_PLATFORMS="cpu"))
