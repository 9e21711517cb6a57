# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/check_classes on small trees, each with a class of known size."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_classes"
LOADER = importlib.machinery.SourceFileLoader("check_classes", str(SCRIPT))
check = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_classes", LOADER))
LOADER.exec_module(check)
MOST_METHODS, MOST_FIELDS = check.BUDGET

with_ctags = pytest.mark.skipif(not check.has_ctags(), reason="no universal-ctags")


def cxx(methods=0, fields=0, more=""):
    body = [f"int m{i}(int x) const;" for i in range(methods)] + [f"std::vector<int> f{i}_{{}};" for i in range(fields)]
    return "namespace laconic::a {{\nclass K final : public Base {{\n public:\n{}\n{}\n}};\n}}\n".format("\n".join(body), more)


def python(methods=0, fields=0, more=""):
    body = [f"    def m{i}(self): self.f0 = 1" for i in range(methods)]
    body += ["    def __init__(self):", *(f"        self.f{i} = 0" for i in range(fields)), "        pass", more]
    return "class K:\n" + "\n".join(body) + "\n"


def violations(root, files, exceptions=None, with_cxx=True):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(check.violations(root, exceptions or {}, with_cxx))


IN_CXX, IN_PYTHON = pytest.param("src/x/k.h", cxx, "a::K", marks=with_ctags), pytest.param("python/laconic/k.py", python, "k.K")


@pytest.mark.parametrize(("path", "source", "name"), [IN_CXX, IN_PYTHON])
class TestSizes:
    def test_budget_is_allowed_and_one_more_is_named(self, tmp_path, path, source, name):
        assert violations(tmp_path, {path: source(MOST_METHODS, MOST_FIELDS)}) == []
        (found,) = violations(tmp_path, {path: source(MOST_METHODS + 1, 1)})
        assert found.startswith(path + ":") and f"{name} has {MOST_METHODS + 1} methods and 1 fields; the budget is" in found
        (found,) = violations(tmp_path, {path: source(1, MOST_FIELDS + 1)})
        assert f"{name} has 1 methods and {MOST_FIELDS + 1} fields" in found

    @pytest.mark.parametrize(("methods", "fields", "words"), [
        (30, 20, None), (31, 20, "may only shrink"), (30, 21, "may only shrink"), (29, 21, "may only shrink"),
        (29, 20, "lower its numbers in EXCEPTIONS to (29, 20)"), (25, 15, "within the budget: remove it from EXCEPTIONS")])
    def test_exception_may_only_shrink(self, tmp_path, path, source, name, methods, fields, words):
        found = violations(tmp_path, {path: source(methods, fields)}, {name: (30, 20)})
        assert found == [] if words is None else len(found) == 1 and words in found[0], found

    def test_exception_without_class_is_named(self, tmp_path, path, source, name):
        assert violations(tmp_path, {path: source(1, 1).replace("K", "L")}, {name: (30, 20)}) == [
            f"{name} is gone: remove it from EXCEPTIONS"]


@with_ctags
@pytest.mark.parametrize(("more", "methods", "fields"), [
    ("K(int); K(const K&) = delete; K& operator=(K&&) noexcept = default; ~K(); bool operator==(const K&) const = default;", 0, 0),
    ("void f(); void f(int); template <class T> void g(T&& x); static int h(); bool operator<(const K&) const;", 5, 0),
    ("[[nodiscard]] Result<std::vector<int>> f(Bytes b, int (*g)(int)) const noexcept { int local = 0; return local; }", 1, 0),
    ("int a, b[2]; std::function<void(int)> c; int (*d)(int); bool e : 1;", 0, 5),
    ("static constexpr int kMost = 3; using T = int; enum class E { a, b }; friend void f(K&);", 0, 0),
    ("struct In { int a, b; int f(); }; In in_;", 0, 1),
])
def test_cxx_members_are_counted(tmp_path, more, methods, fields):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/k.h").write_text(cxx(2, 3, more) + "inline void laconic::a::K::m0(int x) const {}\n")
    sizes = {name: counts for _, name, *counts in check.cxx_classes(tmp_path)}
    assert sizes["a::K"] == [2 + methods, 3 + fields]
    assert sizes.get("a::K::In", [1, 2]) == [1, 2]


@pytest.mark.parametrize(("more", "fields"), [
    ("    a: int = 3\n    b: list", 2), ("    N = 3\n    LIMIT: ClassVar[int] = 4", 0),
    ("    def g(this): this.x, this.y = 1, 2; this.x += 1; other.z = 3; this.x.w = 4", 2)])
def test_python_members_are_counted(tmp_path, more, fields):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/k.py").write_text(python(2, 3, more))
    assert [counts for _, _, *counts in check.python_classes(tmp_path)] == [[2 + more.count("def"), 3 + fields]]


@with_ctags
def test_kernels_tests_and_c_interface_are_exempt(tmp_path):
    large = cxx(MOST_METHODS + 1)
    assert violations(tmp_path, {"src/kernels/a/k.h": large, "lab/tests/k.h": large, "tests/support/k.h": large,
                                 "python/tests/k.py": python(MOST_METHODS + 1), "include/laconic/laconic.h": large}) == []


def test_missing_ctags_counts_python_alone(tmp_path):
    files = {"src/x/k.h": cxx(MOST_METHODS + 1), "python/k.py": python(MOST_METHODS + 1)}
    (found,) = violations(tmp_path, files, {"a::Gone": (30, 20)}, with_cxx=False)
    assert found.startswith("python/k.py:1: k.K has 26")


def test_repository_passes():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
