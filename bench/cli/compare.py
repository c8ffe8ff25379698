"""`bertbench compare A B`: two runs against each other; exit code 1 on a regression."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from analysis.records import RunDirectory
from bench.cli.options import parse


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions:
    """Hold run B (new) against run A (old); exit code 1 when B is slower beyond the threshold."""

    a: tyro.conf.Positional[Path]
    """Run directory to compare with (old)."""
    b: tyro.conf.Positional[Path]
    """Run directory to judge (new)."""
    threshold: float = 0.05
    """Relative change of the step time that counts: 0.05 is 5 %."""
    json: bool = False
    """Print the comparison as JSON."""


OPTIONS = {"compare A B": CompareOptions}


def main(argv: list[str]) -> int:
    """Run the command; 1 on a regression, else 0."""
    options = parse(CompareOptions, argv, "bertbench compare")
    from analysis.metrics.regression import as_mapping, compare_runs
    from analysis.report.text import comparison_table

    comparison = compare_runs(RunDirectory(options.a), RunDirectory(options.b), options.threshold)
    if options.json:
        print(json.dumps(as_mapping(comparison), indent=2, allow_nan=False))
    else:
        print(comparison_table(comparison))
    return 1 if comparison.regressed else 0
