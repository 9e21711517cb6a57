# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Bytes in, bytes out: every codec through Codec, Frame and Residual, with and without NumPy and torch."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

import laconic  # noqa: E402

SPECS = ["none", "fp16", "bf16", "int8", "int8:round=stochastic+ef", "topk", "randomk:ratio=0.05", "sidco:ratio=0.01", "3lc",
         "3lc:s=1.75,scale=chunk", "powersgd:rank=2"]
FEEDBACK = [s for s in SPECS if laconic.Codec(s).feedback]
# Largest error of a feedback-free codec, as a share of the largest magnitude: half a unit in the last place.
TOLERANCE = {"none": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 0.5 / 127}
SHAPE = (96, 130)


def gradient(shape=SHAPE, step=0):
    return np.random.default_rng(step).standard_normal(shape, dtype=np.float32)


def as_kind(x, kind):
    """(array to encode, its values as float32)"""
    package, dtype = kind.split(".")
    if package == "numpy":
        array = x.astype(dtype)
        return array, array.astype(np.float32)
    torch = pytest.importorskip("torch")
    array = torch.from_numpy(x).to(getattr(torch, dtype))
    return array, array.float().numpy()


KINDS = ["numpy.float32", "numpy.float16", "torch.float32", "torch.float16", "torch.bfloat16"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", SPECS)
def test_decoded_plus_residual_equals_input(spec, kind):
    codec = laconic.Codec(spec)
    array, values = as_kind(gradient(), kind)
    residual = laconic.Residual(values.size) if codec.feedback else None
    frame = codec.encode(array, residual=residual)
    assert len(frame) <= codec.max_frame_bytes(SHAPE)
    decoded = codec.decode(frame, out=np.empty(SHAPE, dtype=np.float32))
    if codec.feedback:
        kept = residual.numpy().reshape(SHAPE)
        np.testing.assert_allclose(decoded + kept, values, atol=1e-5 * np.abs(values).max())
        assert 0 < residual.norm() < 1.001 * np.linalg.norm(values)
    else:
        assert np.abs(decoded - values).max() <= TOLERANCE[codec.name] * np.abs(values).max()


@pytest.mark.parametrize("spec", SPECS)
def test_decode_returns_new_array_of_encoder_type(spec):
    codec = laconic.Codec(spec)
    for kind, dtype in (("numpy.float32", np.float32), ("numpy.float16", np.float16), ("torch.bfloat16", np.float32)):
        decoded = codec.decode(codec.encode(as_kind(gradient(), kind)[0]))
        assert decoded.shape == SHAPE and decoded.dtype == dtype
    assert codec.decode(codec.encode(gradient(1000))).shape == (1000,)
    assert codec.decode(codec.encode(gradient((4, 5, 6)))).shape == (4, 30)
    assert codec.decode(codec.encode(gradient(0))).shape == (0,)


@pytest.mark.parametrize("spec", SPECS)
def test_no_frame_outgrows_its_bound(spec):
    codec = laconic.Codec(spec)
    for shape in (0, 1, 2, 63, 64, 1000, (1, 7), (33, 65), (300, 300)):
        for values in (gradient(shape), np.ones(shape, np.float32), np.full(shape, 1e30, np.float32)):
            assert len(codec.encode(values)) <= codec.max_frame_bytes(shape)


@pytest.mark.parametrize("spec", SPECS)
def test_decode_add_adds_to_array(spec):
    codec = laconic.Codec(spec)
    frame = codec.encode(gradient())
    decoded, base = codec.decode(frame), gradient(step=1)
    out = base.copy()
    assert codec.decode_add(frame, out, weight=0.5) is out
    np.testing.assert_array_equal(out, base + np.float32(0.5) * decoded)


@pytest.mark.parametrize("spec", SPECS)
def test_frame_describes_itself(spec):
    codec = laconic.Codec(spec)
    frame = laconic.Frame.parse(codec.encode(gradient(), step=7, seed=11, rank=2, world=4))
    assert frame.spec == codec.spec and frame.codec == codec.name
    assert (frame.count, frame.shape2d, frame.dtype) == (SHAPE[0] * SHAPE[1], SHAPE, "float32")
    assert (frame.step, frame.seed, frame.rank, frame.world, frame.contributors) == (7, 11, 2, 4, 1)
    assert 0 < len(frame.payload) < codec.max_frame_bytes(SHAPE)
    assert codec.spec in repr(frame)


@pytest.mark.parametrize("spec", FEEDBACK)
def test_saved_residual_continues_bit_for_bit(spec):
    codec = laconic.Codec(spec)

    def frames(residual, steps):
        return [codec.encode(gradient(step=s), step=s, residual=residual) for s in steps]

    straight = frames(laconic.Residual(SHAPE[0] * SHAPE[1]), range(6))
    first, second = laconic.Residual(SHAPE[0] * SHAPE[1]), laconic.Residual(SHAPE[0] * SHAPE[1])
    before = frames(first, range(3))
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    assert second.norm() == first.norm() > 0
    assert before + frames(second, range(3, 6)) == straight


def test_residual_of_other_tensor_or_version_is_refused():
    residual = laconic.Residual(10)
    for state, name in (({**laconic.Residual(11).state_dict()}, "state_model"),
                        ({**laconic.Residual(10).state_dict(), "version": 2}, "state_version")):
        with pytest.raises(laconic.LaconicError) as error:
            residual.load_state_dict(state)
        assert error.value.name == name
    with pytest.raises(laconic.LaconicError):
        laconic.Residual(-1)
    with pytest.raises(laconic.LaconicError):  # a residual of another size than the tensor's
        laconic.Codec("topk").encode(gradient(9), residual=residual)


def test_residual_is_a_view():
    residual = laconic.Residual(3)
    residual.view()[1] = 2.5
    residual.numpy()[2] = -6.0
    assert list(residual.view()) == [0, 2.5, -6.0] and residual.norm() == 6.5
    view = residual.numpy()
    del residual
    assert view[2] == -6.0  # the view keeps the memory


def test_norm_is_summed_in_double():
    residual = laconic.Residual(1 << 20)
    residual.numpy()[:] = 1e30  # squares leave float32
    assert residual.norm() == pytest.approx(1e30 * 1024, rel=1e-6)


# Once a decoder gave other bytes for the same frame at these sizes and sparsities.
@pytest.mark.parametrize("count", [262144, 300001])
@pytest.mark.parametrize("spec", ["3lc:s=1.75", "3lc:s=1.9", "3lc:s=1.75,scale=chunk", "3lc:s=1.9,scale=chunk", "topk:ratio=0.001",
                                  "sidco:ratio=0.001"])
def test_decoding_is_repeatable_over_many_steps(spec, count):
    codec, threaded = laconic.Codec(spec), laconic.Codec(spec, threads=2)
    residual, other = laconic.Residual(count), laconic.Residual(count)
    values = gradient(count)
    first, again, added = (np.empty(count, np.float32) for _ in range(3))
    for step in range(40):
        values = np.roll(values, 977)
        frame = codec.encode(values, step=step, residual=residual)
        assert threaded.encode(values, step=step, residual=other) == frame
        codec.decode(frame, out=first)
        again[:] = np.nan
        threaded.decode(frame, out=again)
        assert first.tobytes() == again.tobytes(), step
        added[:] = 0
        codec.decode_add(frame, added)
        np.testing.assert_array_equal(first, added)
    np.testing.assert_array_equal(residual.numpy(), other.numpy())


def test_codec_is_shared_between_threads():
    codec = laconic.Codec("3lc:s=1.5")
    arrays = [gradient(50000, step=s) for s in range(8)]
    alone = [codec.encode(a) for a in arrays]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(codec.encode, arrays * 4)) == alone * 4


def test_list_of_codecs_is_complete():
    listing = laconic.codecs()
    assert {"none", "fp16", "bf16", "int8", "topk", "randomk", "sidco", "3lc", "powersgd"} <= listing.keys()
    for name, entry in listing.items():
        assert entry["summary"] and isinstance(entry["params"], list)
        assert entry["class"] in {"quantization", "sparsification", "hybrid", "low-rank", "cast", "none"}
        assert entry["contract"].keys() >= {"merge", "feedback", "exact_size", "unbiased", "memory_default", "memories"}
        assert entry["contract"]["memory_default"] in entry["contract"]["memories"]
        for p in entry["params"]:
            assert p.keys() >= {"name", "type", "default", "help"}
        assert laconic.Codec(name).spec == name


# ---- what is refused ----

def refused(call, *names):
    with pytest.raises(laconic.LaconicError) as caught:
        call()
    error = caught.value
    assert error.name in names, error
    assert error.code > 0 and error.message
    return error


@pytest.mark.parametrize("codec", [laconic.Codec("3lc"), laconic.Codec("topk")])
def test_unsuitable_arrays_are_refused(codec):
    torch = pytest.importorskip("torch")
    frame, x = codec.encode(gradient()), gradient()
    read_only = x.copy()
    read_only.flags.writeable = False
    codec.encode(read_only)  # to read is fine
    for array, name in ((x.T, "invalid_argument"), (x[:, ::2], "invalid_argument"), (x.astype(np.float64), "dtype_unsupported"),
                        (x.astype(np.int32), "dtype_unsupported"), (torch.zeros(4, 6).t(), "invalid_argument"),
                        (torch.zeros(4, dtype=torch.int64), "dtype_unsupported"), ([1.0], "invalid_argument"),
                        ("text", "invalid_argument"), (torch.zeros(4, device="meta"), "unsupported")):
        error = refused(lambda array=array: codec.encode(array), name)
        assert error.hint, error
        refused(lambda array=array: codec.decode_add(frame, array), name)
    before = read_only.copy()
    assert "read-only" in refused(lambda: codec.decode_add(frame, read_only), "invalid_argument").message
    np.testing.assert_array_equal(read_only, before)
    for wrong in (np.zeros(SHAPE[0] * SHAPE[1] - 1, np.float32), np.zeros(0, np.float32), np.zeros((SHAPE[0] + 1, SHAPE[1]), np.float32)):
        refused(lambda wrong=wrong: codec.decode_add(frame, wrong), "frame_count", "shape_unsupported", "invalid_argument")


def test_unsuitable_arrays_are_refused_without_numpy():
    import array

    codec = laconic.Codec("3lc")
    floats = array.array("f", range(100))
    frame = codec.encode(floats)
    assert frame == codec.encode(np.arange(100, dtype=np.float32)) == codec.encode(memoryview(bytes(floats)).cast("f"))
    for wrong, name in ((array.array("d", [1]), "dtype_unsupported"), (b"abcd", "dtype_unsupported"),
                        (memoryview(floats)[::2], "invalid_argument")):
        assert refused(lambda wrong=wrong: codec.encode(wrong), name).hint
    assert "read-only" in refused(lambda: codec.decode_add(frame, memoryview(bytes(400)).cast("f")), "invalid_argument").message


FRAME_ERRORS = {"frame_truncated", "frame_extended", "frame_magic", "frame_version", "frame_field", "frame_checksum", "frame_codec",
                "frame_count", "payload_malformed", "bound_exceeded"}


@pytest.mark.parametrize("spec", SPECS)
def test_damaged_frames_are_numbered_errors_and_change_nothing(spec):
    codec = laconic.Codec(spec)
    frame = codec.encode(gradient((9, 30)))
    out = gradient((9, 30), step=1)
    before = out.copy()

    def each(damaged, *names):
        error = refused(lambda: codec.decode_add(damaged, out), *names)
        assert 20 <= error.code <= 29
        refused(lambda: laconic.Frame.parse(damaged), *names)

    for length in [*range(0, min(len(frame), 160)), len(frame) - 1]:
        each(frame[:length], *FRAME_ERRORS)
    each(frame + b"\0", "frame_extended")
    for position in range(0, len(frame), max(len(frame) // 150, 1)):
        flipped = bytearray(frame)
        flipped[position] ^= 1 << (position % 8)
        each(flipped, *FRAME_ERRORS)
    np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("spec", SPECS)
def test_frame_of_another_codec_is_refused(spec):
    other = laconic.Codec("none" if spec != "none" else "topk")
    error = refused(lambda: other.decode(laconic.Codec(spec).encode(gradient())), "frame_codec")
    assert error.code == 26


@pytest.mark.parametrize("spec", FEEDBACK)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_input_changes_nothing(spec, value):
    codec = laconic.Codec(spec)
    residual = laconic.Residual(SHAPE[0] * SHAPE[1])
    codec.encode(gradient(), residual=residual)
    before = residual.numpy().copy()
    bad = gradient(step=1)
    bad[40, 3] = value
    assert refused(lambda: codec.encode(bad, residual=residual), "non_finite").code == 40
    np.testing.assert_array_equal(residual.numpy(), before)


@pytest.mark.parametrize("call", [
    lambda c: laconic.Codec("topk", threads=-1), lambda c: laconic.Codec("topk", threads=2**32), lambda c: laconic.Codec("topk", threads=1.0),
    lambda c: laconic.Codec("topk", threads=1025), lambda c: laconic.Codec(None), lambda c: laconic.Codec("topk\0"),
    lambda c: c.encode(gradient(9), rank=-1), lambda c: c.encode(gradient(9), rank=2**32, world=2**32 + 1),
    lambda c: c.encode(gradient(9), world=2**32), lambda c: c.encode(gradient(9), world=0), lambda c: c.encode(gradient(9), seed=2**64),
    lambda c: c.encode(gradient(9), seed=-1), lambda c: c.encode(gradient(9), step=2**64), lambda c: c.encode(gradient(9), step=1.5),
    lambda c: c.max_frame_bytes(-1), lambda c: c.max_frame_bytes((2**32, 2**32, 2**32)), lambda c: c.max_frame_bytes((4, -4)),
    lambda c: c.max_frame_bytes("9"), lambda c: c.decode(c.encode(gradient(9)), max_elements=-1),
    lambda c: c.decode_add(c.encode(gradient(9)), np.zeros(9, np.float32), weight="one"),
    lambda c: c.decode_add(c.encode(gradient(9)), np.zeros(9, np.float32), weight=1e39),
    lambda c: laconic.Residual(-1), lambda c: laconic.Residual(2**64), lambda c: laconic.Residual(2.5), lambda c: laconic.Residual("9"),
])
def test_numbers_that_would_wrap_are_refused(call):
    error = refused(lambda: call(laconic.Codec("topk")), "invalid_argument")
    assert error.code == 1 and error.hint


@pytest.mark.parametrize("frame", ["text", None, 7, [1, 2], np.zeros((4, 4), np.uint8).T[1:]])
def test_non_bytes_frames_are_refused(frame):
    for call in (laconic.Codec("topk").decode, laconic.Frame.parse):
        refused(lambda call=call: call(frame), "invalid_argument")


def test_empty_array_is_a_truncated_frame():
    for frame in (b"", np.zeros(0, np.uint8), bytearray()):
        refused(lambda frame=frame: laconic.Frame.parse(frame), "frame_truncated")


# The first 96 bytes of XXH3's secret.
SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
                       "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c34")


def checksum(frame: bytes) -> bytes:
    """XXH3-64 of a frame without payload, 65 to 96 bytes after offset 16 (FRAME.md, section 1)."""
    data, seed, mask = frame[16:], int.from_bytes(frame[:8], "little"), 2**64 - 1
    assert 64 < len(data) <= 96

    def word(source, at):
        return int.from_bytes(source[at : at + 8], "little")

    total = len(data) * 0x9E3779B185EBCA87
    for at, secret in ((32, 64), (-48, 80), (16, 32), (-32, 48), (0, 0), (-16, 16)):
        at %= len(data)
        product = ((word(data, at) ^ (word(SECRET, secret) + seed & mask))
                   * (word(data, at + 8) ^ (word(SECRET, secret + 8) - seed & mask)))
        total += (product & mask) ^ (product >> 64)
    total &= mask
    total = (total ^ (total >> 37)) * 0x165667919E3779F9 & mask
    return (total ^ (total >> 32)).to_bytes(8, "little")


def claims(rows, cols):
    """The codec, and a frame of 104 bytes: rows x cols zeros, which take no payload."""
    codec = laconic.Codec("topk")
    frame = bytearray(codec.encode(np.zeros((3, 5), np.float32)))
    assert len(frame) == 104 and frame[8:16] == checksum(frame)
    frame[24:48] = b"".join(n.to_bytes(8, "little") for n in (rows * cols, rows, cols))
    frame[8:16] = checksum(frame)
    return codec, bytes(frame)


def test_header_alone_allocates_nothing():
    codec, frame = claims(2**20, 2**20)
    parsed = laconic.Frame.parse(frame)
    assert parsed.count == 2**40
    error = refused(lambda: codec.decode(frame), "bound_exceeded")
    assert error.code == 29 and "1048576 x 1048576" in error.message and "max_elements" in error.hint
    whole = codec.encode(gradient((3, 5)))
    refused(lambda: codec.decode(whole, max_elements=14), "bound_exceeded")
    assert codec.decode(whole, max_elements=15).shape == (3, 5)


@pytest.mark.parametrize(("rows", "cols"), [(2**63, 0), (0, 2**63), (2**62, 0), (2**64 - 1, 0)])
def test_empty_tensor_that_numpy_lacks_is_refused(rows, cols):
    codec, frame = claims(rows, cols)
    error = refused(lambda: codec.decode(frame), "shape_unsupported")
    assert f"{rows} x {cols}" in error.message


def test_out_of_memory_is_laconic_error(monkeypatch):
    codec, frame = claims(2**20, 2**20)

    def empty(*arguments, **keywords):
        raise MemoryError("the test has no memory")

    monkeypatch.setattr(np, "empty", empty)
    error = refused(lambda: codec.decode(frame, max_elements=2**40), "out_of_memory")
    assert error.code == 100 and "the test has no memory" in error.message
    refused(lambda: laconic.Residual(2**60), "out_of_memory", "shape_unsupported", "invalid_argument")


GOOD_STATE = {"version": 1, "residual": np.ones(10, np.float32), "state": np.zeros(0, np.float32)}


@pytest.mark.parametrize(("change", "name"), [
    (None, "state_corrupt"), ({"version": 2}, "state_version"), ({"version": True}, "state_corrupt"), ({"version": "1"}, "state_corrupt"),
    ({"residual": np.full(10, np.nan, np.float32)}, "state_corrupt"), ({"residual": np.full(10, np.inf, np.float32)}, "state_corrupt"),
    ({"residual": np.ones(10)}, "state_corrupt"), ({"residual": np.ones(10, np.float16)}, "state_corrupt"),
    ({"residual": np.ones((2, 5), np.float32)}, "state_corrupt"), ({"residual": None}, "state_corrupt"), ({"residual": "ten"}, "state_corrupt"),
    ({"residual": np.ones(11, np.float32)}, "state_model"), ({"state": np.full(3, np.nan, np.float32)}, "state_corrupt"),
    ({"state": [1.0]}, "state_corrupt"), ({"more": 1}, "state_corrupt"), ("residual", "state_corrupt"), ("state", "state_corrupt")])
def test_damaged_residual_is_refused_and_changes_nothing(change, name):
    residual = laconic.Residual(10)
    laconic.Codec("powersgd:rank=2").encode(gradient(10), residual=residual)
    before = pickle.dumps(residual.state_dict())
    state = dict(GOOD_STATE)
    if isinstance(change, str):
        del state[change]
    elif change is None:
        state = None
    else:
        state.update(change)
    refused(lambda: residual.load_state_dict(state), name)
    assert pickle.dumps(residual.state_dict()) == before


def test_ranks_outside_the_world_are_refused():
    refused(lambda: laconic.Codec("topk").encode(gradient(), rank=2, world=2), "invalid_argument")


# ---- neither torch nor NumPy ----

BARE = r"""
import array, math, sys


class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "torch"):
            raise ImportError(name + " is blocked")


sys.meta_path.insert(0, Block())
import laconic

values = array.array("f", [math.sin(0.37 * i) for i in range(2000)])
for spec in ("none", "fp16", "bf16", "int8", "topk", "randomk", "sidco:ratio=0.01", "3lc", "powersgd"):
    codec = laconic.Codec(spec)
    residual = laconic.Residual(2000)
    frame = codec.encode(values, residual=residual if codec.feedback else None)
    decoded = codec.decode(frame)
    assert type(decoded) is array.array and len(decoded) == 2000
    if codec.feedback:
        assert all(abs(d + e - x) < 1e-5 for d, e, x in zip(decoded, residual.view(), values)), spec
    out = array.array("f", bytes(8000))
    codec.decode_add(frame, out, weight=2.0)
    assert all(y == 2 * x for x, y in zip(decoded, out)), spec
    copy = laconic.Residual(2000)
    copy.load_state_dict(residual.state_dict())
    assert copy.norm() == residual.norm()
    assert laconic.Frame.parse(frame).codec == codec.name
assert laconic.show_versions()["torch"] == "not imported"
assert not {"numpy", "torch"} & set(sys.modules)
print("bare")
"""


def test_codec_needs_neither_torch_nor_numpy():
    environment = {**os.environ, "PYTHONPATH": str(Path(laconic.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", BARE], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "bare\n"
