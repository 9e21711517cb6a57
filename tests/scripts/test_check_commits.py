# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/check_commits in repositories of a few commits."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_commits"
NOBODY = {**os.environ, "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@n", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@n",
          "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, env=NOBODY, capture_output=True, text=True, check=True).stdout.strip()


def with_script(folder):
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "scripts")
    return folder


def commit(folder, *subjects):
    for subject in subjects:
        git(folder, "commit", "-q", "--allow-empty", "-m", subject)


def check(folder, *words):
    done = subprocess.run([folder / "scripts" / "check_commits", *words], env=NOBODY, capture_output=True, text=True)
    return done.returncode, [line.partition(" ")[2] for line in done.stdout.splitlines()]


@pytest.fixture
def repository(tmp_path):
    folder = with_script(tmp_path / "repository")
    git(folder, "init", "-q")
    git(folder, "add", "scripts")
    commit(folder, "history that follows no rule")
    git(folder, "tag", "since")
    return folder


def test_good_subjects_pass(repository):
    commit(repository, "Docs: wrap pages", "C ABI, tests: add a call", "Tests: " + "x" * 65, 'Revert "' + "x" * 70 + '"')
    git(repository, "checkout", "-q", "-b", "side", "HEAD~1")
    commit(repository, "Side: add a commit")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge of a branch", "@{-1}")
    assert check(repository, "since") == (0, [])


@pytest.mark.parametrize(("subject", "words"), [
    ("wrap pages", "does not begin with an area"), ("docs: wrap pages", "does not begin with an area"),
    ("Docs:", "does not begin with an area"), ("Docs: wrap pages.", "ends with a full stop"),
    ("Tests: " + "x" * 66, "73 characters, at most 72")])
def test_bad_subject_is_named(repository, subject, words):
    commit(repository, subject, "Docs: wrap pages")
    status, (found,) = check(repository, "since")
    assert status == 1 and f"'{subject}': {words}" in found


def test_shallow_clone_is_checked_as_far_as_it_goes(repository, tmp_path):
    commit(repository, "bad but not cloned", "Docs: wrap pages", "bad and cloned")
    git(tmp_path, "clone", "-q", "--no-tags", "--depth=2", repository.as_uri(), "clone")
    status, (found,) = check(tmp_path / "clone", git(repository, "rev-parse", "since"))
    assert status == 1 and "bad and cloned" in found


def test_unrelated_repository_has_nothing_to_check(repository):
    commit(repository, "bad")
    assert check(repository, "0" * 40) == (0, [])


def test_unpacked_archive_has_nothing_to_check(repository, tmp_path):
    assert check(with_script(tmp_path / "archive")) == (0, [])
    commit(repository, "bad")
    assert check(with_script(repository / "archive"), "since") == (0, [])
