# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic rules, and that the command and Python take and refuse the same files."""

import json
import os
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "python")]

from test_cli import BAD_ANSWER, BINARY, FINE, USAGE, answer, failure, laconic  # noqa: E402

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

CALL = "3lc"
MODEL = {"embed.weight": [1000, 64], "encoder.0.weight": [64, 256], "encoder.0.bias": 256, "encoder.1.weight": [256, 64], "head": [64, 10]}


@pytest.fixture(scope="module")
def library():
    if not (BINARY.parents[1] / "lib" / "liblaconic.so").exists() and "LACONIC_LIB" not in os.environ:
        pytest.skip("liblaconic.so is not built")
    return pytest.importorskip("laconic.exchange.csession")


# ---- both readers ----

GOOD = {
    "nothing": b"",
    "a comment": b"# none yet\n",
    "an empty list": b"rule = []\n",
    "every key": b'[[rule]]\nmatch = "embed.*"\nspec = "topk:ratio=0.010"\ncontrol = "dc2:target=start"\nmin_elements = 1\n'
                 b"max_elements = 64_000\noptional = false\n",
    "the first that matches": b'[[rule]]\nmatch = "encoder.1.*"\nspec = "int8"\n\n[[rule]]\nmatch = "encoder.*"\nspec = "fp16"\n\n'
                              b'[[rule]]\nspec = "none"\n',
    "by size": b'[[rule]]\nmin_elements = 0x4000\nmax_elements = 16384\nspec = "onebit"\n[[rule]]\nmax_elements = 640\nspec = "none"\n',
    "one that may be left over": b'[[rule]]\nmatch = "branch.*"\noptional = true\nspec = "none"\n[[rule]]\nmatch = "head"\nspec = "fp16"\n',
    "the call's spec": b'[[rule]]\nmatch = "embed*"\ncontrol = "schedule:9=1.5"\n[[rule]]\nmatch = "head"\nspec = ""\n',
    "inline": b'rule = [{match = "head", spec = "int8"}, {spec = "none", match = "e*"},]',
    "strings of all kinds": b"[[rule]]\nmatch = '[eh]*'\n\"spec\" = \"fp\\u00316\"\ncontrol = \"\"\"\nfix\\\n   ed\"\"\"\n",
    "lines of Windows": b'[[rule]]\r\nmatch = "*"\r\nspec = "none"\r\n',
    "names beyond ASCII": '[[rule]]\nmatch = "größe*"\noptional = true\n'.encode(),
    "the largest number": b"[[rule]]\nmax_elements = 9223372036854775807\n",
    "many dots": b"# " + b"." * 4000 + b'\n[[rule]]\nmatch = "head"\n',
    "31 rules": b'[[rule]]\nmatch = "head"\noptional = true\n' * 31,
}
BAD = {
    "no table": (b"[[rule]\n", "line 1, column "),
    "one table": (b'[rule]\nmatch = "head"\n', "it has one [rule]"),
    "a dotted key": (b'rule.match = "head"\n', "it has one [rule]"),
    "a text": (b'rule = "head"\n', "it has one [rule]"),
    "keys beside": (b'spec = "topk"\nother = 1\n[[rule]]\n', "it has other, spec"),
    "no tables": (b"rule = [1]\n", "rule 1 is 1"),
    "a list in the list": (b'rule = [[{match = "head"}]]\n', "rule 1 is "),
    "a misspelt key": (b'[[rule]]\nmatch = "head"\n[[rule]]\nmach = "e*"\n', "rule 2 has the key 'mach'"),
    "a number for a text": (b"[[rule]]\nmatch = 3\n", "rule 1: match is 3"),
    "a text for a number": (b'[[rule]]\nmin_elements = "3"\n', "rule 1: min_elements is '3'"),
    "a fraction": (b"[[rule]]\nmax_elements = 1e3\n", "rule 1: max_elements is 1000"),
    "a flag for a number": (b"[[rule]]\nmin_elements = true\n", "rule 1: min_elements is "),
    "a number for a flag": (b"[[rule]]\noptional = 1\n", "rule 1: optional is 1"),
    "a date": (b"[[rule]]\nspec = 1979-05-27\n", "rule 1: spec is "),
    "a table for a text": (b'[[rule]]\n[rule.spec]\nname = "topk"\n', "rule 1: spec is "),
    "below zero": (b"[[rule]]\nmin_elements = -1\n", "min_elements is -1"),
    "no elements": (b"[[rule]]\nmax_elements = 0\n", "max_elements is 0"),
    "beyond 64 bits": (b"[[rule]]\nmax_elements = 9223372036854775808\n", "9223372036854775808"),
    "a NUL": (b'[[rule]]\nmatch = "a\\u0000"\n', "match is "),
    "no UTF-8": (b'[[rule]]\nmatch = "\xff"\n', ""),
    "a mark of the byte order": (b"\xef\xbb\xbf[[rule]]\n", "line 1, column 1"),
    "a key twice": (b'[[rule]]\nmatch = "a"\nmatch = "b"\n', "line 3"),
    "a table after the tables": (b"[[rule]]\n[rule]\n", "line 2"),
    "lines of old": (b'[[rule]]\rmatch = "head"\r', ""),
    "brackets without end": (b"rule = " + b"[" * 5000, ""),
    "a key of many parts": (b"a" + b".a" * 100000 + b" = 1\n", "it has more than 4096 dots"),
    "a table of many parts": (b"[a" + b".a" * 5000 + b"]\n", "it has more than 4096 dots"),
    # read by both, refused by the library
    "no glob": (b'[[rule]]\nmatch = "[a"\n', "[ without ]"),
    "an empty glob": (b'[[rule]]\nmatch = ""\n', "is empty"),
    "no codec": (b'[[rule]]\n[[rule]]\nmatch = "head"\nspec = "topq"\n', "rule 2: unknown codec 'topq'"),
    "no law": (b'[[rule]]\ncontrol = "dc3"\n', "unknown control 'dc3'"),
    "sizes the wrong way": (b"[[rule]]\nmin_elements = 2\nmax_elements = 1\n", "min_elements 2 is above max_elements 1"),
    "no parameter": (b'[[rule]]\nmatch = "branch.*"\nspec = "none"\n', "matches no parameter"),
    "hidden by another": (b'[[rule]]\n[[rule]]\nmatch = "head"\n', "rule 1 before it already matches 'head'"),
    "too many": (b"[[rule]]\noptional = true\n" * 32, "31"),
}


def whole(name):
    """In one word: pytest prints it as a part of the test's name."""
    return name.replace(" ", "_")


def elements(size):
    return size[0] * size[1] if isinstance(size, list) else size


def by_python(library, path):
    """For every rule, and for parameters that none takes: match, spec, control, parameters, elements; or the refusal."""
    from laconic.core.errors import LaconicError
    from laconic.exchange.rules import array_of, given

    try:
        rules = given(str(path))
        array_of(rules)
        parameters = [(name, size if isinstance(size, list) else [size]) for name, size in MODEL.items()]
        session = library.CSession(CALL, parameters, rank=0, world=2, seed=0, small_elements=0, strategy="auto", engine_sums=0, threads=1,
                                   rules=rules)
    except LaconicError as error:
        return str(error)
    settings = session.explain()["settings"]
    session.close()
    return [(s["rule"], s["spec"], s["control"], s["parameters"], s["elements"]) for s in settings]


def by_command(folder, path):
    (folder / "model.json").write_text(json.dumps(MODEL))
    done = laconic("rules", path, "--parameters", folder / "model.json", "--json")
    said = json.loads(done.stdout)
    if "error" in said:
        assert done.returncode == BAD_ANSWER
        return "{message} ({hint})".format(**said["error"])
    assert done.returncode == FINE
    last = {"match": "*", "spec": None, "control": None, **said["others"]}
    assert sorted(p for rule in [*said["rules"], last] for p in rule["parameters"]) == sorted(MODEL)
    return [(r["match"], r["spec"] or CALL, r["control"] or "fixed", len(r["parameters"]), r["elements"]) for r in [*said["rules"], last]]


@pytest.mark.parametrize("name", GOOD, ids=whole)
def test_file_gives_same_rules_to_python_and_command(library, tmp_path, name):
    from laconic.exchange.rules import given

    file = tmp_path / "rules.toml"
    file.write_bytes(GOOD[name])
    ours, theirs = by_command(tmp_path, file), by_python(library, file)
    assert isinstance(theirs, list), theirs
    assert ours == theirs
    written = [{"match": r.get("match", "*"), "min_elements": r.get("min_elements", 0), "max_elements": r.get("max_elements"),
                "optional": r.get("optional", False)} for r in given(str(file))]
    assert [{key: rule[key] for key in written[0]} for rule in answer("rules", file)["rules"]] == written


@pytest.mark.parametrize("name", BAD, ids=whole)
def test_bad_file_is_refused_by_python_and_command(library, tmp_path, name):
    text, said = BAD[name]
    file = tmp_path / "rules.toml"
    file.write_bytes(text)
    for refusal in (by_command(tmp_path, file), by_python(library, file)):
        assert isinstance(refusal, str) and said in refusal, refusal
    assert failure(BAD_ANSWER, "rules", file, "--parameters", "head:640")["message"].startswith(str(file))


def test_both_readers_agree_on_typing_errors(library, tmp_path):
    from laconic.core.errors import LaconicError
    from laconic.exchange.rules import array_of, given

    pieces = [b'"', b"'", b"\\", b"\n", b"\r\n", b"=", b"[", b"]", b"[[rule]]\n", b"{", b"}", b",", b"#", b"_", b"0", b"-", b".", b"true", b"1e3",
              b"\xff", b"\xc3\xa9", b" ", b"\t", b"\\u0041", b"\x00", b'spec="none"\n']
    draw = random.Random(1)
    file, kept = tmp_path / "rules.toml", 0
    for _ in range(150):
        text = bytearray(draw.choice(list(GOOD.values())))
        for _ in range(draw.randint(1, 3)):
            at = draw.randint(0, len(text))
            text[at : at + draw.choice([0, 0, 1, 2])] = draw.choice(pieces) if draw.random() < 0.7 else b""
        file.write_bytes(text)
        said = json.loads(laconic("rules", file, "--json").stdout)
        try:
            rules = given(str(file))
            array_of(rules)
        except LaconicError:
            assert "error" in said, bytes(text)
            continue
        kept += 1
        if "error" in said:  # by the library, after the reader
            assert any(f"rule {i + 1}" in said["error"]["message"] for i in range(len(rules))) or "rules exceed the limit" in said["error"]["message"], text
        else:
            assert [rule["match"] for rule in said["rules"]] == [rule.get("match", "*") for rule in rules], bytes(text)
    assert 20 < kept < 130


# ---- laconic rules ----


@pytest.fixture
def rules(tmp_path):
    file = tmp_path / "rules.toml"
    file.write_bytes(GOOD["the first that matches"])
    return file


def test_parameters_are_assigned_to_rules(rules, tmp_path):
    said = answer("rules", rules, "--parameters", "encoder.1.weight:16384,encoder.0.bias:256,head:640,a:b:7")
    assert [(rule["spec"], rule["parameters"], rule["elements"]) for rule in said["rules"]] == [
        ("int8", ["encoder.1.weight"], 16384), ("fp16", ["encoder.0.bias"], 256), ("none", ["head", "a:b"], 647)]
    assert said["others"] == {"parameters": [], "elements": 0}
    assert "others" not in answer("rules", rules)
    text = laconic("rules", rules, "--parameters", "encoder.1.weight:16384,encoder.0.bias:256,head:640").stdout
    table, parameters = ([line.split() for line in part.splitlines()] for part in text.strip().split("\n\n"))
    assert table[1] == ["1", "encoder.1.*", "any", "int8", "the", "call's", "1", "16384"]
    assert parameters[1:] == [["encoder.1.weight", "16384", "1", "int8"], ["encoder.0.bias", "256", "2", "fp16"], ["head", "640", "3", "none"]]


def test_parameters_match_explain(rules, tmp_path):
    file = tmp_path / "explained.json"
    file.write_text(json.dumps({"spec": "topk", "parameters": [{"name": name, "elements": elements(size), "codec": "topk"} for name, size in MODEL.items()]}))
    model = tmp_path / "model.json"
    model.write_text(json.dumps(MODEL))
    said = answer("rules", rules, "--parameters", file)
    assert said == answer("rules", rules, "--parameters", model)
    assert said["rules"][1]["parameters"] == ["encoder.0.weight", "encoder.0.bias"] and said["rules"][1]["elements"] == 16640


def test_repeated_name_has_its_last_shape(tmp_path):
    rules, model = tmp_path / "rules.toml", tmp_path / "model.json"
    rules.write_text('[[rule]]\nmatch = "*"\n')
    model.write_text('{"head": 1, "tail": [2, 3], "head": [4, 5]}')
    said = answer("rules", rules, "--parameters", model)
    assert said["rules"][0]["parameters"] == ["head", "tail"] and said["rules"][0]["elements"] == 26


@pytest.mark.parametrize(("words", "said"), [
    ("head", "'head' is not name:elements"),
    ("head:640,", "'' is not name:elements"),
    (":640", "':640' is not name:elements"),
    ("head:-1", "'head:-1' is not name:elements"),
    ("head:64x10", "'head:64x10' is not name:elements"),
    ("head:1099511627777", "is not name:elements"),
    ("head:1,head:2", "two parameters are named 'head'"),
    ("no/such.json", "no/such.json: cannot open"),
    ({"head": "640"}, "'head' is '\"640\"'"),
    ({"head": [64, -10]}, "'head' is '[64,-10]'"),
    ({"head": [1 << 20, 1 << 21]}, "'head' is "),
    ({"head": 1.5}, "'head' is '1.5'"),
    ({"head": [[640]]}, "'head' is a list of lists or objects"),
    ('{"head": ' + "[" * 200000 + "]" * 200000 + "}", "'head' is a list of lists or objects"),
    (["head"], "it is not an object"),
    ({"parameters": [{"name": "head"}]}, 'without "name" or "elements"'),
    ("{", "parse error at line 1"),
])
def test_invalid_parameters_are_refused(rules, tmp_path, words, said):
    if not isinstance(words, str) or words[:1] == "{":
        file = tmp_path / "model.json"
        file.write_text(words if isinstance(words, str) else json.dumps(words))
        words = file
    error = failure(USAGE, "rules", rules, "--parameters", words)
    assert said in error["message"] and ".json" in error["hint"]


def test_missing_file_is_usage_error(tmp_path):
    assert "cannot open" in failure(USAGE, "rules", tmp_path / "none.toml")["message"]
    assert "cannot read" in failure(USAGE, "rules", tmp_path)["message"]
