# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Imports of python/laconic against ARCHITECTURE.md's table of packages: none leads upwards, none forms a cycle. The
same for bench/lib."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "laconic"
TOP = {"__init__", "run", "doctor", "selftest", "jax", "keras"}


def table():
    """Packages, each with those whose modules it may import."""
    rows = re.findall(r"^\| `(\w+)` \| (–|`\w+`(?:, `\w+`)*) \|", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.M)
    named = {room: re.findall(r"\w+", may) for room, may in rows}

    def below(room):
        return {room}.union(*(below(other) for other in named[room]))

    return {room: below(room) for room in named}


def imports(package):
    """Module -> modules of the package that it imports, also inside of a function."""
    files = {".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
             for path in sorted(package.rglob("*.py"))}
    found = {}
    for name, path in files.items():
        above = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = ".".join([*above[: len(above) + 1 - node.level], *filter(None, [node.module])]) if node.level else node.module
                named = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            for imported in named:
                module = imported if imported in files else imported.rpartition(".")[0]
                if module in files:
                    found[name].add(module)
    return found


def room_of(module):
    """"" at the top."""
    _, *parts = module.split(".")
    return parts[0] if parts and parts[0] not in TOP else ""


def upwards(found, rooms):
    """Imports that the table does not allow."""
    return [f"{module} imports {other}" for module, others in found.items() for other in sorted(others)
            if room_of(module) and room_of(other) not in rooms[room_of(module)]]


def circles(found):
    """Modules that lead back to themselves."""
    after = {module: set(others) for module, others in found.items()}
    for middle in after:
        for module in after:
            if middle in after[module]:
                after[module] |= after[middle]
    return [module for module in after if module in after[module]]


def test_modules_are_all_in_rooms():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == table().keys()
    assert {path.stem for path in PACKAGE.glob("*.py")} == TOP


def test_imports_never_lead_upwards():
    assert upwards(imports(PACKAGE), table()) == []


def test_imports_never_form_a_circle():
    assert circles(imports(PACKAGE)) == []


def test_wrong_imports_are_found(tmp_path):
    package = tmp_path / "laconic"
    for file, text in {"__init__.py": "from .low.a import x\n", "low/__init__.py": "", "low/a.py": "def f():\n    from ..high import b\n",
                       "high/__init__.py": "", "high/b.py": "import laconic.low.c\n", "low/c.py": "from . import a as x, d\n",
                       "low/d.py": "from laconic.high.b import y\n", "high/e.py": "from ..low.a import x\nimport laconic\n"}.items():
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text(text)
    found = imports(package)
    assert upwards(found, {"low": {"low"}, "high": {"low", "high"}}) == [
        "laconic.high.e imports laconic", "laconic.low.a imports laconic.high.b", "laconic.low.d imports laconic.high.b"]
    assert set(circles(found)) == {"laconic.low.a", "laconic.low.c", "laconic.low.d", "laconic.high.b"}


def test_benchmark_library_sees_no_benchmark():
    for path in (ROOT / "bench" / "lib").rglob("*.py"):
        assert set(re.findall(r"^\s*from (bench\.\w+|examples)\b", path.read_text(encoding="utf-8"), re.M)) <= {"bench.lib"}, path


def test_benchmarks_and_examples_leave_sys_path_alone():
    programs = [*(ROOT / "bench").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    assert len(programs) > 50
    assert [path for path in programs if "sys.path" in path.read_text(encoding="utf-8")] == [], "run them with python -m, from the checkout's root"
