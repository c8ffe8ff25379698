"""How many cores load a device's batches, by hand; the line about it, the caution and the advice where they are few."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.commands import text
from support.fake_run import ENVIRONMENT, rank_record, step_rows, write_trial

from analysis.diagnose.answer import points
from analysis.diagnose.run_answer import complete_answers
from analysis.load import load_run
from analysis.metrics.loading import COLUMNS, shortage
from analysis.metrics.throughput import summarize
from analysis.render.result_tables import loading_lines
from bench.cli import throughput
from records.run import RunDirectory
from records.trial import Trial

GPUS = Trial(
    preset="large",
    device="cuda",
    strategy="ddp",
    world_size=8,
    micro_batch_size=64,
    start_iteration=2,
    stop_iteration=9,
)
TIMES = [64.0] * 9
"""64 sequences per device in 64 ms: 1000 samples/s and, at 100 real tokens each, 100,000 tokens/s per device."""
# A sample takes 8 x 5 + 10 = 50 µs from shards, and 950 µs more with masking.
RECORD: dict[str, Any] = {
    "source": "shards", "storage": "compressed", "read_us": [4.0, 5.0, 6.0], "batch_us": [10.0] * 3,
    "masking_us": [900.0, 950.0, 1000.0], "readers": 8, "cores_per_rank": 4.0, "local_ranks": 8,
}  # fmt: skip


def ranks_of(trial: Trial, **changes: Any) -> dict[int, dict[str, Any]]:
    record = {name: value for name, value in {**RECORD, **changes}.items() if value is not None}
    own = {rank: rank_record() | {"threads": 4} for rank in range(trial.ranks)}
    return own | {0: own[0] | {"loading": record}}


def summary(trial: Trial = GPUS, **changes: Any) -> dict[str, Any]:
    steps = {rank: step_rows(TIMES, trial.micro_batch_size) for rank in range(trial.ranks)}
    return summarize(trial, steps, ranks_of(trial, **changes), ENVIRONMENT)


def test_the_cores_of_a_device_follow_by_hand() -> None:
    row = summary()
    assert row["samples_per_second"] == pytest.approx(8000) and row["tokens_per_second"] == pytest.approx(800_000)
    assert row["loading_tokens_per_second_per_core"] == pytest.approx(100 / 50e-6)
    assert row["masking_tokens_per_second_per_core"] == pytest.approx(100 / 1000e-6)
    assert row["loading_cores_per_device"] == pytest.approx(1000 * 50e-6)
    assert row["masking_cores_per_device"] == pytest.approx(1000 * 1000e-6)
    # The same from tokens: 100,000 per second and device.
    assert row["masking_cores_per_device"] == pytest.approx(100_000 / row["masking_tokens_per_second_per_core"])
    assert row["free_cores_per_device"] == 3, "4 cores per rank, one of them for the training process"
    found = row["loading"]
    assert (found["node_free_cores"], found["shares_cores"], found["rounds"]) == (24, False, 3)
    assert (found["loading"]["node_cores"], found["masking"]["node_cores"]) == (1, 8), "0.4 and 8.0 cores, rounded up"
    assert found["loading"]["enough"] and found["masking"]["enough"] and shortage(row) == ""
    # Of three rounds the interval holds all.
    assert found["loading"]["cores_low"] == pytest.approx(0.042) and found["loading"]["cores_high"] == pytest.approx(
        0.058
    )
    assert not {caution["code"] for caution in row["cautions"]} & {"loading_cores", "masking_cores"}


@pytest.mark.parametrize(
    ("changes", "short", "node_cores"),
    [
        ({"masking_us": [2950.0] * 3}, "", 24),  # 3.0 cores per device are all that is free
        ({"masking_us": [2960.0] * 3}, "masking", 25),
        ({"read_us": [380.0] * 3}, "loading", 25),  # 8 x 380 + 10 = 3050 µs
        ({"cores_per_rank": 1.0}, "loading", 1),  # nothing is free
        ({"cores_per_rank": 1.125}, "masking", 1),  # one core of nine is: enough for shards
        ({"cores_per_rank": 0.5}, "loading", 1),
    ],
)
def test_a_caution_comes_where_whole_cores_of_the_node_are_too_few_and_not_otherwise(
    changes: dict[str, Any], short: str, node_cores: int
) -> None:
    row = summary(**changes)
    needed = row["loading"]["loading" if "masking_us" not in changes else "masking"]["node_cores"]
    assert (shortage(row), needed) == (short, node_cores)
    codes = {caution["code"] for caution in row["cautions"]} & {"loading_cores", "masking_cores"}
    assert codes == ({f"{short}_cores"} if short else set())


def test_on_a_cpu_loading_may_take_a_twentieth_of_the_cores_that_compute() -> None:
    cpu = dataclasses.replace(GPUS, device="cpu", strategy="single", world_size=1)
    one = {"readers": 1, "local_ranks": 1, "cores_per_rank": 4.0}
    row = summary(cpu, **one, read_us=[100.0] * 3, masking_us=[80.0] * 3)  # 1000 x 110 µs and 1000 x 190 µs
    assert row["free_cores_per_device"] == 0 and row["loading"]["shares_cores"]
    assert (row["loading_cores_per_device"], row["masking_cores_per_device"]) == pytest.approx((0.11, 0.19))
    assert shortage(row) == "", "of 4 cores 0.2 are 5 %"
    assert shortage(summary(cpu, **one, read_us=[100.0] * 3, masking_us=[100.0] * 3)) == "masking"
    assert shortage(summary(cpu, **one, read_us=[200.0] * 3)) == "loading"
    # Four compute threads on six cores leave two: loading has cores of its own.
    row = summary(cpu, **{**one, "cores_per_rank": 6.0}, read_us=[1000.0] * 3)
    assert (row["free_cores_per_device"], row["loading"]["shares_cores"], shortage(row)) == (2, False, "")


def test_one_rank_that_drives_all_devices_reads_once() -> None:
    trial = dataclasses.replace(GPUS, strategy="dp", devices_per_rank=8, micro_batch_size=64)
    one = {"readers": 1, "local_ranks": 1, "cores_per_rank": 32.0}
    steps = {0: step_rows(TIMES, 8 * 64)}
    row = summarize(trial, steps, ranks_of(trial, **one), ENVIRONMENT)
    assert row["loading_cores_per_device"] == pytest.approx(1000 * 15e-6)
    assert row["free_cores_per_device"] == pytest.approx(31 / 8)
    found = row["loading"]
    assert (found["loading"]["node_cores"], found["masking"]["node_cores"], found["node_free_cores"]) == (1, 8, 31)


@pytest.mark.parametrize(
    ("trial", "changes"),
    [
        (dataclasses.replace(GPUS, task="squad"), {}),
        (dataclasses.replace(GPUS, kind="profile"), {}),
        (GPUS, {"problem": "OSError: no space left"}),
        (GPUS, {"masking_us": []}),
    ],
    ids=["task", "kind", "problem", "damaged"],
)
def test_what_was_not_measured_is_unknown_with_a_reason(trial: Trial, changes: dict[str, Any]) -> None:
    row = summary(trial, **changes)
    assert row["loading"] is None and shortage(row) == "" and row["samples_per_second"]
    for name in COLUMNS:
        assert row[name] is None and row["unknown"][name] != "not measured", name
    assert changes.get("problem", "") in row["unknown"][COLUMNS[0]]


def write(folder: Path, trial: Trial, data_wait: float = 0.5, **changes: Any) -> RunDirectory:
    run = RunDirectory(folder)
    steps = {rank: step_rows(TIMES, trial.micro_batch_size, data_wait=data_wait) for rank in range(trial.ranks)}
    write_trial(run, trial, steps, ranks=ranks_of(trial, **changes))
    return run


def test_a_run_from_before_these_records_has_no_line_and_no_caution(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_trial(run, GPUS, {rank: step_rows(TIMES, 64) for rank in range(8)})
    (trial,) = load_run(run)
    assert trial.row["unknown"][COLUMNS[0]] and loading_lines([trial.row]) == []


@pytest.mark.parametrize("source", ["shards", "synthetic"])
def test_the_command_has_one_line_with_both_figures_and_the_free_cores(tmp_path: Path, source: str) -> None:
    run = write(tmp_path, GPUS, source=source)
    small = dataclasses.replace(GPUS, micro_batch_size=32)
    write(tmp_path, small, source=source)
    shown = text(throughput._measured(run, [GPUS, small], None).blocks)
    (line,) = [line for line in shown.replace("\n  ", " ").splitlines() if line.startswith("loading")]
    assert {"100,000", "0.050", "1.00", "3.00"} <= set(line.replace(";", "").replace(")", "").replace("(", "").split())
    assert ("synthetic" in line) == (source == "synthetic") and "enough" in line


def test_too_few_cores_for_shards_are_advice_about_data_and_a_measured_wait_replaces_it(tmp_path: Path) -> None:
    few = {"read_us": [380.0] * 3}

    def advice(run: RunDirectory) -> list[Any]:
        trials = load_run(run)
        (answer,) = complete_answers(trials, points(trials), [], str(run.path))
        return [one for one in answer.advice if one.cause == "data"]

    (one,) = advice(write(tmp_path / "synthetic", GPUS, **few))
    assert one.saves is None and one.command == "" and "25 cores" in one.seen and "24 free" in one.seen
    assert advice(write(tmp_path / "enough", GPUS)) == []
    assert advice(write(tmp_path / "masking", GPUS, masking_us=[4000.0] * 3)) == [], "nothing masks on the fly here"
    real = dataclasses.replace(GPUS, data="/data/books", data_fingerprint="abc")
    (one,) = advice(write(tmp_path / "real", real, **few))
    assert one.saves is None and "--input-only" in one.command, "a wait of 0.8 % says nothing about a whole epoch"
    (one,) = advice(write(tmp_path / "waits", real, **few, data_wait=8.0))
    assert one.saves == pytest.approx(8 / 64)
    (plain,) = advice(write(tmp_path / "plain", GPUS, **few, storage="plain"))
    assert "--gzip-level" not in plain.remedy
