"""What a training tells while it runs: records, curve, TensorBoard, progress; and how it is asked to stop."""

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused
from support.training_runs import settings, shards

from bench.loggers import LOGGERS, VARIABLE
from bench.run.processes import STOP_SIGNALS, StopRequest, listen_for_stop
from bench.run.train_worker import TrainRecorder
from bert.tasks.base import Evaluation
from bert.train.events import Evaluated, Progress, Resumed, Saved, Warned
from common.errors import SchemaError
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.training import TrainRun, read_events
from records.trial import Trial


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shards(tmp_path / "data")


def made(step: int, loss: float = 2.0, **changes: Any) -> Progress:
    values: dict[str, Any] = {
        "step": step, "loss": loss, "parts": {"mlm_loss": 1.5, "nsp_loss": 0.5}, "learning_rate": 1e-3, "applied": True,
        "applied_steps": step + 1, "samples_seen": 4 * (step + 1), "loss_scale": None, **changes,
    }  # fmt: skip
    return Progress(**values)


def test_the_first_signal_asks_and_the_second_one_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.wanted() and stop.why() == ""
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wanted() and stop.why() == "SIGTERM"
        os.kill(os.getpid(), signal.SIGINT)  # the same one, passed on by a shell
        monkeypatch.setattr("bench.run.processes._SAME_SIGNAL_SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_time_limit_asks_for_a_stop() -> None:
    with StopRequest() as stop:
        stop.max_seconds = 3600.0
        assert not stop.wanted()
        stop.max_seconds = 1e-9
        assert stop.wanted() and "limit" in stop.why()


def test_a_signal_that_comes_before_a_rank_listens_is_not_lost() -> None:
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        os.kill(os.getpid(), signal.SIGTERM)
        asked = listen_for_stop()
        os._exit(17 if asked() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 17


@pytest.fixture
def attempt(tmp_path: Path) -> TrialDirectory:
    directory = RunDirectory(tmp_path / "run").trial("one")
    directory.path.mkdir(parents=True)
    return directory


def recorded(attempt: TrialDirectory, data: Path, *events: Any) -> TrainRecorder:
    recorder = TrainRecorder(
        TrainRun(attempt.path.parents[1]), attempt, settings(data, steps=10, log_every=2), lambda row: None
    )
    for event in events:
        recorder.report(event)
    recorder.close()
    return recorder


def test_steps_made_again_replace_the_earlier_ones_in_the_curve(attempt: TrialDirectory, data: Path) -> None:
    run_of = TrainRun(attempt.path.parents[1])
    recorded(attempt, data, *(made(step, 1.0 + step / 7) for step in range(6)))
    with run_of.curve_csv.open("a") as file:
        file.write("6,7,28,0.12")  # a crash cut it
    recorder = recorded(attempt, data, *(made(step, 9.0 + step / 7) for step in range(4, 7)))
    rows = run_of.read_curve()
    assert [row["step"] for row in rows] == list(range(7))
    assert [row["loss"] for row in rows] == [1.0 + step / 7 for step in range(4)] + [9 + step / 7 for step in (4, 5, 6)]
    assert recorder.summary["steps_made"] == 3 and recorder.summary["first_step"] == 4
    assert recorder.summary["samples"] == 12


def test_a_resumed_training_continues_the_runs_of_its_loggers(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[str | None] = []

    class Tracker:
        run_id = "own-run"

        def __init__(self, run: TrainRun, first_step: int, settings: dict[str, Any], run_id: str | None) -> None:
            known.append(run_id)

        def log(self, step: int, values: dict[str, float]) -> None: ...

        def close(self, finished: bool) -> None: ...

    monkeypatch.setitem(LOGGERS, "tracker", Tracker)
    monkeypatch.setenv(VARIABLE, "tracker")
    for number in range(2):
        directory = RunDirectory(tmp_path / "run").trial(str(number))
        directory.path.mkdir(parents=True)
        write_record(directory.trial_json, Trial(kind="train", round=number).to_json())
        recorded(directory, data, made(number))
    assert known == [None, "own-run"]
    event = read_events(directory)[0]
    assert event["event"] == "logging" and event["run_ids"] == {"tracker": "own-run"}


def test_tensorboard_leaves_out_what_was_made_again(
    attempt: TrialDirectory, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "tensorboard")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = {"mlm_loss": 3.0, "mlm_accuracy": 0.5, "nsp_loss": 0.6, "nsp_accuracy": 0.7}
    evaluation = Evaluation(values=values, samples=5, counts={"predicted_positions": 9})
    told = Evaluated(applied_steps=6, evaluation=evaluation, seconds=0.1)
    recorded(attempt, data, *(made(step, 1.0) for step in range(6)), told)
    time.sleep(1.1)  # TensorBoard names its files by the second and reads them in that order
    recorded(attempt, data, *(made(step, 2.0) for step in range(4, 8)))
    events = accumulator.EventAccumulator(str(attempt.path.parents[1] / "tensorboard"))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("train/loss")}
    assert found == {step: 1.0 if step <= 4 else 2.0 for step in range(1, 9)}
    assert events.Scalars("train/percent_complete")[-1].value == pytest.approx(80)
    assert events.Scalars("eval/mlm_loss") == []


def test_losses_that_are_not_finite_are_recorded_and_shown(attempt: TrialDirectory, data: Path) -> None:
    recorded(attempt, data, made(0), made(1, math.nan, parts={"mlm_loss": math.nan}))
    (row,) = TrainRun(attempt.path.parents[1]).read_curve()[1:]
    assert math.isnan(row["loss"])
    (event,) = [event for event in read_events(attempt) if event["event"] == "progress"]
    assert event["loss"] is None


def test_events_survive_a_line_cut_short_but_no_damage(attempt: TrialDirectory, data: Path) -> None:
    saved = Saved(applied_steps=2, path=Path("step-0000002"), seconds=0.5, size_bytes=2**20)
    resumed = Resumed(path=Path("step-0000001"), applied_steps=1, new_phase=False, moments=True)
    recorded(attempt, data, resumed, made(1), saved, Warned(message="look"))
    path = attempt.path / "events.jsonl"
    with path.open("a") as file:
        file.write('{"event": "sav')
    assert [event["event"] for event in read_events(attempt)] == ["resumed", "progress", "saved", "warned"]
    path.write_text("{\n")
    with refused("file-damaged", "events.jsonl line 1", kind=SchemaError):
        read_events(attempt)
