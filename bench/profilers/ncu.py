"""Nsight Compute: counters of every kernel of the window and what its rules say, one report per node, exported to CSV.

`ncu` wraps the launcher of the node, records between cudaProfilerStart and cudaProfilerStop, and replays each kernel
alone several times. Kernels of collectives are excluded, since a replayed kernel would wait forever for the other
ranks. Only the first of several ranks is counted, so that ranks do not wait for each other at ncu's lock. Switches
follow its --help, metrics follow `ncu_metrics` and its --query-metrics.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from analysis.counters import KernelCounters, rules_file
from bench.machine.environment import first_gpu_capability
from bench.profilers.base import Scope, whole_number, written
from bench.profilers.ncu_metrics import metrics_of
from bench.profilers.permission import ALLOW, DENIED, counters_denied
from bench.profilers.ranges import CAPTURE, DOMAIN, check_ranges
from bench.profilers.tool import ToolProfiler, run_tool
from common.atomic import write_json, write_text
from common.errors import Code, InputError, MissingToolError, UsageError
from common.tools import Version, dotted
from records.run import COLLECTED_FILE
from records.trial import Trial

RULE_SECTIONS = (
    "SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats",
    "LaunchStats", "Occupancy",
)  # fmt: skip
"""Sections of ncu that are collected for their rules: a rule needs the counters of its section. The larger ones, of
tables and of source lines, are left out: they take the most replays."""


def rules_of(page: str) -> str:
    """Return the header of a details page and its rows that are messages of rules; "" where there is none."""
    header: list[str] = []
    kept: list[list[str]] = []
    for row in csv.reader(io.StringIO(page)):
        if "Rule Name" in row and "Metric Name" in row:
            header = row
        elif len(row) > (at := header.index("Rule Name") if header else len(row)) and row[at]:
            kept.append(row)
    if not kept:
        return ""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([header, *kept])
    return text.getvalue()


def known_metrics(query: str) -> frozenset[str]:
    """Return the base names ("dram__bytes") that `ncu --query-metrics` lists."""
    return frozenset(re.findall(r"^([a-z]\w*__\w+)\s", query, re.MULTILINE))


def available(names: Sequence[str], known: frozenset[str]) -> list[str]:
    """Return the metrics whose base name (up to the first dot) is known."""
    return [name for name in names if name.partition(".")[0] in known]


def switches(help_text: str) -> frozenset[str]:
    """Return the long switches that `ncu --help` names, such as "--clock-control"."""
    return frozenset(re.findall(r"^\s+(?:-\w\s+\[\s*)?(--[a-z][a-z0-9-]*)", help_text, re.MULTILINE))


def replay_modes(help_text: str) -> frozenset[str]:
    """Return the values of --replay-mode that `ncu --help` names: kernel, application, range, app-range."""
    block = re.search(r"^\s+--replay-mode\b.*?(?=^ {1,4}-|\Z)", help_text, re.MULTILINE | re.DOTALL)
    return frozenset(
        re.findall(r"^\s+([a-z]+(?:-[a-z]+)?)(?: \(default\))?\s*$", block[0], re.MULTILINE) if block else ()
    )


OLDEST: Version = (2020, 1)
MOST_KERNELS = 2000
"""Default of --with kernels; a step of BERT large launches fewer."""
# Name pattern of kernels that communicate with other GPUs.
COLLECTIVES = (
    "[Nn][Cc][Cc][Ll]|nvshmem|multimem|AllReduce|AllGather|ReduceScatter|(^|_)all_?(reduce|gather)|reduce_scatter"
)

_IMPORT_SECONDS = 900.0
_NEEDED = ("--target-processes", "--profile-from-start", "--export", "--csv", "--page", "--import")


class NsightCompute(ToolProfiler):
    """Wraps the launcher of a node with `ncu`."""

    NAME: ClassVar[str] = "ncu"
    REMEDY: ClassVar[str] = (
        "install Nsight Compute (NVIDIA's apt repository; Debian non-free: nsight-compute), or start the container "
        "with start_container.sh; --profiler nsys gives a timeline without counters"
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        **ToolProfiler.OPTIONS,
        "kernels": f"maximum number of kernels to count ({MOST_KERNELS})",
        "skip": "number of kernels to skip first (0)",
        "metrics": "comma-separated ncu metrics (those of bench/profilers/ncu_metrics.py for this GPU)",
        "rules": "yes: collect the sections that ncu's rules need, and apply them; no: fewer replays (yes)",
        "replay": "kernel: each kernel alone; range: the whole window at once, one rank, ncu 2022.1 or newer (kernel)",
        "ranks": "first: count the first rank; all: count every rank, which may deadlock (first)",
        "cache-control": "all: flush the caches before each replay, for repeatable counters; none: do not (all)",
        "clock-control": "base: lock the clocks to base; none: clocks as in training (none)",
    }

    @cached_property
    def _switches(self) -> frozenset[str]:
        return switches(self._help)

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError, with the remedy, if ncu cannot profile `trial` here."""
        if trial.device != "cuda":
            raise UsageError(
                "option-not-applicable",
                "--profiler ncu needs a GPU, but this trial runs on the CPU: use --profiler torch, "
                "or --profiler nsys for NVTX ranges",
            )
        self._check_options(trial)
        needed = OLDEST
        if "metrics" not in self.options:
            needed = metrics_of(_capability())[1]
        self._check_version(needed, f" for this GPU, which needs {dotted(needed)}", _NEEDED)
        if self._replay not in (replay_modes(self._help) or {"kernel"}):
            raise UsageError(
                "tool-version",
                f"--with replay={self._replay} needs ncu 2022.1 or newer, not {dotted(self._version)}: "
                "omit the option, or install a newer version",
            )
        check_ranges(self.ranges, trial.device)
        _check_permission()

    def _check_options(self, trial: Trial) -> None:
        for name, choices in _CHOICES.items():
            value = self.options.get(name)
            if value is not None and value not in choices:
                raise UsageError("option-choice", f"--with {name}={value}: choose one of {', '.join(choices)}")
        whole_number(self.options, "kernels", MOST_KERNELS)
        if not self.options.get("skip", "0").isdigit():
            raise UsageError("option-value", f"--with skip={self.options['skip']}: give a whole number, 0 or more")
        if "metrics" in self.options and not all(name.strip() for name in self.options["metrics"].split(",")):
            raise UsageError(
                "option-value", "--with metrics: name at least one metric; `ncu --query-metrics` lists them"
            )
        if self._replay == "range" and trial.ranks > 1:
            raise UsageError(
                "unsupported-combination",
                f"--with replay=range would replay the all-reduce of {trial.ranks} ranks on one rank and deadlock: "
                "use --devices 1, or omit the option",
            )

    def wrap(self, argv: list[str], scope: Scope) -> list[str]:
        """Return `ncu ... argv` with the switches of this version. Makes the folder for the report.

        Raises:
            UsageError, MissingToolError: the GPU or its metrics are unknown.
        """
        report = _report(scope)
        report.parent.mkdir(exist_ok=True)
        several = scope.trial.ranks > 1
        wanted: list[tuple[str, str | None]] = [
            ("--target-processes", "all"),
            # Range replay does not support it and uses only the NVTX range.
            ("--profile-from-start", "off" if self._replay == "kernel" else None),
            ("--nvtx", ""),
            ("--replay-mode", self._replay),
            ("--launch-skip", self.options.get("skip", "0")),
            ("--launch-count", str(self._limit)),
            ("--devices", "0" if several and self.options.get("ranks", "first") == "first" else None),
            ("--cache-control", self.options.get("cache-control", "all")),
            ("--clock-control", self.options.get("clock-control", "none")),
            ("--force-overwrite", ""),
            ("--export", str(report.with_suffix("")).replace("%", "%%")),  # ncu expands %h, %p and others
        ]
        if self._replay == "range":
            wanted.append(("--nvtx-include", f"{DOMAIN}@{CAPTURE}"))
        else:
            wanted += self._without_collectives(several)
        words = [str(self._path)]
        for name, value in [*wanted, *self._what()]:
            if value is not None and name in self._switches:
                words += [name, value] if value else [name]
        return [*words, *argv]

    def _without_collectives(self, several: bool) -> list[tuple[str, str | None]]:
        """Return the switches that leave kernels of collectives out.

        ncu matches a part of the name. NVIDIA's manual has a negative lookahead as an example (Nsight Compute CLI,
        option kernel-id).
        """
        others = f"^(?!.*({COLLECTIVES})).*$"
        if "--kernel-name" in self._switches:
            return [("--kernel-name-base", "function"), ("--kernel-name", f"regex:{others}")]
        if "--kernel-regex" in self._switches:  # its name in 2020
            return [("--kernel-regex-base", "function"), ("--kernel-regex", others)]
        if several:
            raise MissingToolError(
                "tool-version",
                f"ncu {dotted(self._version)} cannot exclude NCCL kernels and would deadlock at the first one: "
                f"use --devices 1, or {self.REMEDY}",
            )
        return []

    def _what(self) -> list[tuple[str, str | None]]:
        """Return the switches that select the metrics, those of the GPU that this ncu supports, and the rules."""
        if "metrics" in self.options:
            return [("--apply-rules", "no"), ("--metrics", self.options["metrics"])]
        capability = _capability()
        names, _ = metrics_of(capability)
        known = known_metrics(run_tool([str(self._path), "--query-metrics"], timeout_seconds=120))
        found = available(names, known)
        if not found:
            raise MissingToolError(
                "tool-version",
                f"ncu {dotted(self._version)} at {self._path} supports no metric of compute capability "
                f"{dotted(capability)}: {self.REMEDY}",
            )
        if self._replay == "range":  # ncu refuses metrics of patched SASS
            found = [name for name in found if "__sass_" not in name]
        sections = [("--section", name) for name in self._rule_sections]
        return [("--apply-rules", "yes" if sections else "no"), ("--metrics", ",".join(found)), *sections]

    @cached_property
    def _rule_sections(self) -> list[str]:
        """Those of RULE_SECTIONS that this ncu has; none where the options rule them out: then no rule is applied."""
        if self.options.get("rules", "yes") == "no" or "metrics" in self.options or self._replay == "range":
            return []
        if "--list-sections" not in self._switches:
            return []
        listed = run_tool([str(self._path), "--list-sections"], timeout_seconds=120, any_exit_code=True)
        return [name for name in RULE_SECTIONS if re.search(rf"^{name}\s", listed, re.MULTILINE)]

    def collect(self, scope: Scope) -> list[Path]:
        """Export the report; return it, its CSV files and collected.json (counted and missing metrics).

        One has a row per kernel, and one beside it the messages of ncu's rules, if there are any.

        Raises:
            InputError: there is no permission, no report or no kernel in it, or the report is truncated.
        """
        from analysis.readers.ncu import read

        report = _report(scope)
        if not report.exists():
            raise _nothing(scope, "ncu wrote no report")
        written([report], "report", scope.directory)
        table = report.with_suffix(".csv")
        page = self._export(report, table)
        problems = self._export_rules(report, rules_file(table), page)
        try:
            counters = read(table)
        except InputError as error:
            raise _nothing(scope, f"the report is not usable ({error})", error.code) from error
        if counters.kernels.empty:
            raise _nothing(scope, f"{report} has no kernels", "trace-without-work")
        note = table.with_name(COLLECTED_FILE)
        write_json(note, self._collected(counters, page, problems))
        return [report, table, *([rules_file(table)] if rules_file(table).exists() else []), note]

    def _export(self, report: Path, table: Path) -> str:
        """Write the CSV and return its page: raw, or details if this ncu cannot export the raw page."""
        problem = InputError("tool-failed", f"no page of {report} could be exported")
        for page in ("raw", "details"):
            try:
                write_text(table, self._page(report, page))
                return page
            except InputError as error:
                if "load report" in str(error) or "open report" in str(error):
                    raise InputError(
                        "file-damaged",
                        f"{report} is damaged or truncated (ncu was killed while writing, or the disk was full): "
                        f"record again; {error}",
                    ) from error
                if "did not end" in str(error):
                    raise
                problem = error
        raise problem

    def _page(self, report: Path, page: str) -> str:
        units = next((name for name in ("--print-units", "--units") if name in self._switches), None)
        argv = [str(self._path), "--import", str(report), "--csv", "--page", page, *([units, "base"] if units else [])]
        return run_tool(argv, _IMPORT_SECONDS)

    def _export_rules(self, report: Path, path: Path, page: str) -> list[str]:
        """Write the messages of the rules, which the raw page lacks, if there are any; return why that failed."""
        path.unlink(missing_ok=True)
        if page == "details" or not self._rule_sections:
            return []
        try:
            if found := rules_of(self._page(report, "details")):
                write_text(path, found)
            return []
        except InputError as error:
            return [f"the messages of ncu's rules could not be exported: {error}"]

    def _collected(self, counters: KernelCounters, page: str, problems: list[str]) -> dict[str, Any]:
        reached = len(counters.kernels) >= self._limit
        problems = [*problems, *counters.problems]
        if reached:
            problems.append(
                f"counted only {self._limit} kernels, so the rest of the window is missing: raise --with kernels=N"
            )
        return {
            "ncu_version": dotted(self._version),
            "replay": self._replay,
            "page": page,
            "kernels": len(counters.kernels),
            "kernel_limit": self._limit,
            "limit_reached": reached,
            "metrics": list(counters.metrics),
            "rules": len(counters.rules),
            "device": counters.device_name,
            "compute_capability": counters.compute_capability and dotted(counters.compute_capability),
            "problems": problems,
        }

    @property
    def _limit(self) -> int:
        return whole_number(self.options, "kernels", MOST_KERNELS)

    @property
    def _replay(self) -> str:
        return self.options.get("replay", "kernel")


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "replay": ("kernel", "range"),
    "ranks": ("first", "all"),
    "rules": ("yes", "no"),
    "cache-control": ("all", "none"),
    "clock-control": ("base", "none"),
}


def _report(scope: Scope) -> Path:
    return scope.directory / "ncu" / f"batch_{scope.trial.micro_batch_size}.ncu-rep"


def _capability() -> tuple[int, int]:
    found = first_gpu_capability()
    if isinstance(found, str):
        raise UsageError(
            "device-missing",
            f"the metrics of ncu depend on the GPU's compute capability, which is unknown ({found})",
        )
    return found


def _check_permission() -> None:
    denied = counters_denied()
    if denied is not None:
        reason = denied.replace(": ", " is ")  # a message has one ": ", before the remedy
        raise UsageError("permission-missing", f"ncu would end with {DENIED}, since {reason}: {ALLOW}")


def _nothing(scope: Scope, what: str, code: Code = "run-incomplete") -> InputError:
    """Return the reason for a missing kernel from ncu's messages in the log; `code` applies if they are unknown."""
    log = scope.directory.parent / "log.txt"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if DENIED in text:
        code = "permission-missing"
        why = f"no permission to read the GPU's counters ({DENIED}): {ALLOW}"
    elif "lock file" in text:
        code = "write-failed"
        why = "its lock file in the temporary folder belongs to another user: set TMPDIR to your own folder"
    elif "driver resource was unavailable" in text:
        code = "tool-failed"
        why = "another program uses the GPU's counters (DCGM, a profiler): stop it, or run dcgmi profile --pause"
    elif "No space left" in text:
        code, why = "disk-full", "the disk is full"
    elif "No kernels were profiled" in text or "No ranges were profiled" in text:
        code = "trace-without-work"
        why = (
            "no kernel was profiled: the run ended before the window, the ranks ran on the CPU, --with skip skipped "
            "all kernels, or this GPU needs another version of ncu"
        )
    else:
        why = "the run ended first, or ncu was killed before it wrote the report"
    return InputError(code, f"{what} into {scope.directory / 'ncu'}: {why}; see {log}")
