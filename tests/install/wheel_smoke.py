# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Run inside an environment that holds nothing but the laconic wheel."""

import importlib.metadata
import importlib.util
import re
import sys

for absent in ("torch", "numpy"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is here, so this proves nothing"

import laconic  # noqa: E402

assert "site-packages" in laconic.__file__, laconic.__file__
assert not {"torch", "numpy"} & set(sys.modules)
assert laconic.Codec("none").max_frame_bytes((10, 10)) >= 400
assert "none" in laconic.codecs()
shown = re.findall(r"\]\((\S+)\)", importlib.metadata.metadata("laconic").get_payload())
assert len(shown) > 30 and all(target.startswith("https://") for target in shown), shown
print(f"Python: laconic {laconic.__version__} without torch and numpy")
