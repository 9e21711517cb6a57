# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The demo in miniature, its page, its failures; the transformer example on two ranks."""

import html.parser
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ["-m", "examples.demo.run"]
sys.path.insert(0, str(ROOT / "python/tests"))

from examples.demo import run as demo

MINIATURE = ["--workers", "2", "--specs", "none 3lc topk:ratio=0.01", "--rate", "200mbit", "--emulate", "--steps", "14",
             "--repeats", "1", "--slow-steps", "1", "--fast-steps", "2", "--pairs", "1", "--pair-steps", "2",
             "--target", "0.2"]
COLUMNS = ["exchange", "step (median)", "bytes a step, kernel", "bytes a step, Laconic", "steps to 20\u00a0%", "time to 20\u00a0%",
           "final accuracy", "× fp32 DDP", "× best uncompressed"]


def laconic_command():
    for found in (os.environ.get("LACONIC_BIN"), ROOT / "build/release/bin/laconic", shutil.which("laconic")):
        if found and os.access(found, os.X_OK):
            return str(found)
    pytest.skip("the laconic command is not built")


def run(*words, **kwargs):
    return subprocess.run([sys.executable, *RUN, *words], cwd=ROOT, capture_output=True, text=True, timeout=600, **kwargs)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    laconic_command()
    out = tmp_path_factory.mktemp("demo")
    done = run(*MINIATURE, "--out", str(out), "--publish", str(out / "published"))
    assert done.returncode == 0, done.stderr
    return out, done


class Attributes(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.fetched = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [(tag, k, v) for k, v in attributes if k in ("src", "href", "xlink:href", "srcset", "data")]


def test_table_has_its_columns_and_a_row_per_exchange(miniature):
    _, done = miniature
    lines = done.stdout.splitlines()
    head = next(line for line in lines if line.startswith("exchange"))
    assert re.split(r"\s{2,}", head.strip()) == COLUMNS
    for label in ("PyTorch DDP, fp32", "Laconic 3lc", "Laconic topk:ratio=0.01"):
        row = next(line for line in lines if line.startswith(label + "  "))
        assert len(re.split(r"\s{2,}", row.strip())) == len(COLUMNS)
    assert "Laconic none against plain DDP" in done.stdout
    assert "in all" in done.stdout


def test_progress_is_plain_lines_without_terminal(miniature):
    _, done = miniature
    assert "\r" not in done.stderr and "\033" not in done.stderr
    assert re.search(r"accuracy +1/4 +pytorch:ddp", done.stderr)


def test_page_fetches_nothing_and_supports_dark_mode(miniature):
    out, _ = miniature
    page = (out / "report.html").read_text()
    parser = Attributes()
    parser.feed(page)
    assert parser.fetched == []
    assert not {"script", "link", "img", "iframe"} & set(parser.tags)
    assert set(re.findall(r"https?://[^\"' )]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in page and "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert parser.tags.count("figure") >= 4


def test_emulated_runs_are_marked_in_tables_and_pictures(miniature):
    out, done = miniature
    page = (out / "report.html").read_text()
    assert "EMULATED" in done.stdout and "emulated: senders wait" in (out / "published/demo.md").read_text()
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert [c for c in captions if "emulated" not in c] == ["Over steps"]  # the only one without seconds or bytes
    assert "emulated" in (out / "published/demo.svg").read_text()


def test_bytes_and_parts_are_recorded_for_every_rank(miniature):
    out, _ = miniature
    result = json.loads((out / "results.json").read_text())
    assert len(result["ranks"]) == 2
    blocks = [block for rank in result["ranks"] for block in rank["blocks"] if block["spec"] == "3lc"]
    assert blocks
    for block in blocks:
        assert block["kernel_bytes"] is None  # no counters on an emulated link
        assert 0 < block["own"]["wire_bytes"] < 1_000_000
        assert block["own"]["encode_seconds"] > 0
    bounds = result["ranks"][1]["bounds"]
    assert [bound["spec"] for bound in bounds] == ["none", "3lc", "topk:ratio=0.01"]
    assert [bound["payload"] for bound in bounds] == [int(block["own"]["wire_bytes"]) for block in result["ranks"][0]["blocks"][1:]]
    assert [len(bound["times"]) for bound in bounds] == [3 if block["slow"] else 10 for block in result["ranks"][0]["blocks"][1:]]


def test_bytes_of_single_worker_are_drawn():
    from bench.lib import charts

    picture = charts.dots([("Laconic none", "laconic-0", 0.0, None)], "Bytes a step", "bytes")
    assert picture.startswith("<svg") and "circle" not in picture


def workers(plan, folder, world=2):
    """The result of a plan with forked workers of an emulated lab: each one's outcome, and the file that they leave."""
    pytest.importorskip("torch")
    from launches import launch

    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "said").mkdir()
    outcomes = launch(["-m", "examples.demo.worker", folder / "plan.json", folder / "result.json"], folder / "said", world=world, cwd=ROOT, LACONIC_LAB="emulated")
    return outcomes, folder / "result.json"


def test_failing_run_ends_with_its_message(tmp_path):
    """A worker's error for an exchange that does not exist, and what the demo reports when a lab brings it."""
    (failed,), _ = workers(demo.plan_of(demo.options(["--specs", "3lcc", "--steps", "1", "--workers", "1"])) | {"specs": ["3lcc"]}, tmp_path, world=1)
    said = failed.out.splitlines()[-1]
    assert failed.code == 1 and said.startswith('@demo {"error": ') and "3lc" in said
    lab = tmp_path / "laconic"
    lab.write_text(f"#!/bin/sh\ncat {tmp_path}/heard >&2\nexit 1\n")
    lab.chmod(0o755)
    (tmp_path / "heard").write_text(f"[0] {said}\n")
    done = run(*MINIATURE, "--out", str(tmp_path), "--workers", "1", env={**os.environ, "LACONIC_BIN": str(lab)})
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("demo: worker 0: ") and "3lc" in last
    assert not (tmp_path / "report.html").exists()


def test_wrong_rate_is_reported_before_anything_starts(tmp_path):
    done = run("--rate", "50furlongs", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "'50furlongs' is not a rate" in done.stderr


def processes_with(marker):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


@pytest.fixture
def short_path():
    """pytest's own can be too long for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


#: a torch in which no training ends
ENDLESS_TORCH = """
import time

print('@demo {"phase": "start", "done": 1, "total": 1, "text": "both are there"}', flush=True)
time.sleep(1000)
"""


def test_interrupted_demo_leaves_no_process(short_path):
    laconic_command()
    marker = short_path
    torch = pathlib.Path(marker, "torch.py")
    torch.write_text(ENDLESS_TORCH)
    environment = dict(os.environ, TMPDIR=marker, PYTHONPATH=marker)
    process = subprocess.Popen([sys.executable, *RUN, *MINIATURE, "--steps", "2000", "--out", marker], cwd=ROOT,
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment,
                               start_new_session=True,
                               # a background job of a shell hands on that SIGINT is ignored
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert "start" in process.stderr.readline() and "start" in process.stderr.readline()
    assert len(processes_with(marker)) >= 3  # this one, the workers
    os.killpg(process.pid, signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(60) == 130
    assert "interrupted" in said and "Traceback" not in said
    end = time.monotonic() + 20
    while processes_with(marker) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes_with(marker) == []


def test_transformer_learns_on_two_ranks(tmp_path):
    pytest.importorskip("torch")
    from launches import launch

    (tmp_path / "said").mkdir()
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog.\n" * 200)
    done, other = launch(["-m", "examples.tiny_gpt", "--compare", "3lc", "--text", text, "--steps", "6", "--every", "3"], tmp_path / "said", cwd=ROOT)
    assert done.code == other.code == 0, done.out + done.err
    losses = [float(x) for x in re.findall(r" 3lc  step +\d+  loss ([0-9.]+)", done.out)]
    assert len(losses) == 2 and losses[1] < losses[0]
    row = next(line for line in done.out.splitlines() if re.match(r" *3lc +[0-9.]+ ", line))
    assert float(re.search(r"1:([0-9.]+)", row)[1]) > 20
