"""`bertbench measure -- COMMAND`: measure any PyTorch training script, without a change to it."""

import csv
import dataclasses
import json
import os
import shlex
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from analysis import wording
from analysis.metrics.statistics import warmup_steps
from bench.cli.options import Printed, run_folder
from bench.cli.progress import LINE_SECONDS, draw, new_lines, say
from bench.cli.result import Result, of_view
from bench.hook.recorder import PER_STEP
from bench.machine.devices import find_devices
from bench.run.processes import StopRequest
from bench.run.supervise import LaunchOptions
from bench.sweep.options import COUNT, POSITIVE, request_of
from bench.sweep.script import check_program, measure_script, plan_script
from bench.sweep.sweep import locked, result_rows
from common.errors import UsageError
from common.flags import Positional
from records.run import RunDirectory, TrialDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOptions(Printed):
    """Measure any PyTorch training script, without a change to it: `measure [options] -- COMMAND`.

    Counts the steps of its optimizer. Reports step time, samples/s and tokens/s where its DataLoader shows them, data
    wait and peak memory. The output of COMMAND goes to log.txt. Works with plain loops, Hugging Face's Trainer,
    Lightning and torchrun. If COMMAND fails, its exit code is returned; 3 if no step was measured.

    --steps, --timeout-seconds, SIGTERM and Ctrl-C end COMMAND and keep the steps that it has made.

    Examples:
        bertbench measure --steps 100 -- python train.py  # ends it after 100 steps behind warm-up
        bertbench measure --profile --start 20 --stop 25 -- python train.py
        bertbench measure --out runs/mine -- torchrun --nproc-per-node 2 train.py
    """

    command: Positional[tuple[str, ...]]
    """Program and its arguments."""
    out: Path = Path("runs/measure")
    """Run directory. Every call adds a trial."""
    name: str | None = None
    """Name in tables; default the name of the script."""
    start: int | None = None
    """First measured step, from 0, with --stop; default the end of warm-up."""
    stop: int | None = None
    """One past the last measured step, with --start; default one past the last step."""
    steps: Annotated[int | None, COUNT] = None
    """End COMMAND once so many steps were measured; default when it ends by itself."""
    profile: bool = False
    """Profile steps [--start, --stop) with PyTorch's profiler; step times are then those of the other steps."""
    samples_per_step: Annotated[int | None, COUNT] = None
    """Samples of a step on each rank, of a script without a DataLoader; default what its DataLoader shows."""
    tokens_per_step: Annotated[int | None, COUNT] = None
    """Tokens of a step on each rank; default what its DataLoader shows."""
    timeout_seconds: Annotated[float | None, POSITIVE] = None
    """End COMMAND after this time in s; default no limit."""
    price_per_hour: Annotated[float | None, POSITIVE] = None
    """Price of the machine per hour, for the cost columns; default no cost columns."""


OPTIONS = {"measure": MeasureOptions}


class _Progress:
    """Shows on a terminal how far a script is, and knows when enough of its steps were measured."""

    def __init__(self, stop: StopRequest, trial: Trial, steps: int | None) -> None:
        self._stop, self._steps = stop, steps
        self._start = trial.stop_iteration if trial.profiler else trial.start_iteration
        self._times: list[float] = []
        self._position, self._next, self._enough = 0, 0.0, False

    def stopped_by(self) -> str:
        """Return what is to end the script; "" while nothing is."""
        return self._stop.why() or (f"--steps {self._steps}" if self._enough else "")

    def look(self, trial: Trial, directory: TrialDirectory) -> None:
        """Read the steps of rank 0 that are new."""
        path = directory.steps_csv(0)
        if time.monotonic() < self._next or not path.exists():
            return
        self._next = time.monotonic() + LINE_SECONDS
        lines, self._position = new_lines(path, self._position)
        rows = [row for row in csv.DictReader(lines, list(STEP_COLUMNS)) if row["step_time_ms"][:1].isdigit()]
        self._times += [float(row["step_time_ms"]) for row in rows]
        first = warmup_steps(self._times) if self._start is None else self._start
        self._enough = self._steps is not None and len(self._times) - first >= self._steps
        seconds = sum(float(row["step_time_ms"]) for row in rows) / 1000
        if seconds:
            waited = sum(float(row["data_wait_ms"] or 0) for row in rows) / 1000
            memory = (directory.read_ranks().get(0) or {}).get("peak_memory_bytes")
            draw(
                f"step {len(self._times):,}: {wording.number(len(rows) / seconds)} steps/s, "
                f"{wording.percent(waited / seconds)} waiting for data, peak memory {wording.size(memory)}"
            )


def run(options: MeasureOptions) -> Result:
    """Measure; the exit code is that of a command that failed, 3 if the measurement itself did."""
    from analysis.run_views import script

    if "RANK" in os.environ:
        problem = "measure was started by a launcher: start it once, as measure -- torchrun --nproc-per-node 2 train.py"
        raise UsageError("option-not-applicable", problem)
    check_program(options.command)
    run, devices = RunDirectory(run_folder(options.out)), find_devices()
    stop_at = None if options.start is None or options.steps is None else options.start + options.steps
    with locked(run), StopRequest() as stop:
        trial = plan_script(run, options.command, options.name, options.start, options.stop or stop_at, options.profile)
        request = {**request_of(options), "command": "measure", "program": list(trial.command)}
        say(f"measuring; output: {run.trial(trial.trial_id).log}")
        progress = _Progress(stop, trial, options.steps)
        launch = LaunchOptions(
            timeout_seconds=options.timeout_seconds, price_per_hour=options.price_per_hour, program=options.command,
            look=progress.look, stopped_by=progress.stopped_by,
            variables={PER_STEP: json.dumps([options.samples_per_step, *[options.tokens_per_step] * 2])},
        )  # fmt: skip
        try:
            measured = measure_script(run, trial, request, devices, launch)
        finally:
            draw("")
    view = script(run, measured.path.name)
    (row,) = [row for row in result_rows(run) if row["trial_id"] == measured.path.name]
    if cautions := view.document["cautions"]:
        row["cautions"] = [*(row.get("cautions") or []), *cautions]
    document = {"run": str(run.path), "log": str(measured.log), **row}
    if row["status"] == "ok":
        document["steps_per_second"] = row["step_time_ms_mean"] and 1000 / row["step_time_ms_mean"]
    facts = [("log", str(measured.log)), ("results", str(run.results_csv)), ("report", f"bertbench report {run.path}")]
    if profile := row.get("profile"):
        found = f"bertbench analyze {shlex.quote(str(measured.path))}"
        facts.append(("profile", f"none: {profile['problem']}" if profile["problem"] else found))
    own = int(row.get("exit_code") or 0)  # 128 + the number of a signal
    code = 0 if row["status"] == "ok" else own if row["status"] != "timeout" and 0 < own < 256 else 3
    code = 130 if stop.signal == signal.SIGINT else code
    return of_view(dataclasses.replace(view, document=document), options, code=code, facts=facts)
