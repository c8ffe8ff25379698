"""Reading MLPerf logs: hand-made ones, and the real BERT log of ../shared/traces/misc."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.profiles import assert_damage_is_survived
from support.refusals import refused

from analysis.readers import mlperf
from analysis.readers.mlperf import read, recognises
from analysis.readers.registry import find_reader, read_head

REAL = shared_files.TRACES / "misc/mlperf-bert-h200-v4.0.log.gz"


def event(key: str, ms: float, value: Any = None, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    entry = {"namespace": "", "time_ms": ms, "event_type": kind, "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**entry, "metadata": {"file": "/secret/path.py", "lineno": 3, **metadata}})


def run(*, accuracy: float = 0.73, status: str = "success") -> list[str]:
    """100 s for 3,200 samples in batches of 64: 50 steps, 32 samples/s."""
    return [
        event("submission_benchmark", 1000, "bert"),
        event("global_batch_size", 1000, 64),
        event("opt_base_learning_rate", 1000, 0.00096),
        event("init_start", 500),
        event("init_stop", 2500),
        event("run_start", 10_000),
        event("tracked_stats", 60_000, {"throughput": 33.5}, epoch_num=1600),
        event("eval_accuracy", 70_000, 0.5, epoch_num=1600),
        event("eval_accuracy", 109_000, accuracy, epoch_num=3200),
        event("train_samples", 110_000, 3200),
        event("run_stop", 110_000, status=status),
    ]


def log(tmp_path: Path, lines: list[str], name: str = "a.log") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_gives_its_time_throughput_and_accuracy(tmp_path: Path) -> None:
    path = log(tmp_path, run())
    assert recognises(read_head(path))
    summary, evaluations, events = read(path)
    facts = summary.facts
    assert facts["time_to_train_minutes"] == pytest.approx(100 / 60) and facts["initialisation_seconds"] == 2.0
    assert (facts["samples"], facts["steps"], facts["samples_per_second"]) == (3200, 50, 32.0)
    assert facts["samples_per_second_stated"] == 33.5 and facts["opt_base_learning_rate"] == 0.00096
    assert list(evaluations.table["minutes"]) == [1.0, 99 / 60] and list(evaluations.table["samples"]) == [1600, 3200]
    assert (
        list(evaluations.table["accuracy"]) == [0.5, 0.73]
        and list(evaluations.table["samples_per_second"]) == [33.5] * 2
    )
    assert len(events.table) == len(run()) and summary.problems == ()
    assert events.table["time_ns"].iloc[0] == 1_000_000_000


def test_lines_stand_anywhere_and_ranks_repeat_them(tmp_path: Path) -> None:
    lines = [f"{rank}: 12:00 {line}" for line in run() for rank in range(4)]
    lines.insert(3, "loss 3.2 {")
    summary, evaluations, events = read(log(tmp_path, lines))
    assert len(events.table) == len(run()) and set(events.table["repeats"]) == {3} and events.facts["repeated"] == 33
    assert len(evaluations.table) == 2 and summary.facts["evaluations"] == 2


def test_settings_that_differ_only_in_what_they_are_about_are_not_one_event(tmp_path: Path) -> None:
    lines = [event("weights_initialization", 5, None, tensor=name) for name in ("a", "b", "b")]
    *_, events = read(log(tmp_path, lines))
    assert list(events.table["repeats"]) == [0, 1]


def test_paths_of_the_source_are_dropped(tmp_path: Path) -> None:
    assert not any("secret" in str(found.table.to_dict()) for found in read(log(tmp_path, run())))


def test_damaged_lines_are_counted_and_stated(tmp_path: Path) -> None:
    lines = [*run(), ":::MLLOG {", ":::MLLOG [1]", event("a", 5).replace("5", '"soon"'), ":::MLLOG " + "[" * 100_000]
    summary, _, _ = read(log(tmp_path, lines))
    assert any("4 damaged MLPerf lines" in problem for problem in summary.problems)


def test_a_run_below_the_quality_target_or_ended_early_says_so(tmp_path: Path) -> None:
    summary, *_ = read(log(tmp_path, run(accuracy=0.71, status="aborted")))
    assert any("below the quality target 0.72" in problem for problem in summary.problems)
    assert any("status 'aborted'" in problem for problem in summary.problems)
    summary, *_ = read(log(tmp_path, run()[:-1], "b.log"))
    assert summary.facts["time_to_train_minutes"] is None
    assert any("lacks run_start or run_stop" in problem for problem in summary.problems)


def test_a_benchmark_that_counts_epochs_has_no_invented_samples(tmp_path: Path) -> None:
    lines = [event("global_batch_size", 0, 256), event("run_start", 0), event("eval_accuracy", 5, 0.7, epoch_num=3)]
    summary, *_ = read(log(tmp_path, [*lines, event("run_stop", 1000)]))
    assert (summary.facts["samples"], summary.facts["steps"], summary.facts["samples_per_second"]) == (None, None, None)


def test_a_log_without_a_readable_event_is_an_error(tmp_path: Path) -> None:
    path = log(tmp_path, [":::MLLOG nonsense"])
    with refused("file-damaged", path, "1 MLPerf line"):
        read(path)


def test_the_real_log_gives_the_times_of_its_own_lines() -> None:
    if not REAL.exists():
        pytest.skip("../shared/traces is not here")
    reader = find_reader(read_head(REAL))
    assert reader is not None and reader.name == "mlperf"
    summary, evaluations, events = read(REAL)
    marked = [line[9:] for line in gzip.decompress(REAL.read_bytes()).decode().splitlines() if line[:8] == ":::MLLOG"]
    entries = [json.loads(line) for line in marked]
    times = {entry["key"]: entry["time_ms"] for entry in entries}
    assert summary.facts["time_to_train_minutes"] == (times["run_stop"] - times["run_start"]) / 60_000
    accuracies = [entry["value"] for entry in entries if entry["key"] == "eval_accuracy"]
    assert list(evaluations.table["accuracy"]) == accuracies and accuracies[-1] > 0.72 == summary.facts["target"]
    assert summary.facts["samples_per_second"] == pytest.approx(2_398_552 / 300.868)
    assert (summary.facts["steps"], summary.facts["global_batch_size"]) == (3123, 768)
    assert len(events.table) + events.facts["repeated"] == len(entries) == 503 and summary.problems == ()


def test_damaged_logs_give_a_result_or_an_input_error(tmp_path: Path) -> None:
    assert_damage_is_survived(mlperf, ("\n".join(run()) + "\n").encode(), tmp_path / "damaged.log", seed=3)
