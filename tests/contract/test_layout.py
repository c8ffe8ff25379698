"""The folders, and the sizes and habits that keep modules readable."""

import ast
import functools
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("analysis", "bench", "bert", "common", "records")
TOP_LEVEL_FOLDERS = {".ci", ".github", "docker", "docs", "profiling", "tests", "benchmarks", *PACKAGES}
TEST_FOLDERS = {
    "contract", "data", "fault", "golden", "gpu", "integration", "oracles", "slow", "soak", "support", "truth", "unit",
}  # fmt: skip

MOST_LINES_OF_A_MODULE = 600
MOST_LINES_OF_A_FUNCTION = 80


def modules(root: Path = ROOT) -> list[Path]:
    return sorted(
        [*root.glob("bertbench.py"), *(path for package in PACKAGES for path in (root / package).rglob("*.py"))]
    )


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree(path)))


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def long_functions(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_LINES_OF_A_FUNCTION:
                yield f"{path.name}:{node.lineno} {node.name} has {lines} lines"


def prints_and_exits(path: Path) -> Iterator[str]:
    """Calls of print and exit; a module's own `if __name__ == "__main__"` may exit."""
    body = [top for top in tree(path).body if not (isinstance(top, ast.If) and "__main__" in ast.unparse(top.test))]
    found: set[tuple[int, str]] = set()
    for top in body:
        for node in ast.walk(top):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
            elif isinstance(node, ast.Raise) and node.exc is not None:
                name = ast.unparse(node.exc).partition("(")[0]
            else:
                continue
            if name in ("print", "exit", "quit", "sys.exit", "SystemExit"):
                found.add((node.lineno, name))
    yield from (f"{path.name}:{line} {name}" for line, name in sorted(found))


def in_command_line(path: Path) -> bool:
    return path.is_relative_to(ROOT / "bench" / "cli")


def test_no_folder_outside_of_the_known_ones() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout: which folders belong to the project is not known here")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [Path(name) for name in listing.stdout.split("\0") if name]
    assert names
    folders = {name.parts[0] for name in names if len(name.parts) > 1}
    assert folders - TOP_LEVEL_FOLDERS == set()
    assert {name.parts[1] for name in names if name.parts[0] == "tests" and len(name.parts) > 2} - TEST_FOLDERS == set()


def test_every_folder_of_a_package_is_a_package() -> None:
    inside = [path for path in modules() if path.parent != ROOT]
    assert [str(path.parent) for path in inside if not (path.parent / "__init__.py").is_file()] == []


def test_no_module_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): line_count(path) for path in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_MODULE} == {}


def test_no_function_is_too_long() -> None:
    assert [text for path in modules() for text in long_functions(path)] == []


def test_only_the_command_line_prints_and_exits() -> None:
    ends_a_script = ROOT / "bench" / "hook" / "recorder.py"  # in the process of a script, when that is asked to stop
    inside = [path for path in modules() if not in_command_line(path) and path != ends_a_script]
    assert [text for path in inside for text in prints_and_exits(path)] == []


def test_test_files_have_unique_names_and_are_no_packages() -> None:
    loaded_by_name = ("conftest.py", "sitecustomize.py")
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in loaded_by_name)
    assert [name for name, count in names.items() if count > 1] == []
    assert "__init__.py" not in names


def test_unit_tests_mirror_the_packages() -> None:
    folders = {
        path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert folders <= {*PACKAGES, "scripts"}


def test_checkers_catch(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    body = "    x = 1\n" * MOST_LINES_OF_A_FUNCTION
    path.write_text(
        f"import sys\ndef long():\n{body}\n"
        "def loud():\n    print('x')\n    sys.exit(1)\n    raise SystemExit(2)\n"
        "if __name__ == '__main__':\n    sys.exit(0)\n",
        encoding="utf-8",
    )
    assert list(long_functions(path)) == [f"bad.py:2 long has {MOST_LINES_OF_A_FUNCTION + 1} lines"]
    assert [text.partition(" ")[2] for text in prints_and_exits(path)] == [
        "print",
        "sys.exit",
        "SystemExit",
    ]
