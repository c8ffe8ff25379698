"""Nsight Compute: counters of every kernel of the window and what its rules say, one report per node, exported to CSV.

`ncu` wraps the launcher of the node, records between cudaProfilerStart and cudaProfilerStop, and replays each kernel
alone several times. Kernels of collectives are excluded, since a replayed kernel would wait forever for the other
ranks. Only the first of several ranks is counted, so that ranks do not wait for each other at ncu's lock. The metrics
are those of `metrics_of` that its --query-metrics lists.
"""

import csv
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from bench.machine.devices import first_gpu_capability
from bench.profilers.tool import ALLOW, DENIED, ToolProfiler, check_written, counters_denied, nothing_usable
from common.atomic import write_json, write_text
from common.errors import UsageError
from common.tools import Version, dotted
from records.run import COLLECTED_FILE
from records.trial import Trial

Capability = tuple[int, int]

# Lowest and highest compute capability of an architecture, and its number.
_ARCHITECTURES: tuple[tuple[Capability, Capability, int], ...] = (
    ((7, 0), (7, 4), 70), ((7, 5), (7, 9), 75), ((8, 0), (8, 5), 80), ((8, 6), (8, 8), 86), ((8, 9), (8, 9), 89),
    ((9, 0), (9, 9), 90), ((10, 0), (11, 9), 100), ((12, 0), (12, 9), 120),
)  # fmt: skip

_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"


def _each(form: str, *names: str) -> Iterable[str]:
    return (form.format(name) for name in names)


_EVERYWHERE: tuple[str, ...] = (
    "gpc__cycles_elapsed.max", "gpu__time_duration.sum", "dram__bytes.sum",
    # Pipes and issue slots.
    *_each("sm__inst_executed_pipe_{}" + _ELAPSED, "fma", "xu", "alu", "lsu", "fp64"),
    *_each("sm__pipe_{}_cycles_active" + _ELAPSED, "fma", "tensor", "fp64"),
    f"sm__inst_issued{_ELAPSED}",
    # Operations and their peaks.
    *_each(
        "sm__sass_thread_inst_executed_op_{}_pred_on.sum",
        "fadd", "fmul", "ffma", "hadd", "hmul", "hfma", "dadd", "dmul", "dfma",
    ),
    *_each("sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained", "ffma", "dfma", "hfma"),
    # Levels of the memory: throughput, bytes, peaks, clocks.
    *_each("{}__throughput" + _ELAPSED, "sm", "l1tex", "lts", "dram"),
    f"gpu__compute_memory_throughput{_ELAPSED}",
    *_each("{}__t_bytes.sum", "l1tex", "lts"),
    *_each("{}.sum.peak_sustained", "l1tex__t_bytes", "lts__t_bytes", "dram__bytes"),
    *_each("{}__cycles_elapsed.avg.per_second", "sm", "l1tex", "lts", "dram"),
    "sm__warps_active.avg.pct_of_peak_sustained_active",  # occupancy
)  # fmt: skip

NEWER: Mapping[str, tuple[int, ...]] = {
    f"sm__pipe_tensor_cycles_active_v2{_ELAPSED}": (89,),
    f"sm__inst_executed_pipe_tensor_op_gmma{_ELAPSED}": (90,),
    f"sm__pipe_tc_cycles_active{_ELAPSED}": (100,),
    **dict.fromkeys(_each("sm__ops_path_tensor_src_{}_dst_fp32.sum", "fp16", "bf16", "tf32"), (89, 90, 100, 120)),
}
"""Metrics that Nsight Compute 2022.3 does not list, with the architectures that have them."""
_FURTHER: Mapping[str, tuple[int, ...]] = {
    f"sm__inst_executed_pipe_fp16{_ELAPSED}": (70, 75, 80),
    f"sm__inst_executed_pipe_fma_type_fp16{_ELAPSED}": (86, 89, 90, 100, 120),
    f"sm__inst_executed_pipe_tensor{_ELAPSED}": (70, 75, 80, 86, 89, 90, 120),
    **NEWER,
}


def metrics_of(capability: Capability | str) -> list[str]:
    """Return the metrics to collect on a GPU of a capability, or why it is unknown. Raises UsageError."""
    for lowest, highest, number in _ARCHITECTURES:
        if not isinstance(capability, str) and lowest <= capability <= highest:
            return [*_EVERYWHERE, *(name for name, numbers in _FURTHER.items() if number in numbers)]
    raise UsageError(
        "device-unsupported",
        f"no metrics are known for this GPU's compute capability, {capability}: name them with --with metrics=a,b "
        "(`ncu --query-metrics` lists them), or use --profiler nsys, below 7.0 nvprof",
    )


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
    OLDEST: ClassVar[Version] = (2022, 1)
    GPU_ONLY: ClassVar[bool] = True
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "kernels": "maximum number of kernels to count (2000; a step of BERT large launches fewer)",
        "metrics": "comma-separated ncu metrics, without rules (those of bench/profilers/ncu.py for this GPU)",
    }

    def check(self, trial: Trial) -> None:
        """Raise UsageError or MissingToolError, with the remedy, if ncu cannot profile `trial` here."""
        super().check(trial)
        _ = self._limit
        if "metrics" not in self.options:
            metrics_of(first_gpu_capability())
        denied = counters_denied()
        if denied is not None:
            raise UsageError("permission-missing", f"ncu would end with {DENIED}, since {denied}: {ALLOW}")

    def wrap(self, argv: list[str], trial: Trial, folder: Path) -> list[str]:
        """Return `ncu ... argv`; make the folder for the report. Raises UsageError, MissingToolError."""
        report = _report(trial, folder)
        report.parent.mkdir(exist_ok=True)
        return [
            *(self.path, "--target-processes", "all", "--profile-from-start", "off", "--nvtx"),
            *("--launch-count", str(self._limit)),
            *(["--devices", "0"] if trial.ranks > 1 else []),
            *("--clock-control", "none"),  # clocks as in training
            "--force-overwrite",
            *("--export", str(report.with_suffix("")).replace("%", "%%")),  # ncu expands %h, %p and others
            # ncu matches a part of the name; its manual has a negative lookahead as an example (option kernel-id).
            *("--kernel-name-base", "function", "--kernel-name", f"regex:^(?!.*({COLLECTIVES})).*$"),
            *self._what(),
            *argv,
        ]

    def _what(self) -> list[str]:
        """Return the switches that select the metrics, those of the GPU that this ncu supports, and the rules."""
        if "metrics" in self.options:
            return ["--apply-rules", "no", "--metrics", self.options["metrics"]]
        names = available(metrics_of(first_gpu_capability()), self.run("--query-metrics", timeout_seconds=120))
        sections = (word for name in RULE_SECTIONS for word in ("--section", name))
        return ["--apply-rules", "yes", "--metrics", ",".join(names), *sections]

    def collect(self, trial: Trial, folder: Path) -> list[Path]:
        """Export the report; return it, a CSV with a row per kernel, one with what rules say, and collected.json.

        Raises InputError: there is no permission, no report or no kernel in it, or the report is truncated.
        """
        from analysis.counters import rules_file
        from analysis.readers.ncu import read

        report = _report(trial, folder)
        if not report.exists():
            raise nothing_usable(folder, "report of ncu")
        check_written(report)
        table = report.with_suffix(".csv")
        rules = rules_file(table)
        write_text(table, self._page(report, "raw"))
        rules.unlink(missing_ok=True)
        if messages := rules_of(self._page(report, "details")):
            write_text(rules, messages)
        counters = read(table)
        if counters.kernels.empty:
            raise nothing_usable(folder, f"kernel in {report.name}")
        reached = len(counters.kernels) >= self._limit
        short = f"counted only {self._limit} kernels: raise --with kernels=N for the rest of the window"
        note, problems = table.with_name(COLLECTED_FILE), [*counters.problems, *[short] * reached]
        write_json(note, {"ncu_version": dotted(self.version), "limit_reached": reached, "problems": problems})
        return [report, table, *[rules] * bool(messages), note]

    @property
    def _limit(self) -> int:
        return self.whole_number("kernels", 2000, least=1)

    def _page(self, report: Path, page: str) -> str:
        words = ("--import", str(report), "--csv", "--page", page, "--print-units", "base")
        return self.run(*words, timeout_seconds=_EXPORT_SECONDS)


def rules_of(page: str) -> str:
    """Return the header of a details page and its rows that are messages of rules; "" where there is none."""
    rows = list(itertools.dropwhile(lambda row: "Rule Name" not in row, csv.reader(io.StringIO(page))))
    messages = [row for row in rows[1:] if row[rows[0].index("Rule Name")]]
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([*rows[:1], *messages])
    return text.getvalue() if messages else ""


def available(names: Sequence[str], query: str) -> list[str]:
    """Return the metrics whose base name (up to the first dot) is among those that `ncu --query-metrics` lists."""
    known = frozenset(re.findall(r"^([a-z]\w*__\w+)\s", query, re.MULTILINE))
    return [name for name in names if name.partition(".")[0] in known]


def _report(trial: Trial, folder: Path) -> Path:
    return folder / "ncu" / f"batch_{trial.micro_batch_size}.ncu-rep"
