# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The second decoder against the golden files: same errors, same fields, same bits."""

import json
import pathlib
import sys

import pytest

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))

import second_decoder  # noqa: E402
from xxh3 import xxh3_64  # noqa: E402

V1 = GOLDEN / "v1"
FRAMES = json.loads((V1 / "manifest.json").read_text(encoding="utf-8"))["frames"]
WITH_VALUES = [entry for entry in FRAMES if "values" in entry]


def name_of(entry):
    return pathlib.Path(entry["file"]).stem


def test_known_answers_of_xxh3():
    assert xxh3_64(b"") == 0x2D06800538D394C2
    assert xxh3_64(b"", 0x9E3779B185EBCA8D) == 0xA8A6B918B2F0364A


@pytest.mark.parametrize("entry", FRAMES, ids=name_of)
def test_header_matches(entry):
    data = (V1 / entry["file"]).read_bytes()
    if entry["errc"] != "ok":
        with pytest.raises(second_decoder.FrameError) as error:
            second_decoder.parse_frame(data)
        assert error.value.errc == entry["errc"]
        return
    found = vars(second_decoder.parse_frame(data))
    found["payload_bytes"] = len(found.pop("payload"))
    assert found == entry["fields"]


@pytest.mark.parametrize("entry", WITH_VALUES, ids=name_of)
def test_values_match(entry):
    name = second_decoder.parse_spec(entry["fields"]["spec"])[0]
    if name not in second_decoder.DECODERS:
        pytest.skip(f"no second decoder of {name} yet")
    values = second_decoder.decode((V1 / entry["file"]).read_bytes())
    assert second_decoder.f32_bits(values) == (V1 / entry["values"]).read_bytes()


@pytest.mark.parametrize("entry", [entry for entry in FRAMES if "payload" in entry], ids=name_of)
def test_refused_payloads_match(entry):
    with pytest.raises(second_decoder.FrameError) as error:
        second_decoder.decode((V1 / entry["file"]).read_bytes())
    assert error.value.errc == entry["payload"]


@pytest.mark.parametrize("entry", WITH_VALUES, ids=name_of)
def test_truncated_payloads_are_refused_or_decode(entry):
    """Never another exception than FrameError, whatever the payload's length."""
    data = (V1 / entry["file"]).read_bytes()
    frame = second_decoder.parse_frame(data)
    name, keys = second_decoder.parse_spec(frame.spec)
    if name not in second_decoder.DECODERS:
        pytest.skip(f"no second decoder of {name} yet")
    whole = frame.payload
    for length in {0, 1, len(whole) // 2, len(whole) - 1, len(whole) + 1}:
        frame.payload = (whole + b"\0")[: max(length, 0)]
        try:
            second_decoder.DECODERS[name][2](frame, keys)
        except second_decoder.FrameError:
            pass


AWKWARD = [-0.0, 0.0, 1.5, -1.5, 1e-40, -1e-42, 3.0e38, -2.0**-126, 65519.0, 0.1] * 13


@pytest.mark.parametrize("spec", ["none", "fp16", "bf16", "int8:block=16", "topk:ratio=0.3", "randomk:ratio=0.3",
                                  "sidco:ratio=0.1", "3lc", "3lc:zre=off,scale=chunk", "powersgd:rank=2"])
@pytest.mark.parametrize("shape", [(130, 1), (10, 13), (1, 1), (0, 1)])
def test_awkward_values_match(spec, shape):
    """Both decoders on frames that the library writes now: signs of zeros, denormals, the largest numbers."""
    numpy = pytest.importorskip("numpy")
    try:
        import laconic
    except RuntimeError as error:  # the library is not built
        pytest.skip(str(error))
    count = shape[0] * shape[1]
    values = numpy.array(AWKWARD[:count], dtype=numpy.float32).reshape(shape if shape[1] > 1 else count)
    codec = laconic.Codec(spec)
    frame = codec.encode(values, step=7, seed=3)
    assert second_decoder.f32_bits(second_decoder.decode(frame)) == codec.decode(frame).tobytes()
