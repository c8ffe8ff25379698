"""What an analysis predicts, as records that a later measurement can check, and the commands that measure it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.diagnose.advice import Advice, throughput_command
from analysis.diagnose.answer import Answer, Point
from analysis.load import LoadedTrial
from analysis.metrics.communication.projection import Projected
from analysis.metrics.comparison.predictions import Check, Ledger, configuration_key
from records.prediction import Origin, Prediction, configuration_of, machine_of
from records.trial import Trial

TESTS = "bertbench throughput "
"""What the command of advice begins with if it measures a changed configuration."""


def projections(trials: Sequence[LoadedTrial], projected: Sequence[Projected]) -> list[Prediction]:
    """Return the step times of projections to more devices than were measured; refused ones are left out.

    Args:
        trials: all of the run: the measured collectives are origins too.
        projected: what projection.projections returned.
    """
    links = tuple(Origin(trial_id=one.trial.trial_id) for one in trials if one.trial.kind == "comm")
    found = []
    for one in projected:
        row, base = one.row, one.members[0]
        if row["reason"] or row["world_size"] <= base.trial.world_size:
            continue
        strategy = "ddp" if base.trial.strategy == "single" else base.trial.strategy
        about = dataclasses.replace(configuration_of(base.trial), strategy=strategy, world_size=row["world_size"])
        assumed = f"; assumes that {row['assumption']}" if row["assumption"] else ""
        found.append(
            Prediction(
                kind="projection",
                quantity="step_time_ms",
                value=row["step_time_ms"],
                low=row["step_time_ms_low"],
                high=row["step_time_ms_high"],
                trial=about,
                machine=machine_of(base.environment),
                origins=(*origins(one.members), *links),
                basis=f"projection from {wording.counted(row['base_world_size'], 'device')}, "
                f"{wording.counted(row['rounds'], 'round')}{assumed}",
            )
        )
    return found


def floors(trials: Iterable[LoadedTrial]) -> list[Prediction]:
    """Return the lowest possible step time of each step that was broken down."""
    return [
        Prediction(
            kind="floor",
            quantity="step_time_ms",
            value=float(one.row["floor_ms"]),
            bound="lower",
            trial=configuration_of(one.trial),
            machine=machine_of(one.environment),
            origins=origins([one]),
            basis="model FLOPs at the measured peak, traffic of the other parts at the measured bandwidth",
        )
        for one in trials
        if one.trial.kind == "components" and one.row["status"] == "ok" and one.row.get("floor_ms")
    ]


def testable(advice: Advice) -> bool:
    """Return whether advice says how much time per sample it could save, and has a command that measures that."""
    known = advice.saves is not None and 0 < advice.saves < 1
    return known and advice.of in ("step time", "time per sample") and advice.command.startswith(TESTS)


def what_ifs(
    trials: Sequence[LoadedTrial],
    said: Iterable[Answer],
    target: Callable[[str], Trial | None],
) -> list[Prediction]:
    """Return, for each advice that can be tested, the lowest time per sample that its gain allows.

    Advice whose configuration the run has measured already compares measurements, and is left out.

    Args:
        trials: all of the run.
        said: the answers with their advice.
        target: returns the configuration that a command measures; None if it cannot run here.
    """
    measured = {_key(one.trial, one) for one in trials if one.trial.kind == "throughput" and one.ok}
    found = []
    pairs = [(answer.best, advice) for answer in said for advice in answer.advice if testable(advice)]
    for best, advice in pairs:
        trial = None if best is None else target(advice.command)
        if best is not None and trial is not None and _key(trial, best.trials[0]) not in measured:
            found.append(_what_if(advice, best, configuration_of(trial)))
    return found


def _what_if(advice: Advice, best: Point, trial: Trial) -> Prediction:
    assert advice.saves is not None, "advice without a gain predicts nothing"
    return Prediction(
        kind="what_if",
        quantity="sample_time_ms",
        value=(1 - advice.saves) * 1e3 / best.samples_per_second,
        bound="lower",
        trial=trial,
        machine=machine_of(best.trials[0].environment),
        origins=origins(best.trials),
        basis=f"{advice.cause}: {advice.remedy}. {advice.gain}",
    )


def origins(trials: Iterable[LoadedTrial]) -> tuple[Origin, ...]:
    """Return measured trials as origins of a prediction."""
    return tuple(
        Origin(trial_id=one.trial.trial_id, start_ns=one.steps[0]["start_ns"] if one.steps else None) for one in trials
    )


def _key(trial: Trial, on: LoadedTrial) -> str:
    return configuration_key(trial, machine_of(on.environment))


def check_command(check: Check) -> str:
    """Return the command that measures what a prediction is about, into the run directory that holds it.

    On more devices than the machine has it begins with `bertbench launch ... --`, whose options are to be filled in.
    """
    trial, machine = check.prediction.trial, check.prediction.machine
    command = throughput_command(dataclasses.asdict(trial), _shown(check.run))
    held = machine.get("gpus") if trial.device == "cuda" else machine.get("usable_cores")
    beyond = isinstance(held, int) and 0 < held < trial.world_size
    return f"bertbench launch ... -- {command}" if beyond or trial.nodes > 1 else command


def _shown(path: Path) -> str:
    """A folder as a reader would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def ledger_document(ledger: Ledger) -> dict[str, Any]:
    """Return a ledger as plain values: predictions (Check.row, with `command` if unchecked), errors, problems."""
    return {"predictions": ledger_rows(ledger), "errors": ledger.errors(), "problems": list(ledger.problems)}


def ledger_rows(ledger: Ledger) -> list[Mapping[str, Any]]:
    """Return the rows of predictions.csv."""
    return [{**check.row(), "command": check_command(check) if check.reason else ""} for check in ledger.checks]
