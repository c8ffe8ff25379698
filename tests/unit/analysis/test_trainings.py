"""Several trainings: every figure worked by hand from run directories that are written here."""

import itertools
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import document, result
from support.commands import text as shown
from support.fake_run import START_NS, curve_row, write_events, write_training, write_trial
from support.refusals import refused
from support.timelines import timeline

from analysis.metrics.communication.exposure import all_reduce
from analysis.metrics.comparison.trainings import Course, Training, courses_of, has_reached, summaries
from analysis.metrics.statistics import mean_interval
from analysis.render import figure as charts
from analysis.render.comparison_tables import trainings_table, variants_table
from analysis.render.pages import trainings_in
from analysis.render.training_figures import trainings_figure
from records.files import write_record
from records.run import TrialDirectory
from records.schema import TRAINING_COLUMNS
from records.training import Trainings, TrainRun, write_curve
from records.trial import Trial

BATCH, TOKENS = 8, 100
STEP_MS, EVALUATION_MS = 100, 500
START_UP_MS = 2000
"""From the start of the processes to the first step."""
WATTS = 50
MS = 1_000_000


def write_attempt(
    run: TrainRun,
    number: int,
    times_ms: Sequence[Sequence[float]],
    losses: Mapping[int, float | None] | None = None,
    *,
    first: int = 0,
    energy: bool = True,
    begin_ns: int = START_NS,
    gap_ms: float = 0.0,
) -> TrialDirectory:
    """Write an attempt with the times of its steps, a list for each rank.

    Its processes start at `begin_ns`. The evaluations after as many updates as `losses` names take EVALUATION_MS, and
    `gap_ms` lies between any two steps.
    """
    ranks = len(times_ms)
    trial = Trial(
        kind="train", strategy="single" if ranks == 1 else "ddp", preset="tiny", micro_batch_size=BATCH // ranks,
        world_size=ranks, round=number, training=(("steps", 20),),
    )  # fmt: skip
    now, starts, events = begin_ns + START_UP_MS * MS, [], []
    for step, step_ms in enumerate(map(max, zip(*times_ms, strict=True)), start=first):
        starts.append(now)
        now += round((step_ms + gap_ms) * MS)
        if losses and step + 1 in losses:
            now += EVALUATION_MS * MS
            told = {"mlm_loss": losses[step + 1], "samples": 64, "seconds": EVALUATION_MS / 1000}
            events.append({"event": "evaluated", "applied_steps": step + 1, "time_ns": now, **told})
    steps = {
        rank: [
            {"step": step, "start_ns": start, "step_time_ms": time, "samples": BATCH // ranks, "real_tokens": TOKENS}
            for step, start, time in zip(itertools.count(first), starts, times, strict=False)
        ]
        for rank, times in enumerate(times_ms)
    }
    readings = [("load_average", 1.0)] + [("power_watts", float(WATTS))] * energy
    telemetry = [
        {"time_ns": at, "device": "cpu", "quantity": name, "value": value}
        for at in range(begin_ns, now + 1000 * MS, 200 * MS)
        for name, value in readings
    ]
    write_trial(
        run.run, trial, steps, status=None, telemetry=telemetry,
        environment={"device_name": "Example CPU 9000", "telemetry_unavailable": {"cpu": "no RAPL"}},
        ranks={rank: {"threads": 2 // ranks, "peak_memory_bytes": 1000 + rank} for rank in range(ranks)},
    )  # fmt: skip
    directory = run.run.trial(trial.trial_id)
    write_events(directory, *events)
    return directory


def write_seed(
    run: TrainRun,
    losses: Mapping[int, float | None],
    *,
    steps: int = 20,
    step_ms: float = STEP_MS,
    finished: bool = True,
    **attempt: Any,
) -> None:
    """Write the training of a seed with one attempt of so many steps."""
    write_attempt(run, 0, [[step_ms] * steps], losses, **attempt)
    write_curve(run.curve_csv, [curve_row(step, step + 1, 9.0) for step in range(steps)])
    write_record(run.state_json, {"finished": finished, "status": "ok", "reason": "", "total_steps": 20})


def seed_row(seed: int, run: TrainRun, target: float, price_per_hour: float | None = None) -> dict[str, Any]:
    (course,) = courses_of([Training(run=run, variant="v", seed=seed)], target, price_per_hour)
    return course.row


def test_a_seed_ends_at_its_first_evaluation_at_or_below_the_target(tmp_path: Path) -> None:
    run = TrainRun(tmp_path)
    write_seed(run, {5: 7.0, 10: 6.5, 15: 6.9, 20: 6.0})
    assert has_reached(run, 6.5) and not has_reached(run, 5.9)
    row = seed_row(3, run, 6.5, price_per_hour=36.0)
    assert (row["seed"], row["status"], row["steps"], row["score_mlm_loss"]) == (3, "reached", 10, 6.5)
    assert (row["samples"], row["tokens"], row["evaluations"]) == (10 * BATCH, 10 * TOKENS, 2)
    assert row["step_seconds"] == pytest.approx(10 * STEP_MS / 1000), "without evaluations"
    assert row["total_seconds"] == pytest.approx((START_UP_MS + 10 * STEP_MS + 2 * EVALUATION_MS) / 1000)
    assert row["samples_per_second"] == pytest.approx(10 * BATCH / 1.0)
    # The window of the energy ends with the last step that counts: one evaluation lies inside.
    assert row["energy_joules"] == pytest.approx(WATTS * (10 * STEP_MS + EVALUATION_MS) / 1000, rel=0.01)
    assert row["cost"] == pytest.approx(36.0 / 3600 * row["total_seconds"])
    assert set(row) >= set(TRAINING_COLUMNS) and row["unknown"] == {}
    assert [(one["steps"], one["scores"]["mlm_loss"]) for one in row["readings"]] == [(5, 7.0), (10, 6.5)]
    assert [one["step_seconds"] for one in row["readings"]] == pytest.approx([0.5, 1.0])


def test_a_run_that_was_killed_counts_its_repeated_steps_once_in_training_and_twice_on_the_wall(tmp_path: Path) -> None:
    run = TrainRun(tmp_path)
    write_attempt(run, 0, [[300] * 8], {5: 7.0})  # the checkpoint of update 5 is the last one
    second = write_attempt(run, 1, [[STEP_MS] * 7], {10: 6.4}, first=5, begin_ns=2 * 10**18)
    write_curve(run.curve_csv, [curve_row(step, step + 1) for step in range(12)])
    row = seed_row(1, run, 6.5)
    assert (row["status"], row["steps"], row["attempts"], row["evaluations"]) == ("reached", 10, 2, 2)
    assert row["step_seconds"] == pytest.approx(5 * 0.3 + 5 * 0.1)
    first_end = (START_UP_MS + 8 * 300 + EVALUATION_MS + 1000 - 200) / 1000  # its last sensor reading, every 200 ms
    last_start = (START_UP_MS + 5 * STEP_MS + EVALUATION_MS) / 1000
    assert row["total_seconds"] == pytest.approx(first_end + last_start, abs=0.2)
    shutil.rmtree(second.path)
    write_curve(run.curve_csv, [curve_row(step, step + 1) for step in range(8)])
    unfinished = seed_row(1, run, 6.5)
    assert unfinished["status"] == "interrupted" and unfinished["steps"] == 8


def test_a_seed_that_never_reaches_the_target_says_so(tmp_path: Path) -> None:
    run = TrainRun(tmp_path / "a")
    write_seed(run, {5: 7.0, 15: 6.6, 20: 6.7})
    row = seed_row(1, run, 6.5)
    assert (row["status"], row["steps"], row["score_mlm_loss"]) == ("not reached", 20, 6.7)
    assert "6.6" in row["reason"] and "20 steps" in row["reason"] and row["step_seconds"] == pytest.approx(2.0)
    diverged = TrainRun(tmp_path / "b")
    write_seed(diverged, {5: None, 20: None})
    assert seed_row(1, diverged, 6.5)["status"] == "not reached"
    stopped = TrainRun(tmp_path / "c")
    write_seed(stopped, {5: 7.0}, steps=8, finished=False)
    assert seed_row(1, stopped, 6.5)["status"] == "stopped"
    write_record(stopped.state_json, {"finished": False, "status": "crashed", "reason": "out of luck"})
    assert (seed_row(1, stopped, 6.5)["status"], seed_row(1, stopped, 6.5)["reason"]) == ("crashed", "out of luck")
    assert seed_row(1, TrainRun(tmp_path / "d"), 6.5)["status"] == "not begun"


def test_unknown_numbers_have_a_reason(tmp_path: Path) -> None:
    run = TrainRun(tmp_path)
    write_seed(run, {10: 6.4}, energy=False)
    row = seed_row(1, run, 6.5)
    assert row["energy_joules"] is None and row["unknown"]["energy_joules"] == "no RAPL"
    assert row["cost"] is None and "--price-per-hour" in row["unknown"]["cost"]
    (attempt,) = run.attempts()
    attempt.telemetry_csv(0).unlink()
    row = seed_row(1, run, 6.5, 2.0)
    assert (
        row["total_seconds"] is None and row["unknown"]["total_seconds"] and row["step_seconds"] == pytest.approx(1.0)
    )


def rows_of(*seconds: float | None, variant: str = "v") -> list[dict[str, Any]]:
    return [
        {"variant": variant, "seed": seed, "status": "not reached" if value is None else "reached",
         "step_seconds": value, "unknown": {}}
        for seed, value in enumerate(seconds)
    ]  # fmt: skip


def ends(row: dict[str, Any], name: str) -> list[float | None]:
    return [row[name], row[f"{name}_low"], row[f"{name}_high"]]


def test_the_interval_over_seeds_is_students() -> None:
    (found,) = summaries(rows_of(10.0, 12.0, 14.0), 6.5)
    half = 4.302653 * 2.0 / math.sqrt(3)  # the table's quantile of two degrees of freedom
    assert ends(found, "step_seconds") == pytest.approx([12.0, 12.0 - half, 12.0 + half], rel=1e-4)
    assert (found["seeds"], found["whole"]) == (3, 3)
    assert ends(summaries(rows_of(10.0), 6.5)[0], "step_seconds") == [10.0, None, None]
    (part,) = summaries(rows_of(10.0, None, 12.0), 6.5)
    assert part["step_seconds"] is None and (part["seeds"], part["whole"]) == (3, 2)
    mean, low, high = mean_interval([])
    assert math.isnan(mean) and math.isnan(low) and math.isnan(high)


@pytest.mark.parametrize(
    ("seconds", "decided"),
    [((5.0, 5.1, 5.2), "yes"), ((10.0, 10.1, 9.95), "no"), ((8.0, 12.0, 10.0), "cannot decide"),
     ((5.0,), "cannot decide")],
)  # fmt: skip
def test_a_variant_is_faster_where_the_interval_of_its_ratio_over_the_seeds_says_so(
    seconds: tuple[float, ...], decided: str
) -> None:
    first, second = summaries([*rows_of(10.0, 10.2, 9.9), *rows_of(*seconds, variant="w")], 6.5)
    assert first["speedup"] == 1.0 and first["decided"] is None
    assert second["speedup"] == pytest.approx(10.0 / sorted(seconds)[len(seconds) // 2])
    assert second["speedup_low"] <= second["speedup"] <= second["speedup_high"] and second["decided"] == decided


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


def variant(folder: Path, name: str, losses: list[float | None], **state: Any) -> Training:
    run = TrainRun(folder / name)
    run.path.mkdir(parents=True, exist_ok=True)
    write_curve(run.curve_csv, [curve_row(n, n + 1) | {"loss": loss} for n, loss in enumerate(losses)])
    write_record(run.state_json, {"finished": True, "status": "ok", **state})
    return Training(run=run, variant=name)


def evaluated(steps: int, f1: float) -> dict[str, Any]:
    return {
        "event": "evaluated", "time_ns": 5, "seconds": 1.5, "applied_steps": steps, "samples": 64, "exact": 70.0,
        "f1": f1,
    }  # fmt: skip


@pytest.fixture
def pair(tmp_path: Path) -> list[Training]:
    """One device with 4 steps of 100 ms, and two devices whose slowest rank takes 60, 50, 50 and 40 ms."""
    one = variant(tmp_path, "single", [4.0, 3.0, 2.5, 2.0])
    write_attempt(one.run, 0, [[100.0, 100.0, 100.0, 100.0]], gap_ms=50.0, energy=False)
    best = {"checkpoint": "step-0000003", "score": "f1", "value": 80.5}
    two = variant(tmp_path, "ddp", [4.0, 3.25, 2.5, 1.9], best=best)
    write_attempt(two.run, 0, [[60.0, 30.0, 50.0, 20.0], [10.0, 50.0, 40.0, 40.0]], energy=False)
    write_events(two.run.attempts()[0], evaluated(2, 60.0), evaluated(4, 80.5))
    return [one, two]


def rows_of_pair(pair: list[Training], **options: Any) -> list[dict[str, Any]]:
    return [course.row for course in courses_of(pair, **options)]


def test_time_rate_and_what_is_saved_are_those_worked_by_hand(pair: list[Training]) -> None:
    one, two = rows_of_pair(pair)
    assert (one["step_seconds"], two["step_seconds"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (one["samples_per_second"], two["samples_per_second"]) == (pytest.approx(80), pytest.approx(160))
    assert (one["speedup"], two["speedup"]) == (1, pytest.approx(2))
    assert two["time_saved"] == pytest.approx(0.5)
    assert (one["step_time_ms"], two["step_time_ms"]) == (100, 50)
    assert (one["peak_memory_bytes"], two["peak_memory_bytes"]) == (1000, 1001)
    assert (two["global_batch_size"], two["micro_batch_size"], two["steps"], two["samples"]) == (8, 4, 4, 32)
    assert (one["greatest_loss_difference"], two["greatest_loss_difference"], two["last_loss"]) == (0, 0.25, 1.9)
    assert (two["score_exact"], two["score_f1"]) == (70.0, 80.5)
    json.dumps([one, two], allow_nan=False)


def test_epochs_follow_from_the_samples_of_the_data(pair: list[Training]) -> None:
    _, row = rows_of_pair(pair, samples_per_epoch=16)
    assert row["epochs"] == 2 and row["epoch_seconds"] == pytest.approx(16 / 160)
    assert [one["scores"]["f1"] for one in row["readings"]] == [60.0, 80.5]
    assert rows_of_pair(pair)[1]["epochs"] is None


def test_steps_made_again_count_once_and_time_between_attempts_not_at_all(pair: list[Training]) -> None:
    write_attempt(pair[0].run, 1, [[30.0, 20.0]], first=2)
    course = courses_of(pair)[0]
    assert course.row["step_seconds"] == pytest.approx(0.1 + 0.1 + 0.03 + 0.02) and course.row["attempts"] == 2
    assert course.seconds.tolist() == pytest.approx([0.1, 0.25, 0.28, 0.3])


def test_a_variant_that_failed_is_named_and_the_others_are_compared(tmp_path: Path, pair: list[Training]) -> None:
    broken = variant(tmp_path, "ddp-4", [4.0, 3.0], finished=False, status="oom", reason="rank 3: no memory left")
    write_attempt(broken.run, 0, [[50.0, 50.0]] * 4)
    absent = Training(variant="ddp-8", run=TrainRun(tmp_path / "ddp-8"))
    rows = rows_of_pair([*pair, broken, absent])
    assert [row["status"] for row in rows] == ["finished", "finished", "oom", "not begun"]
    assert rows[2]["reason"] == "rank 3: no memory left"
    assert rows[2]["speedup"] == pytest.approx(2) and rows[2]["time_saved"] is None, "it saw fewer samples"
    assert "2 of 20" in shown([trainings_table(rows)]) and "oom" in shown([trainings_table(rows)])
    assert [one["speedup"] for one in summaries(rows)] == [1.0, pytest.approx(2), None, None]


def test_exposed_communication_and_the_best_score_are_columns_where_they_are_known(pair: list[Training]) -> None:
    shares = {"communication_share": 0.2, "communication_exposed_share": 0.145, "communication_exposed_ms": 106.9}
    profiled = Training(variant="ddp", run=pair[1].run, profile={**shares, "profiled_step_ms": 738.0})
    table = variants_table(summaries(rows_of_pair([pair[0], profiled])))
    assert table.headings[-1] == "exposed" and [row[-1] for row in table.texts()] == ["\N{EN DASH}", "14.5 %"]
    assert [row[table.headings.index("best F1")] for row in table.texts()] == ["\N{EN DASH}", "80.50"]
    assert "energy, J" not in table.headings


@pytest.mark.parametrize("steps", [4, 150])
def test_the_figure_has_the_loss_and_the_score_of_each_training(steps: int) -> None:
    courses = [
        Course(
            row={"folder": name, "readings": [{"step_seconds": 0.5, "scores": {"mlm_loss": 7.0}}]},
            steps=range(steps),
            seconds=np.arange(1, steps + 1) / 100,
            loss=np.linspace(4.0, 2.0, steps),
        )
        for name in ("single", "ddp")
    ]
    figure = trainings_figure(courses, 6.5)
    assert figure is not None and trainings_figure([]) is None
    losses, scores = charts.drawn(figure).axes
    assert losses.lines[0].get_xdata()[-1] == pytest.approx(steps / 100)
    assert losses.lines[0].get_ydata()[0] == pytest.approx(4.0, abs=0.05)
    assert [line.get_label() for line in losses.lines] == ["single", "ddp"]
    assert [line.get_label() for line in scores.lines] == ["single", "ddp", "target"]


def test_a_folder_of_trainings_is_a_page_with_the_names_of_its_folders(tmp_path: Path) -> None:
    for name in ("phase1", "phase2"):
        write_training(tmp_path / "run" / name)
    assert [run.path.name for run in trainings_in(tmp_path / "run")] == ["phase1", "phase2"]
    assert trainings_in(tmp_path / "run/phase1") == trainings_in(tmp_path / "absent") == []
    made = document("report", str(tmp_path / "run"), "--out", str(tmp_path / "page"))
    assert [row["variant"] for row in made["trainings"]] == ["phase1", "phase2"]
    assert Path(made["report"]).is_file() and (tmp_path / "page/trainings.csv").is_file()


def test_a_folder_of_seeds_has_a_page_of_its_record(tmp_path: Path) -> None:
    place = Trainings(tmp_path / "run")
    trainings = [Training(run=TrainRun(place.path / f"seed-{seed}"), variant="pretrain", seed=seed) for seed in (1, 2)]
    for one in trainings:
        write_seed(one.run, {5: 7.0, 10: 6.4, 12: 6.3}, steps=12)
    rows = [course.row for course in courses_of(trainings, 6.5)]
    target, about = {"score": "mlm_loss", "value": 6.5}, {"settings": {"preset": "tiny"}, "machine": {}, "data": {}}
    write_record(place.document, {"target": target, **about, "rows": rows, "variants": summaries(rows, 6.5)})
    made = document("report", place.path)
    assert [(row["variant"], row["seed"], row["status"]) for row in made["trainings"]] == [
        ("pretrain", 1, "reached"), ("pretrain", 2, "reached"),
    ]  # fmt: skip
    assert made["variants"][0]["whole"] == 2
    place.document.write_text("{")
    with refused("file-damaged", place.document):
        result("report", place.path)
