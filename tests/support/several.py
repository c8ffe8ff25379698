"""Trainings with several seeds whose every number is known, written as the harness writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.fake_run import START_NS, write_csv, write_events

from analysis.metrics.comparison.trainings import Training, courses_of, summaries
from records.files import write_record
from records.run import TrialDirectory
from records.schema import STEP_COLUMNS, TELEMETRY_COLUMNS
from records.training import Trainings, TrainRun, write_curve
from records.trial import Trial

BATCH, TOKENS = 8, 100
STEP_MS, EVALUATION_MS = 100, 500
START_UP_MS = 2000
"""From the start of the processes to the first step."""
WATTS = 50
DATA = {"fingerprint": "aa", "held_out_samples": 64}
MILLISECOND = 1_000_000


def write_attempt(
    run: TrainRun,
    number: int,
    steps: Sequence[int],
    losses: Mapping[int, float | None],
    *,
    total: int = 20,
    step_ms: float = STEP_MS,
    energy: bool = True,
    begin_ns: int = START_NS,
) -> TrialDirectory:
    """Write an attempt: its processes start at `begin_ns`, each step takes `step_ms`, and the evaluations after as many
    updates as `losses` names take EVALUATION_MS, between the steps.
    """
    trial = Trial(kind="train", preset="tiny", micro_batch_size=BATCH, round=number, training=(("steps", total),))
    directory = run.run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    write_record(directory.env_json, {"device_name": "Example CPU 9000", "telemetry_unavailable": {"cpu": "no RAPL"}})
    now = begin_ns + START_UP_MS * MILLISECOND
    rows, events = [], []
    for step in steps:
        rows.append({"step": step, "start_ns": now, "step_time_ms": step_ms, "samples": BATCH, "real_tokens": TOKENS})
        now += round(step_ms * MILLISECOND)
        if step + 1 in losses:
            now += EVALUATION_MS * MILLISECOND
            told = {"mlm_loss": losses[step + 1], "samples": 64, "seconds": EVALUATION_MS / 1000}
            events.append({"event": "evaluated", "applied_steps": step + 1, "time_ns": now, **told})
    write_csv(directory.steps_csv(0), list(STEP_COLUMNS), [dict.fromkeys(STEP_COLUMNS) | row for row in rows])
    write_events(directory, *events)
    readings = [("load_average", 1.0)] + [("power_watts", float(WATTS))] * energy
    times = range(begin_ns, now + 1000 * MILLISECOND, 200 * MILLISECOND)
    telemetry = [
        {"time_ns": at, "device": "cpu", "quantity": name, "value": value} for at in times for name, value in readings
    ]
    write_csv(directory.telemetry_csv(0), list(TELEMETRY_COLUMNS), telemetry)
    return directory


def write_run_curve(run: TrainRun, steps: int) -> None:
    """Write the curve of a run that made so many steps."""
    write_curve(
        run.curve_csv,
        [
            {"step": step, "applied_steps": step + 1, "samples": BATCH * (step + 1), "loss": 9.0, "learning_rate": 0.1}
            for step in range(steps)
        ],
    )


def write_seed(
    run: TrainRun, losses: Mapping[int, float | None], *, steps: int = 20, finished: bool = True, **attempt: Any
) -> None:
    """Write the training of a seed with one attempt of so many steps."""
    write_attempt(run, 0, range(steps), losses, **attempt)
    write_run_curve(run, steps)
    write_record(run.state_json, {"finished": finished, "status": "ok", "reason": "", "total_steps": 20})


def write_trainings(
    path: Path, seeds: Mapping[int, float], target: float = 6.5, *, reached: bool = True, **settings: Any
) -> Trainings:
    """Write trainings whose seeds reach the target after 10 of 12 steps of the given time in ms, or never do."""
    place = Trainings(path)
    losses = {5: 7.0, 10: 6.4, 12: 6.3} if reached else {5: 7.0, 10: 6.9, 12: 6.8}
    trainings = [Training(run=TrainRun(path / f"seed-{seed}"), variant="pretrain", seed=seed) for seed in seeds]
    for one, step_ms in zip(trainings, seeds.values(), strict=True):
        write_seed(one.run, losses, steps=12, step_ms=step_ms)
    rows = [course.row for course in courses_of(trainings, target)]
    write_record(
        place.document,
        {
            "target": {"score": "mlm_loss", "value": target},
            "settings": {"preset": "tiny", **settings},
            "data": DATA,
            "machine": {"device_name": "Example CPU 9000"},
            "rows": rows,
            "variants": summaries(rows, target),
        },
    )
    return place
