"""One attempt at a training run, in its run directory: what `bertbench train` does between options and table."""

from pathlib import Path
from typing import Any

import msgspec

from bench.loggers import VARIABLE as LOG_TO_VARIABLE
from bench.machine.devices import Devices
from bench.machine.environment import capture
from bench.run.inside import Leader
from bench.run.supervise import LaunchOptions, finish, run_trial
from bench.sweep.sweep import tidy, write_results
from bench.sweep.training import Plan
from bert.tasks import make_task
from records.documents import Best, TrainState
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun, read_events


def train_once(
    run: TrainRun, plan: Plan, devices: Devices, watcher: Any, leader: Leader | None = None
) -> tuple[TrialDirectory, dict[str, Any]]:
    """Make one attempt inside a lock on the run; return its folder and result.

    `watcher` has `look` and `stop_wanted` of LaunchOptions. The ranks of the world of `leader` make it together.
    """
    options = LaunchOptions(
        timeout_seconds=None,
        leader=leader,
        variables={LOG_TO_VARIABLE: " ".join(plan.log_to)},
        look=watcher.look,
        stop_wanted=watcher.stop_wanted,
    )
    tidy(run.run)
    for before in run.attempts():
        if before.read_result() is None:
            reason = "killed with its launcher, or interrupted, before it recorded a result"
            finish(before.read_trial(), before, "crashed", reason, options, code="worker-lost")
    trial = plan.trial(
        kind="train",
        device=devices.kind,
        round=max((before.read_trial().round for before in run.attempts()), default=-1) + 1,
        max_steps=plan.settings.steps,
        threads_per_rank=plan.options.threads,
        training=tuple(sorted(plan.settings.to_json().items())),
    )
    directory = run.run.trial(trial.trial_id)
    try:
        result = run_trial(trial, directory, devices, capture(devices), options)
    finally:
        if directory.trial_json.exists():
            write_record(run.state_json, msgspec.to_builtins(_state(run, plan)))
            write_results(run.run)
    return directory, result


def _state(run: TrainRun, plan: Plan) -> TrainState:
    """Where the run stands: what the attempts wrote down while they ran is there however they ended.

    An attempt that was refused changes nothing of what the run is: phase, steps and request stay those before it.
    """
    attempts = run.attempts()
    events = [event for directory in attempts for event in read_events(directory)]
    reached = [event for event in events if event["event"] in ("resumed", "saved")]
    applied_steps = reached[-1]["applied_steps"] if reached else 0
    # After a damaged checkpoint an earlier one continues.
    checkpoints = [Path(event["path"]).name for event in reached if not event.get("new_phase")]
    checkpoint = checkpoints[-1] if checkpoints else None
    saved: dict[str, Any] = next((event for event in reversed(reached) if event["event"] == "saved"), {})
    best: dict[str, Any] = {name: saved.get(f"best_{name}") for name in Best.__struct_fields__}
    result = attempts[-1].read_result() or {}
    state = TrainState(
        phase=plan.phase,
        total_steps=plan.settings.steps,
        request=plan.request,
        loss=make_task(plan.settings.task, plan.settings.task_options).loss_label(),
        applied_steps=applied_steps,
        status=result.get("status", "interrupted"),
        reason=result.get("reason", ""),
        checkpoint=checkpoint,
        evaluation=next((event for event in reversed(events) if event["event"] == "evaluated"), None),
        best=None if best["checkpoint"] is None else Best(**best),
        attempts=[directory.path.name for directory in attempts],
    )
    if state.status == "refused" and run.state_json.exists():
        before = run.read_state()
        state.phase, state.total_steps, state.request = before.phase, before.total_steps, before.request
    state.finished = checkpoint is not None and applied_steps >= state.total_steps
    return state
