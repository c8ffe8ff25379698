"""The one-way dependencies of the packages, held by reading the imports."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from import_rules import (
    HEAVY,
    Tree,
    cycles,
    forbidden_libraries,
    heavy_at_load,
    python_in_profiling,
    wrong_arrows,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tree() -> Tree:
    found = Tree(ROOT)
    assert {"bench.cli.main", "bert.train.loop", "records.trial", "common.errors"} <= set(found.paths)
    return found


def test_only_the_allowed_arrows_between_packages(tree: Tree) -> None:
    assert wrong_arrows(tree) == []


def test_no_import_cycle_between_modules(tree: Tree) -> None:
    assert cycles(tree) == []


def test_libraries_are_where_they_may_be(
    tree: Tree,
) -> None:
    assert forbidden_libraries(tree) == []


def test_command_line_loads_nothing_heavy(tree: Tree) -> None:
    assert heavy_at_load(tree, ["bench.cli.main"]) == []


def test_commands_load_nothing_heavy_before_they_work(tree: Tree) -> None:
    from bench.cli.dispatch import COMMANDS, SECOND_WORDS, module_of

    commands = [name for name in COMMANDS if name not in SECOND_WORDS]
    commands += [f"{name} {word}" for name, words in SECOND_WORDS.items() for word in words]
    assert heavy_at_load(tree, {module_of(name).__name__ for name in commands}) == []


def test_the_module_of_notebooks_loads_nothing_heavy(tree: Tree) -> None:
    assert heavy_at_load(tree, ["bertbench"]) == []


def test_profiling_holds_no_python() -> None:
    assert python_in_profiling(ROOT) == []


def test_help_runs_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from bench.cli.main import run; code = run(['--help'])\n"
        f"found = [name for name in {HEAVY} if name in sys.modules]\n"
        "sys.exit(f'loaded {found}' if found or code else 0)"
    )
    outcome = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert "usage" in outcome.stdout.lower()


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


RULES: dict[str, Callable[[Path], list[str]]] = {
    "arrow": lambda root: wrong_arrows(Tree(root)),
    "library": lambda root: forbidden_libraries(Tree(root)),
    "cycle": lambda root: cycles(Tree(root)),
    "heavy": lambda root: heavy_at_load(Tree(root), ["bench.cli.main"]),
    "profiling": python_in_profiling,
}

VIOLATIONS = {
    "bert imports bench": ("arrow", {"bert/a.py": "import bench.sweep.a\n"}, "bert/a.py:1 uses bench.sweep.a"),
    "lazily": ("arrow", {"bert/a.py": "def f():\n    from analysis import x\n"}, "bert/a.py:2 uses analysis"),
    "by a registry": (
        "arrow",
        {"bert/a.py": "X = {'a': 'bench.sweep.a:Sweep'}\n"},
        "bert/a.py:1 uses bench.sweep.a",
    ),
    "relative": ("arrow", {"common/a/b.py": "from ..b import x\nimport bert\n"}, "common/a/b.py:2 uses bert"),
    "a reader imports a metric": (
        "arrow",
        {"analysis/readers/a.py": "def f():\n    from analysis.metrics import b\n"},
        "analysis/readers/a.py:2 uses analysis.metrics",
    ),
    "torch in analysis": (
        "library",
        {"analysis/a.py": "def f():\n    import torch.nn\n"},
        "analysis/a.py:2 uses torch.nn",
    ),
    "profiler from torch": (
        "library",
        {"bert/a.py": "from torch import profiler\n"},
        "bert/a.py:1 uses torch.profiler",
    ),
    "nvtx by attribute": (
        "library",
        {"bert/a.py": "import torch\ntorch.cuda.nvtx.range_push('x')\n"},
        "bert/a.py:2 uses torch.cuda.nvtx",
    ),
    "a second drawer": (
        "library",
        {"analysis/metrics/a.py": "def f():\n    from matplotlib.axes import Axes\n"},
        "analysis/metrics/a.py:2 uses matplotlib.axes",
    ),
    "cycle of two": (
        "cycle",
        {"bert/a.py": "import bert.b\n", "bert/b.py": "from bert import a\n"},
        "bert.a -> bert.b -> bert.a",
    ),
    "cycle by a package": (
        "cycle",
        {"bert/__init__.py": "from bert.a import f\n", "bert/a.py": "from . import g\n"},
        "bert -> bert.a -> bert",
    ),
    "torch at start": (
        "heavy",
        {"bench/cli/main.py": "import bench.sweep.a\n", "bench/sweep/a.py": "class A:\n    import torch\n"},
        "bench/sweep/a.py:2 uses torch (from bench.cli.main -> bench.sweep.a)",
    ),
    "pandas in a parent package": (
        "heavy",
        {"bench/cli/main.py": "", "bench/cli/__init__.py": "import pandas\n"},
        "bench/cli/__init__.py:1 uses pandas (from bench.cli.main -> bench.cli)",
    ),
    "Python in profiling": ("profiling", {"profiling/x/__init__.py": ""}, "profiling/x/__init__.py"),
}


@pytest.mark.parametrize("case", VIOLATIONS)
def test_checker_catches(case: str, tmp_path: Path) -> None:
    rule, files, message = VIOLATIONS[case]
    assert RULES[rule](make_tree(tmp_path, files)) == [message]
