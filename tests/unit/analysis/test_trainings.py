"""Trainings held against each other: every figure worked by hand from run directories that are written here."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import document
from support.commands import text as shown
from support.fake_run import write_training
from support.timelines import timeline

from analysis.metrics.communication.exposure import all_reduce
from analysis.metrics.comparison.trainings import VariantRun, compare_heads, compare_trainings
from analysis.render import figure as charts
from analysis.render.comparison_tables import (
    comparison_rows,
    comparison_table,
    head_summary,
    heads_blocks,
)
from analysis.render.pages import trainings_in
from analysis.render.tables import Table
from analysis.render.training_figures import comparison_figure, lines_figure
from records.files import write_record
from records.run import TrialDirectory
from records.schema import COMPARISON_COLUMNS, STEP_COLUMNS
from records.training import TrainRun, events_jsonl, write_curve
from records.trial import Trial

BATCH = 8
TOTAL = 4


def write_attempt(
    run: TrainRun,
    times_ms: list[list[float]],
    number: int = 0,
    first_step: int = 0,
    gap_ms: float = 0.0,
    total: int = TOTAL,
) -> TrialDirectory:
    """An attempt with one list of step times per rank; `gap_ms` lies between any two steps."""
    ranks = len(times_ms)
    trial = Trial(
        kind="train", strategy="single" if ranks == 1 else "ddp", preset="tiny", micro_batch_size=BATCH // ranks,
        world_size=ranks, round=number, training=(("steps", total),),
    )  # fmt: skip
    directory = run.run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    slowest = [max(step) for step in zip(*times_ms, strict=True)]
    for rank, own in enumerate(times_ms):
        with directory.steps_csv(rank).open("w", newline="") as file:
            table = csv.DictWriter(file, STEP_COLUMNS)
            table.writeheader()
            for place, time_ms in enumerate(own):
                start = 10**18 + round(1e6 * (sum(slowest[:place]) + gap_ms * place))
                table.writerow({"step": first_step + place, "start_ns": start, "step_time_ms": time_ms})
        write_record(directory.rank_json(rank), {"threads": 2 // ranks, "peak_memory_bytes": 1000 + rank})
    return directory


def curve_rows(losses: list[float | None]) -> list[dict[str, Any]]:
    return [
        {"step": n, "applied_steps": n + 1, "samples": BATCH * (n + 1), "loss": loss, "learning_rate": 0.1 * (n + 1)}
        for n, loss in enumerate(losses)
    ]


def variant(folder: Path, name: str, losses: list[float | None], **state: Any) -> VariantRun:
    strategy, devices = name.split("-")
    run = TrainRun(folder / name)
    run.path.mkdir(parents=True, exist_ok=True)
    write_curve(run.curve_csv, curve_rows(losses))
    write_record(run.state_json, {"finished": True, "status": "ok", **state})
    return VariantRun(strategy=strategy, devices=int(devices), run=run)


@pytest.fixture
def pair(tmp_path: Path) -> list[VariantRun]:
    """One device with 4 steps of 100 ms, and two devices whose slowest rank takes 60, 50, 50 and 40 ms."""
    one = variant(tmp_path, "single-1", [4.0, 3.0, 2.5, 2.0], evaluation=scores(80.0))
    write_attempt(one.run, [[100.0, 100.0, 100.0, 100.0]], gap_ms=50.0)
    two = variant(tmp_path, "ddp-2", [4.0, 3.25, 2.5, 1.9], evaluation=scores(80.5))
    write_attempt(two.run, [[60.0, 30.0, 50.0, 20.0], [10.0, 50.0, 40.0, 40.0]])
    return [one, two]


def scores(f1: float) -> dict[str, Any]:
    return {
        "event": "evaluated", "time_ns": 5, "seconds": 1.5, "applied_steps": 4, "best": True, "samples": 64,
        "exact": 70.0, "f1": f1,
    }  # fmt: skip


def test_time_rate_and_what_is_saved_are_those_worked_by_hand(pair: list[VariantRun]) -> None:
    one, two = compare_trainings(pair).rows
    assert (one["step_seconds"], two["step_seconds"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert one["loop_seconds"] == pytest.approx(0.55), "4 steps and the 3 gaps between them"
    told = {"time_ns": 9, "applied_steps": 4, "seconds": 1.5}
    saved = {**told, "event": "saved", "path": "step-0000004", "size_bytes": 1, "seconds": 0.25}
    lines = [scores(80.0), saved, {**scores(70.0), "applied_steps": 2}]
    events_jsonl(pair[0].run.attempts()[-1]).write_text("".join(json.dumps(line) + "\n" for line in lines))
    behind = compare_trainings(pair).rows[0]["loop_seconds"]
    assert behind == pytest.approx(0.55 + 1.5 + 0.25), "with what came behind the last step"
    assert (one["samples_per_second"], two["samples_per_second"]) == (pytest.approx(80), pytest.approx(160))
    assert (one["speedup"], two["speedup"]) == (1, pytest.approx(2))
    assert two["time_saved"] == pytest.approx(0.5)
    assert (one["step_time_ms"], two["step_time_ms"]) == (100, 50)
    assert (one["threads_per_rank"], two["threads_per_rank"], two["peak_memory_bytes"]) == (2, 1, 1001)
    assert (two["global_batch_size"], two["micro_batch_size"], two["steps"], two["samples"]) == (8, 4, 4, 32)
    assert two["greatest_loss_difference"] == 0.25 and two["greatest_loss_difference_step"] == 1
    assert one["greatest_loss_difference"] == 0 and two["compared_steps"] == 4 and two["last_loss"] == 1.9
    assert two["scores"] == {"exact": 70.0, "f1": 80.5} and two["evaluation_samples"] == 64


def test_epochs_follow_from_the_samples_of_the_data(pair: list[VariantRun]) -> None:
    found = compare_trainings(pair, samples_per_epoch=16)
    assert found.epochs == 2 and [row["epochs"] for row in found.rows] == [2, 2]
    assert found.rows[1]["epoch_seconds"] == pytest.approx(16 / 160)
    assert compare_trainings(pair).epochs is None


def test_steps_made_again_count_once_and_time_between_attempts_not_at_all(pair: list[VariantRun]) -> None:
    write_attempt(pair[0].run, [[30.0, 20.0]], number=1, first_step=2)
    found = compare_trainings(pair)
    row, curve = found.rows[0], found.curves[0]
    assert row["step_seconds"] == pytest.approx(0.1 + 0.1 + 0.03 + 0.02) and row["attempts"] == 2
    assert curve.seconds.tolist() == pytest.approx([0.1, 0.25, 0.28, 0.3])
    assert curve.percent.tolist() == [25, 50, 75, 100]


def test_a_variant_that_failed_is_named_and_the_others_are_compared(tmp_path: Path, pair: list[VariantRun]) -> None:
    broken = variant(tmp_path, "ddp-4", [4.0, 3.0], finished=False, status="oom", reason="rank 3: no memory left")
    log = write_attempt(broken.run, [[50.0, 50.0]] * 4).log
    absent = VariantRun(strategy="ddp", devices=8, run=TrainRun(tmp_path / "ddp-8"))
    found = compare_trainings([*pair, broken, absent])
    assert [row["status"] for row in found.rows] == ["finished", "finished", "oom", "not begun"]
    assert [row["devices"] for row in found.failed] == [4, 8]
    row = found.rows[2]
    assert (row["reason"], row["log"]) == ("rank 3: no memory left", str(log))
    assert row["speedup"] == pytest.approx(2) and row["time_saved"] is None, "it saw fewer samples"
    assert found.rows[1]["speedup"] == pytest.approx(2)
    assert "2 of 4" in shown([comparison_table(found)]) and "oom" in shown([comparison_table(found)])


def test_the_table_has_a_row_per_variant_with_every_column(pair: list[VariantRun]) -> None:
    rows = comparison_rows(compare_trainings(pair))
    assert list(rows[0]) == [*COMPARISON_COLUMNS, "score_exact", "score_f1"]
    assert [(row["strategy"], row["devices"], row["score_f1"]) for row in rows] == [
        ("single", 1, 80.0),
        ("ddp", 2, 80.5),
    ]
    assert rows[0]["all_reduce_share"] is None and rows[1]["speedup"] == pytest.approx(2)
    json.dumps(compare_trainings(pair).rows, allow_nan=False)


MS = 1_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevComm*)"


def test_all_reduce_is_the_mean_of_its_shares_over_the_ranks() -> None:
    # Two steps of 50 ms: 30 ms of all-reduce, 10 of them exposed.
    one = timeline(
        0,
        steps=[(0, 0, 50 * MS), (1, 50 * MS, 100 * MS)],
        kernels=[("gemm", 0, 0, 20 * MS), (ALL_REDUCE, 7, 0, 30 * MS)],
        collectives=[("all_reduce", 0, 30 * MS)],
    )
    # Two steps of 100 ms: 20 ms of all-reduce and 80 of broadcast, all exposed. Its rank is not known.
    other = timeline(
        None,
        steps=[(0, 0, 100 * MS), (1, 100 * MS, 200 * MS)],
        kernels=[(ALL_REDUCE, 7, 0, 20 * MS), (BROADCAST, 7, 20 * MS, 100 * MS)],
        collectives=[("all_reduce", 0, 20 * MS), ("broadcast", 20 * MS, 100 * MS)],
    )
    assert all_reduce([one, other]) == pytest.approx(
        {
            "communication_share": 0.4,
            "communication_exposed_share": 0.3,
            "communication_exposed_ms": (5 + 50) / 2,
            "all_reduce_share": (0.3 + 0.1) / 2,
            "all_reduce_exposed_share": (0.1 + 0.1) / 2,
            "all_reduce_hidden_share": 0.1,
            "all_reduce_ms": (15 + 10) / 2,
            "profiled_step_ms": (50 + 100) / 2,
            "profiled_steps": 2,
        }
    )


def test_exposed_communication_names_the_step_that_it_is_a_share_of(pair: list[VariantRun]) -> None:
    shares = {"communication_share": 0.2, "communication_exposed_share": 0.145, "communication_exposed_ms": 106.9}
    profiled = VariantRun(strategy="ddp", devices=2, run=pair[1].run, profile={**shares, "profiled_step_ms": 738.0})
    table = comparison_table(compare_trainings([pair[0], profiled]))
    assert table.headings[-1] == "exposed" and [row[-1] for row in table.texts()] == ["\N{EN DASH}", "14.5 %"]


@pytest.mark.parametrize("steps", [4, 150])
def test_the_figure_has_the_progress_and_the_loss_of_each_variant(tmp_path: Path, steps: int) -> None:
    runs = []
    for name in ("single-1", "ddp-2"):
        runs.append(variant(tmp_path, name, [4 - 2 * step / (steps - 1) for step in range(steps)]))
        write_attempt(runs[-1].run, [[10.0] * steps] * int(name[-1]), total=steps)
    figure = comparison_figure(compare_trainings(runs), "title $x", "note")
    assert figure is not None and figure.caption == "title $x. note"
    progress, losses = charts.drawn(figure).axes
    assert progress.lines[0].get_xdata()[-1] == pytest.approx(steps / 100)
    assert [line.get_label() for line in progress.lines] == [line.get_label() for line in losses.lines]
    assert len(losses.lines) == 2 and losses.lines[0].get_ydata()[0] == pytest.approx(4.0, abs=0.05)


def test_no_two_of_many_lines_look_the_same() -> None:
    lines = {str(number): ([0, 1], [0, 1]) for number in range(32)}
    (axes,) = charts.drawn(lines_figure("many", "many", "", [("x", "y", lines, None)])).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 32


def test_a_folder_of_trainings_is_a_page_with_the_names_of_its_folders(tmp_path: Path) -> None:
    for name in ("phase1", "phase2"):
        write_training(tmp_path / "run" / name)
    assert [run.path.name for run in trainings_in(tmp_path / "run")] == ["phase1", "phase2"]
    assert trainings_in(tmp_path / "run/phase1") == trainings_in(tmp_path / "absent") == []
    made = document("report", str(tmp_path / "run"), "--out", str(tmp_path / "page"))
    assert [row["name"] for row in made["trainings"]] == ["phase1", "phase2"]
    assert Path(made["report"]).is_file() and (tmp_path / "page/comparison.csv").is_file()


def training(folder: Path) -> TrainRun:
    """A training of 3 updates, evaluated after each: accuracy is best after the 2nd, log loss after the 3rd."""
    run = TrainRun(folder)
    trial = Trial(kind="train", task="gap", training=(("steps", 3),))
    directory = run.run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    scores = [(0.5, 0.9, 40.0), (0.75, 0.6, 60.0), (0.75, 0.4, None)]
    events = [
        {"event": "evaluated", "time_ns": 1, "applied_steps": step + 1, "seconds": 1.0, "samples": 9,
         "accuracy": accuracy, "log_loss": loss, "gap_f1": gap_f1}
        for step, (accuracy, loss, gap_f1) in enumerate(scores)
    ]  # fmt: skip
    events_jsonl(directory).write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = [{"step": n, "applied_steps": n + 1, "samples": 4 * (n + 1), "loss": 1.0} for n in range(3)]
    write_curve(run.curve_csv, [{**row, "learning_rate": 0.1} for row in rows])
    write_record(run.state_json, {"finished": True, "status": "ok"})
    return run


@pytest.mark.parametrize(
    ("best_by", "higher_is_better", "epoch", "words"),
    [
        ("accuracy", True, 2.0, "accuracy"),  # the earliest of several, as the training has it
        ("log_loss", False, 3.0, "log loss"),
        ("gap_f1", True, 2.0, "GAP F1"),
    ],
)
def test_the_best_evaluation_is_the_one_whose_checkpoint_the_training_kept(
    tmp_path: Path, best_by: str, higher_is_better: bool, epoch: float, words: str
) -> None:
    (result,) = compare_heads({"mul": training(tmp_path / "mul")}, 4, best_by, higher_is_better)
    assert result.training["status"] == "finished" and result.best is not None and result.best["epoch"] == epoch
    assert [row["epoch"] for row in result.evaluations if row["best"]] == [epoch]
    assert head_summary(result)["best"]["scores"][best_by] == result.best["scores"][best_by]
    epochs, _, by = heads_blocks([result])
    assert isinstance(epochs, Table)
    assert [row[1] for row in epochs.texts() if row[-1] == "best"] == [f"{epoch:.2f}"]
    assert by == f"best epoch selected by {words}"
