"""Nsight Compute: counters of every kernel of the window and what its rules say, one report per node, exported to CSV.

`ncu` wraps the launcher of the node, records between cudaProfilerStart and cudaProfilerStop, and replays each kernel
alone several times. Kernels of collectives are excluded, since a replayed kernel would wait forever for the other
ranks. Only the first of several ranks is counted, so that ranks do not wait for each other at ncu's lock. The metrics
are those of `ncu_metrics` that its --query-metrics lists.
"""

import contextlib
import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from analysis.counters import rules_file
from bench.machine.environment import first_gpu_capability
from bench.profilers.base import Scope, check_written
from bench.profilers.ncu_metrics import metrics_of
from bench.profilers.permission import ALLOW, DENIED, counters_denied
from bench.profilers.ranges import CAPTURE, DOMAIN
from bench.profilers.tool import ToolProfiler, nothing_usable
from common.atomic import write_json, write_text
from common.errors import InputError, UsageError
from common.tools import Version, dotted, run_program
from records.run import COLLECTED_FILE
from records.trial import Trial

RULE_SECTIONS = (
    "SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats",
    "LaunchStats", "Occupancy",
)  # fmt: skip
"""Sections that are collected for their rules; the larger ones, of tables and source lines, take the most replays."""
# Name pattern of kernels that communicate with other GPUs.
COLLECTIVES = (
    "[Nn][Cc][Cc][Ll]|nvshmem|multimem|AllReduce|AllGather|ReduceScatter|(^|_)all_?(reduce|gather)|reduce_scatter"
)
_EXPORT_SECONDS = 900.0


class NsightCompute(ToolProfiler):
    """Wraps the launcher of a node with `ncu`."""

    NAME: ClassVar[str] = "ncu"
    REMEDY: ClassVar[str] = (
        "install Nsight Compute 2022.1 or newer (NVIDIA's apt repository; Debian non-free: nsight-compute), or start "
        "the container with start_container.sh; --profiler nsys gives a timeline without counters"
    )
    OLDEST: ClassVar[Version] = (2022, 1)  # the first one that replays ranges
    GPU_ONLY: ClassVar[bool] = True
    OPTIONS: ClassVar[Mapping[str, str]] = {
        **ToolProfiler.OPTIONS,
        "kernels": "maximum number of kernels to count (2000; a step of BERT large launches fewer)",
        "skip": "number of kernels to skip first (0)",
        "metrics": "comma-separated ncu metrics (those of bench/profilers/ncu_metrics.py for this GPU)",
        "rules": "yes: collect the sections that ncu's rules need, and apply them; no: fewer replays (yes)",
        "replay": "kernel: each kernel alone; range: the whole window at once, one rank (kernel)",
        "cache-control": "all: flush the caches before each replay, for repeatable counters; none: do not (all)",
        "clock-control": "base: lock the clocks to base; none: clocks as in training (none)",
    }
    CHOICES: ClassVar[Mapping[str, Collection[str]]] = {
        **ToolProfiler.CHOICES,
        "rules": ("yes", "no"),
        "replay": ("kernel", "range"),
        "cache-control": ("all", "none"),
        "clock-control": ("base", "none"),
    }

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError, with the remedy, if ncu cannot profile `trial` here."""
        super().check(trial)
        _ = self._limit, self.whole_number("skip", 0)
        if self._ranges and trial.ranks > 1:
            raise UsageError(
                "unsupported-combination",
                f"--with replay=range would replay the all-reduce of {trial.ranks} ranks on one rank and deadlock: "
                "use --devices 1, or omit the option",
            )
        if "metrics" not in self.options:
            metrics_of(first_gpu_capability())
        denied = counters_denied()
        if denied is not None:
            raise UsageError("permission-missing", f"ncu would end with {DENIED}, since {denied}: {ALLOW}")

    def wrap(self, argv: list[str], scope: Scope) -> list[str]:
        """Return `ncu ... argv`; make the folder for the report. Raises UsageError, MissingToolError."""
        report = _report(scope)
        report.parent.mkdir(exist_ok=True)
        if self._ranges:
            kernels = ["--nvtx-include", f"{DOMAIN}@{CAPTURE}"]
        else:
            # ncu matches a part of the name; its manual has a negative lookahead as an example (option kernel-id).
            kernels = ["--kernel-name-base", "function", "--kernel-name", f"regex:^(?!.*({COLLECTIVES})).*$"]
        return [
            self.path,
            *("--target-processes", "all"),
            # Range replay does not support it and uses only the NVTX range.
            *([] if self._ranges else ["--profile-from-start", "off"]),
            "--nvtx",
            *("--replay-mode", self.options.get("replay", "kernel")),
            *("--launch-skip", str(self.whole_number("skip", 0))),
            *("--launch-count", str(self._limit)),
            *(["--devices", "0"] if scope.trial.ranks > 1 else []),
            *("--cache-control", self.options.get("cache-control", "all")),
            *("--clock-control", self.options.get("clock-control", "none")),
            "--force-overwrite",
            *("--export", str(report.with_suffix("")).replace("%", "%%")),  # ncu expands %h, %p and others
            *kernels,
            *self._what(),
            *argv,
        ]

    def _what(self) -> list[str]:
        """Return the switches that select the metrics, those of the GPU that this ncu supports, and the rules."""
        if "metrics" in self.options:
            return ["--apply-rules", "no", "--metrics", self.options["metrics"]]
        names = available(metrics_of(first_gpu_capability()), self.run("--query-metrics", timeout_seconds=120))
        if self._ranges:  # ncu refuses metrics of patched SASS
            names = [name for name in names if "__sass_" not in name]
        if self._ranges or self.options.get("rules") == "no":
            return ["--apply-rules", "no", "--metrics", ",".join(names)]
        listed = run_program([self.path, "--list-sections"], 120).stdout
        sections = [name for name in RULE_SECTIONS if re.search(rf"^{name}\s", listed, re.MULTILINE)]
        words = ["--apply-rules", "yes", "--metrics", ",".join(names)]
        return [*words, *(word for name in sections for word in ("--section", name))]

    def collect(self, scope: Scope) -> list[Path]:
        """Export the report; return it, a CSV with a row per kernel, one with what rules say, and collected.json.

        Raises InputError: there is no permission, no report or no kernel in it, or the report is truncated.
        """
        from analysis.readers.ncu import read

        report = _report(scope)
        if not report.exists():
            raise nothing_usable(scope, "report of ncu")
        check_written(report)
        table = report.with_suffix(".csv")
        rules = rules_file(table)
        write_text(table, self._page(report, "raw"))
        rules.unlink(missing_ok=True)
        with contextlib.suppress(InputError):  # counters without what ncu says of them are a whole profile
            if found := rules_of(self._page(report, "details")):
                write_text(rules, found)
        counters = read(table)
        if counters.kernels.empty:
            raise nothing_usable(scope, f"kernel in {report.name}")
        reached = len(counters.kernels) >= self._limit
        short = f"counted only {self._limit} kernels: raise --with kernels=N for the rest of the window"
        note = table.with_name(COLLECTED_FILE)
        content = {
            "ncu_version": dotted(self.version),
            "kernels": len(counters.kernels),
            "limit_reached": reached,
            "metrics": list(counters.metrics),
            "problems": [*counters.problems, *[short] * reached],
        }
        write_json(note, content)
        return [report, table, *[rules] * rules.exists(), note]

    @property
    def _limit(self) -> int:
        return self.whole_number("kernels", 2000, least=1)

    @property
    def _ranges(self) -> bool:
        return self.options.get("replay") == "range"

    def _page(self, report: Path, page: str) -> str:
        words = ("--import", str(report), "--csv", "--page", page, "--print-units", "base")
        return self.run(*words, timeout_seconds=_EXPORT_SECONDS)


def rules_of(page: str) -> str:
    """Return the header of a details page and its rows that are messages of rules; "" where there is none."""
    rows = list(csv.reader(io.StringIO(page)))
    header = next((row for row in rows if "Rule Name" in row and "Metric Name" in row), ["Rule Name"])
    at = header.index("Rule Name")
    messages = [row for row in rows if row != header and len(row) == len(header) and row[at]]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([header, *messages])
    return text.getvalue() if messages else ""


def available(names: Sequence[str], query: str) -> list[str]:
    """Return the metrics whose base name (up to the first dot) is among those that `ncu --query-metrics` lists."""
    known = frozenset(re.findall(r"^([a-z]\w*__\w+)\s", query, re.MULTILINE))
    return [name for name in names if name.partition(".")[0] in known]


def _report(scope: Scope) -> Path:
    return scope.directory / "ncu" / f"batch_{scope.trial.micro_batch_size}.ncu-rep"
