"""The file of --metrics-file: Prometheus' own parser reads it, its numbers are those of the records, and a file that
cannot be written stops no run."""

import errno
import os
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.commands import result
from support.fake_run import START_NS, step_rows, write_csv, write_trial
from support.refusals import refused

from bench.cli.train_progress import TrainProgress
from bench.run.metrics_file import METRICS, MetricsFile, exposition
from bench.run.processes import StopRequest
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.schema import STEP_COLUMNS, TELEMETRY_COLUMNS
from records.trial import Trial

TRIAL = Trial(preset="tiny", precision="fp32", world_size=2, micro_batch_size=4, device="cuda")


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def directory(tmp_path: Path) -> TrialDirectory:
    run = RunDirectory(tmp_path / "run")
    write_trial(run, TRIAL, status=None)
    return run.trial(TRIAL.trial_id)


def steps(directory: TrialDirectory, *times_ms: list[float]) -> None:
    """Write the steps of each rank so far; rank 1 has a loss that is 1 higher."""
    for rank, times in enumerate(times_ms):
        rows = [{**row, "loss": row["loss"] + rank} for row in step_rows(times, 4)]
        write_csv(directory.steps_csv(rank), list(STEP_COLUMNS), rows)


def values(path: Path) -> dict[str, float]:
    """The samples of a file by name, and by label where a metric has several; every one has the labels of the trial."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            kind, says = METRICS[sample.name]
            assert (family.type, family.documentation) == (kind, says)
            labels = dict(sample.labels)
            for name, value in {"task": "pretrain", "preset": "tiny", "precision": "fp32"}.items():
                assert labels.pop(name) == value
            assert labels.pop("trial") == TRIAL.trial_id
            key = " ".join([sample.name, *labels.values()])
            assert key not in found
            found[key] = sample.value
    return found


def test_the_numbers_are_those_of_the_records(directory: TrialDirectory, tmp_path: Path) -> None:
    path, clock, said = tmp_path / "node" / "bertbench.prom", Clock(), list[str]()
    metrics = MetricsFile(path, said.append, clock)
    metrics.look(TRIAL, directory)
    found = values(path)
    assert found["bertbench_status running"] == 1 and found["bertbench_steps_total"] == 0
    assert "bertbench_loss" not in found and "bertbench_samples_per_second" not in found  # unknown is left out

    steps(directory, [100.0, 50.0], [200.0])  # rank 1 is one step behind
    sensors = [("gpu0", 5e9), ("gpu1", 7e9), ("gpu0", 6e9)]
    readings = [
        {"time_ns": START_NS, "device": device, "quantity": "gpu_memory_used_bytes", "value": value}
        for device, value in sensors
    ]
    write_csv(directory.telemetry_csv(0), list(TELEMETRY_COLUMNS), readings)
    clock.now += 1
    metrics.look(TRIAL, directory)
    found = values(path)
    assert found["bertbench_steps_total"] == 1 and found["bertbench_samples_total"] == 8
    assert found["bertbench_tokens_total"] == 800
    assert found["bertbench_step_time_seconds"] == pytest.approx(0.2)  # of the slowest rank
    assert found["bertbench_samples_per_second"] == pytest.approx(8 / 0.2)
    assert found["bertbench_loss"] == pytest.approx(10.5)
    assert found["bertbench_peak_memory_bytes device used"] == 7e9

    steps(directory, [100.0, 50.0, 60.0], [200.0, 100.0, 100.0])
    write_record(directory.result_json, {"trial_id": TRIAL.trial_id, "status": "ok", "peak_memory_bytes": 3 * 2**30})
    metrics.end()
    found = values(path)
    assert found["bertbench_steps_total"] == 3 and found["bertbench_tokens_total"] == 2400
    assert found["bertbench_step_time_seconds"] == pytest.approx(0.1)
    assert found["bertbench_status ok"] == 1 and found["bertbench_status running"] == 0
    assert found["bertbench_peak_memory_bytes device allocator"] == 3 * 2**30
    assert said == [] and [one.name for one in path.parent.iterdir()] == [path.name]


def test_the_file_is_renewed_once_a_second_at_most(directory: TrialDirectory, tmp_path: Path) -> None:
    path, clock = tmp_path / "bertbench.prom", Clock()
    metrics = MetricsFile(path, lambda text: None, clock)
    inodes = []
    for _ in range(17):
        metrics.look(TRIAL, directory)
        inodes.append(path.stat().st_ino)
        clock.now += 0.125
    changes = sum(one != other for one, other in pairwise(inodes))
    assert changes == 2  # after one second and after two


def test_a_full_disk_is_one_warning_and_the_file_returns_with_space(
    directory: TrialDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock, said = tmp_path / "bertbench.prom", Clock(), list[str]()
    metrics = MetricsFile(path, said.append, clock)
    metrics.look(TRIAL, directory)
    before = path.read_text()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("common.atomic.os.fsync", full)
        for _ in range(3):
            clock.now += 1
            metrics.look(TRIAL, directory)
    assert len(said) == 1 and "--metrics-file" in said[0] and "disk is full" in said[0]
    assert path.read_text() == before and len(list(tmp_path.glob(".bertbench.prom*"))) == 0
    metrics.end({"status": "oom"})
    assert values(path)["bertbench_status oom"] == 1


def test_a_trial_without_a_result_was_interrupted(directory: TrialDirectory, tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "a.prom", lambda text: None)
    metrics.look(TRIAL, directory)
    metrics.end()
    metrics.end()
    assert values(tmp_path / "a.prom")["bertbench_status interrupted"] == 1


def test_a_training_keeps_the_file_up_to_date(directory: TrialDirectory, tmp_path: Path) -> None:
    with StopRequest() as stop:
        progress = TrainProgress(stop, metrics=MetricsFile(tmp_path / "a.prom", lambda text: None))
        progress.begin(directory)
        steps(directory, [100.0], [100.0])
        progress.look()
        assert values(tmp_path / "a.prom")["bertbench_steps_total"] == 1
        progress.end()
    assert values(tmp_path / "a.prom")["bertbench_status running"] == 0


def test_labels_with_quotes_backslashes_and_line_ends_are_read_back() -> None:
    hostile = 'a"b\\c\nd\\n'
    text = exposition([("bertbench_loss", {"preset": hostile}, 1.5), ("bertbench_loss", {"preset": "x"}, float("nan"))])
    ((family,), lines) = (list(text_string_to_metric_families(text)), text.splitlines())
    assert family.samples[0].labels == {"preset": hostile} and family.samples[0].value == 1.5 and len(lines) == 3


def test_names_end_in_their_units() -> None:
    for name, (kind, _) in METRICS.items():
        assert name.startswith("bertbench_") and name.endswith("_total") == (kind == "counter")


def test_folders_devices_and_commands_of_many_trainings_are_refused(tmp_path: Path) -> None:
    for words in (("throughput", "pretrain"), ("train", "pretrain", "--data", "synthetic")):
        for path in (tmp_path, Path("/dev/null")):
            with refused("option-value", "--metrics-file", str(path)):
                result(*words, "--metrics-file", path, "--out", tmp_path / "run")
    for command in ("tune", "compare-strategies"):
        words = ("pretrain", "--data", "synthetic", "--out", tmp_path)
        with refused("option-not-applicable", "--metrics-file", "bertbench train"):
            result(command, *words, "--metrics-file", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
