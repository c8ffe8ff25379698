"""The modules of analysis that the harness imports: behind all others, analysis can change without it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTED = [
    "analysis.counters",
    "analysis.diagnose.finding",
    "analysis.diagnose.profiles",
    "analysis.load",
    "analysis.metrics.cautions",
    "analysis.metrics.communication.exposure",
    "analysis.metrics.comparison.ratio",
    "analysis.metrics.comparison.runs",
    "analysis.metrics.comparison.trainings",
    "analysis.metrics.statistics",
    "analysis.metrics.throughput",
    "analysis.readers.ncu",
    "analysis.render.comparison_tables",
    "analysis.render.figure",
    "analysis.render.study",
    "analysis.render.tables",
    "analysis.render.task_figures",
    "analysis.render.terminal",
    "analysis.render.training_figures",
    "analysis.run_views",
    "analysis.views",
    "analysis.wording",
]
"""May only become shorter."""


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


def test_the_harness_imports_these_modules_of_analysis() -> None:
    files = [ROOT / "bertbench.py", *(ROOT / "bench").rglob("*.py")]
    assert set().union(*map(imported, files)) <= set(IMPORTED)
