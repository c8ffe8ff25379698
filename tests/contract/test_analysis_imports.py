"""How many modules of analysis the harness imports: behind all others, analysis can change without it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 22
"""Modules; may only become fewer."""


def imported(path: Path) -> set[str]:
    """Return the modules of analysis that a file imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = ROOT / node.module.replace(".", "/")
            names = [f"{node.module}.{alias.name}" if inside.is_dir() else node.module for alias in node.names]
        modules |= {name for name in names if name.partition(".")[0] == "analysis"}
    return modules


def test_the_harness_imports_few_modules_of_analysis() -> None:
    files = [ROOT / "bertbench.py", *(ROOT / "bench").rglob("*.py")]
    found = set().union(*map(imported, files))
    assert 0 < len(found) <= MOST, sorted(found)
