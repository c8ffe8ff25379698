"""A file with the state of the run in Prometheus' text format, which node_exporter's textfile collector reads.

Format: https://prometheus.io/docs/instrumenting/exposition_formats (version 0.0.4). The process that starts the ranks
writes it from the records that they write anyway: nothing is asked of the ranks.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.run.processes import descendants, ranks_of
from common.atomic import write_text
from common.errors import SchemaError, StorageError
from records.run import TrialDirectory
from records.trial import Trial

SECONDS = 1.0
"""Least time between two writes while a trial runs."""
STATUSES = ("running", "ok", "oom", "crashed", "timeout", "refused", "interrupted")
"""How a trial stands, as result.json has it once it has ended."""
METRICS: dict[str, tuple[str, str]] = {
    "bertbench_status": ("gauge", "1 for the status of the trial, 0 for the others."),
    "bertbench_steps_total": ("counter", "Optimizer steps made by this trial."),
    "bertbench_samples_total": ("counter", "Sequences in these steps, all ranks."),
    "bertbench_tokens_total": ("counter", "Tokens without padding in these steps, all ranks."),
    "bertbench_samples_per_second": ("gauge", "Sequences per second of the newest steps, all ranks."),
    "bertbench_step_time_seconds": ("gauge", "Mean time of the newest steps, each that of its slowest rank."),
    "bertbench_loss": ("gauge", "Training loss of the newest step, mean of the ranks."),
    "bertbench_peak_memory_bytes": ("gauge", "Highest memory of any rank or GPU so far, by what is counted."),
}
"""Type and help of every metric, by name."""
_DEVICE, _RESIDENT, _ALLOCATED = "device used", "resident set", "device allocator"


@dataclass(slots=True)
class _Step:
    """What is known of a step whose ranks have not all written it."""

    ranks: int = 0
    ms: float = 0.0
    samples: int = 0
    tokens: int = 0
    losses: list[float] = field(default_factory=list)


class _Rows:
    """Reads a growing CSV file, each whole row once."""

    def __init__(self, path: Path) -> None:
        self._path, self._position, self._columns = path, 0, list[str]()

    def new(self) -> list[dict[str, str]]:
        """Return the rows since the last call; none where the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                whole, _, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        if not whole:
            return []
        self._position += len(whole) + 1
        lines = [line.rstrip("\r").split(",") for line in whole.decode("utf-8", "replace").split("\n")]
        if not self._columns:
            self._columns, lines = lines[0], lines[1:]
        return [dict(zip(self._columns, line, strict=True)) for line in lines if len(line) == len(self._columns)]


class _Live:
    """The numbers of one trial so far."""

    def __init__(self, trial: Trial, directory: TrialDirectory) -> None:
        self.trial, self.directory = trial, directory
        self.steps = self.samples = self.tokens = 0
        self.samples_per_second: float | None = None
        self.step_seconds: float | None = None
        self.loss: float | None = None
        self.memory: dict[str, int] = {}
        self._rows = [_Rows(directory.steps_csv(rank)) for rank in range(trial.ranks)]
        self._sensors = _Rows(directory.telemetry_csv(0))
        self._open: dict[str, _Step] = {}

    def read(self) -> None:
        """Take in what the ranks and the sensors have written since the last call."""
        complete: list[_Step] = []
        for rows in self._rows:
            for row in rows.new():
                step = self._open.setdefault(row["step"], _Step())
                step.ranks += 1
                step.ms = max(step.ms, float(row["step_time_ms"]))
                step.samples += int(row["samples"])
                step.tokens += int(row["real_tokens"])
                step.losses += [float(row["loss"])] if row["loss"] else []
                if step.ranks == len(self._rows):
                    complete.append(self._open.pop(row["step"]))
        if complete:
            seconds = sum(step.ms for step in complete) / 1000
            samples = sum(step.samples for step in complete)
            self.steps += len(complete)
            self.samples += samples
            self.tokens += sum(step.tokens for step in complete)
            self.step_seconds = seconds / len(complete)
            self.samples_per_second = samples / seconds if seconds > 0 else None
            losses = complete[-1].losses
            self.loss = sum(losses) / len(losses) if losses else None
        for reading in self._sensors.new():
            if reading["quantity"] == "gpu_memory_used_bytes":
                self._most(_DEVICE, int(float(reading["value"])))

    def read_memory(self) -> None:
        """Take in the highest resident set of the ranks of this machine; of GPUs the sensors tell."""
        if self.trial.device != "cpu":
            return
        for pid in ranks_of(descendants(os.getpid())):
            self._most(_RESIDENT, _highest_resident(pid))

    def take(self, result: Mapping[str, Any]) -> None:
        """Take in the result of the trial, which knows the peak memory of its ranks."""
        self._most(_RESIDENT if self.trial.device == "cpu" else _ALLOCATED, int(result.get("peak_memory_bytes") or 0))

    def _most(self, kind: str, found: int) -> None:
        if found:
            self.memory[kind] = max(found, self.memory.get(kind, 0))

    def text(self, status: str) -> str:
        """Return the file's text."""
        trial = self.trial
        labels = {"task": trial.task, "preset": trial.preset, "precision": trial.precision, "trial": trial.trial_id}
        values: dict[str, list[tuple[dict[str, str], float | None]]] = {
            "bertbench_status": [({"status": name}, float(name == status)) for name in (*STATUSES, status)],
            "bertbench_steps_total": [({}, self.steps)],
            "bertbench_samples_total": [({}, self.samples)],
            "bertbench_tokens_total": [({}, self.tokens)],
            "bertbench_samples_per_second": [({}, self.samples_per_second)],
            "bertbench_step_time_seconds": [({}, self.step_seconds)],
            "bertbench_loss": [({}, self.loss)],
            "bertbench_peak_memory_bytes": [({"kind": kind}, most) for kind, most in sorted(self.memory.items())],
        }
        return exposition((name, {**labels, **own}, value) for name, found in values.items() for own, value in found)


class MetricsFile:
    """Keeps the file up to date. A file that cannot be written is a warning: the run continues."""

    def __init__(self, path: Path, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._warn, self._clock = path, warn, clock
        self._live: _Live | None = None
        self._next = -math.inf
        self._failed = False

    def look(self, trial: Trial, directory: TrialDirectory) -> None:
        """Bring the file up to date, at most once a second; called while the trial runs, as often as one likes."""
        if self._live is None or self._live.trial != trial:
            self.end()
            self._live, self._next = _Live(trial, directory), max(self._next, self._clock())
        now = self._clock()
        if now < self._next:
            return
        self._next = now + SECONDS
        self._live.read()
        self._live.read_memory()
        self._write(self._live.text("running"))

    def end(self, result: Mapping[str, Any] | None = None) -> None:
        """Write how the trial ended, if one was running; without `result` as result.json says."""
        live, self._live = self._live, None
        if live is None:
            return
        if result is None:
            with contextlib.suppress(SchemaError):  # the reader of the file reports it
                result = live.directory.read_result()
        live.read()
        live.take(result or {})
        self._write(live.text(str((result or {}).get("status", "interrupted"))))
        self._next = self._clock() + SECONDS

    def _write(self, text: str) -> None:
        try:
            write_text(self._path, text)
            self._failed = False
        except (StorageError, OSError) as error:
            if not self._failed:
                self._warn(f"--metrics-file is not up to date, the run continues: {error}")
            self._failed = True


def exposition(samples: Iterable[tuple[str, Mapping[str, str], float | None]]) -> str:
    """Return samples as text, each metric of METRICS after its help and type; what is unknown or repeated is left out.

    Args:
        samples: name, labels and value, ordered by name.
    """
    lines: dict[str, None] = {}
    for name, labels, value in samples:
        if value is None or not math.isfinite(value):
            continue
        kind, says = METRICS[name]
        told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        shown = int(value) if float(value).is_integer() else value
        lines |= dict.fromkeys((f"# HELP {name} {says}", f"# TYPE {name} {kind}", f"{name}{{{told}}} {shown!r}"))
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _highest_resident(pid: int) -> int:
    """Return a process's highest resident set so far in bytes; 0 where Linux does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(found[0]) if found else 0
