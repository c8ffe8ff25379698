"""`bertbench measure -- COMMAND`: measure any PyTorch training script, without a change to it."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bench.cli.options import Printed, run_folder
from bench.cli.progress import terminal_text
from bench.cli.result import Result, of_view
from bench.machine.devices import find_devices
from bench.run.supervise import LaunchOptions
from bench.sweep.options import POSITIVE, request_of
from bench.sweep.script import check_program, measure_script, plan_script
from bench.sweep.sweep import locked, result_rows
from common.errors import UsageError
from common.flags import Positional
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOptions(Printed):
    """Measure any PyTorch training script, without a change to it: `measure [options] -- COMMAND`.

    Counts the steps of its optimizer. Reports step time, samples/s and tokens/s where its DataLoader shows them, data
    wait and peak memory. The output of COMMAND goes to log.txt. Works with plain loops, Hugging Face's Trainer,
    Lightning and torchrun. If COMMAND fails, its exit code is returned; 3 if no step was measured.

    Examples:
        bertbench measure -- python train.py --epochs 1
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
    profile: bool = False
    """Profile steps [--start, --stop) with PyTorch's profiler; step times are then those of the other steps."""
    timeout_seconds: Annotated[float | None, POSITIVE] = None
    """Time limit of COMMAND in s; default none."""
    price_per_hour: Annotated[float | None, POSITIVE] = None
    """Price of the machine per hour, for the cost columns; default no cost columns."""


OPTIONS = {"measure": MeasureOptions}


def run(options: MeasureOptions) -> Result:
    """Measure; the exit code is that of a command that failed, 3 if the measurement itself did."""
    from analysis.run_views import script

    if "RANK" in os.environ:
        problem = "measure was started by a launcher: start it once, as measure -- torchrun --nproc-per-node 2 train.py"
        raise UsageError("option-not-applicable", problem)
    check_program(options.command)
    run, devices = RunDirectory(run_folder(options.out)), find_devices()
    launch = LaunchOptions(
        timeout_seconds=options.timeout_seconds, price_per_hour=options.price_per_hour, program=options.command
    )

    with locked(run):
        trial = plan_script(run, options.command, options.name, options.start, options.stop, options.profile)
        request = {**request_of(options), "command": "measure", "program": list(trial.command)}
        log = terminal_text(str(run.trial(trial.trial_id).log))
        print(f"measuring; output: {log}", file=sys.stderr, flush=True)
        measured = measure_script(run, trial, request, devices, launch)
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
    return of_view(dataclasses.replace(view, document=document), options, code=_exit_code(row), facts=facts)


def _exit_code(result: Mapping[str, Any]) -> int:
    """Return 0 for a measured command, the code of one that failed (128 + that of a signal), 3 without measurement."""
    own = int(result.get("exit_code") or 0)
    return 0 if result["status"] == "ok" else own if result["status"] != "timeout" and 0 < own < 256 else 3
