# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""For tests that train: what they need, or a skip that says what is missing."""

import os
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("LACONIC_BUILD", Path(__file__).resolve().parents[2] / "build" / "release"))


def needs_models():
    """torch, and scikit-learn for the digits. Gives torch."""
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    return pytest.importorskip("torch", reason="models are torch's")


def needs(variable: str, place: str) -> str:
    """A file of the build under test, or of the variable."""
    path = os.environ.get(variable, BUILD / place)
    if not Path(path).exists():
        pytest.skip(f"not built: {path}")
    return str(path)


def needs_library(monkeypatch) -> None:
    needs_models()
    monkeypatch.setenv("LACONIC_LIBRARY", needs("LACONIC_LIBRARY", "lib/liblaconic.so"))
