#!/usr/bin/env python3
# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Make an environment that holds exactly what `pip install REQUIREMENT...` would bring, without downloading.

usage: tests/install/exact_env.py [--wheel FILE] VENV REQUIREMENT...

Packages are symlinks to those of the interpreter that runs this; which ones follows from their metadata, markers
evaluated, as pip would do it. There is no pip inside. `laconic[torch]` means this checkout, or the wheel with --wheel.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections import deque
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """#!{python}
import sys
from {module} import {function}
sys.exit({attribute}())
"""


def of_checkout():
    """laconic's Requires-Dist lines, as a wheel of this checkout would have them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].items()
    return [*project["dependencies"], *(f'{need} ; extra == "{extra}"' for extra, needs in extras for need in needs)]


def of_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []


def needs_of(name, extras, of_laconic):
    lines = of_laconic if name == "laconic" else metadata.requires(name) or ()
    for need in map(Requirement, lines):
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            yield need


def closure(wanted, of_laconic):
    """The names of all distributions that `wanted` brings. SystemExit where one is not installed here, or does not fit."""
    done, todo = set(), deque(map(Requirement, wanted))
    while todo:
        need = todo.popleft()
        name = canonicalize_name(need.name)
        if (name, frozenset(need.extras)) in done:
            continue
        done.add((name, frozenset(need.extras)))
        if name != "laconic":
            try:
                version = metadata.version(name)
            except metadata.PackageNotFoundError:
                raise SystemExit(f"{need} is wanted and not installed for {sys.executable}: scripts/bootstrap") from None
            if not need.specifier.contains(version, prereleases=True):
                raise SystemExit(f"{need} is wanted, {name} is {version} here: scripts/bootstrap")
        todo.extend(needs_of(name, need.extras, of_laconic))
    return {name for name, _ in done}


def entries(distribution):
    """Packages that a distribution put into the top of site-packages: {name: where it is}."""
    found = {}
    for file in distribution.files:
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not file.is_absolute():
            found[top] = Path(distribution.locate_file(top))
    return found


def link(names, site, scripts):
    """Links the distributions, all or nothing of each, and writes their commands."""
    owners = {}
    for distribution in metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"])
        for top, where in entries(distribution).items():
            owners.setdefault(where, set()).add(name)
            if name in names and not (site / top).is_symlink():
                (site / top).symlink_to(where)
        if name in names:
            write_commands(distribution, scripts)
    for where, having in owners.items():
        if having & names and having - names:
            raise SystemExit(f"{where} is shared by {', '.join(sorted(having))}, of which not all are wanted")


def write_commands(distribution, scripts):
    for point in distribution.entry_points.select(group="console_scripts"):
        path = scripts / point.name
        function = point.attr.partition(".")[0]
        path.write_text(SCRIPT.format(python=scripts / "python", module=point.module, function=function, attribute=point.attr),
                        encoding="utf-8")
        path.chmod(0o755)


def make(folder, wanted, wheel):
    """The names in the new environment, sorted."""
    names = closure(wanted, of_wheel(wheel) if wheel else of_checkout())
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        raise SystemExit(f"{folder} is there and no environment")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    [site] = (folder / "lib").glob("python3.*/site-packages")
    link(names - {"laconic"}, site, folder / "bin")
    if wheel:
        subprocess.run([sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--no-index",
                        "--no-deps", "--disable-pip-version-check", wheel], check=True)
    elif "laconic" in names:
        (site / "laconic-checkout.pth").write_text(f"{ROOT / 'python'}\n", encoding="utf-8")
    return sorted(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="install laconic from it")
    parser.add_argument("venv", type=Path)
    parser.add_argument("requirement", nargs="+")
    options = parser.parse_args()
    names = make(Path(os.path.abspath(options.venv)), options.requirement, options.wheel)
    print(f"{options.venv}: {', '.join(names)}")


if __name__ == "__main__":
    main()
