"""The search for the largest batch."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import result

from bench.search import throughput as max_batch
from bench.search.throughput import PROOF_STEPS, largest_batch
from bench.sweep import sweep
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial


class Machine:
    """Fits `capacity` sequences at first and `proven` over many steps."""

    def __init__(self, capacity: int, proven: int | None = None, fault: tuple[int, str] | None = None) -> None:
        self.capacity, self.proven, self.fault = capacity, capacity if proven is None else proven, fault
        self.trials: list[Trial] = []

    def run(self, trial: Trial) -> dict[str, Any]:
        self.trials.append(trial)
        if self.fault and trial.micro_batch_size == self.fault[0]:
            return {"status": self.fault[1], "reason": "told to"}
        assert trial.stop_iteration is not None
        room = self.proven if trial.stop_iteration >= PROOF_STEPS else self.capacity
        return {"status": "ok" if trial.micro_batch_size <= room else "oom", "reason": "full"}


@given(capacity=st.integers(1, 300), start=st.integers(1, 64))
def test_the_search_finds_the_exact_limit_and_shows_both_sides(capacity: int, start: int) -> None:
    machine = Machine(capacity)
    found = largest_batch(Trial(micro_batch_size=start), 1024, machine.run)
    assert found.micro_batch_size == capacity
    assert found.fails_at == capacity + 1
    assert found.proved and (capacity + 1, "oom") in found.tried
    assert {trial.kind for trial in machine.trials} == {"probe"}, "they are kept apart from measurements"
    assert machine.trials[-1].stop_iteration == PROOF_STEPS and machine.trials[-1].micro_batch_size == capacity


def test_the_limit_ends_the_search_and_is_stated() -> None:
    found = largest_batch(Trial(micro_batch_size=8), 100, Machine(10_000).run)
    assert found.micro_batch_size == 100 and found.fails_at is None and "limit of 100" in found.failure


def test_a_size_that_fits_three_steps_but_not_twenty_is_not_the_answer() -> None:
    found = largest_batch(Trial(micro_batch_size=1), 1024, Machine(20, proven=18).run)
    assert (found.micro_batch_size, found.fails_at) == (18, 19)
    found = largest_batch(Trial(micro_batch_size=4), 64, Machine(0).run)
    assert (found.micro_batch_size, found.fails_at) == (0, 1), "nothing fits"


@pytest.mark.parametrize("status", ["crashed", "timeout", "refused"])
def test_another_failure_is_not_taken_for_out_of_memory(status: str) -> None:
    machine = Machine(100, fault=(16, status))
    found = largest_batch(Trial(micro_batch_size=4), 64, machine.run)
    assert found.micro_batch_size == 8 and found.failure == f"{status}: told to"
    assert not found.proved, "what lies above is not known"
    assert machine.trials[-1].stop_iteration == PROOF_STEPS, "8 itself is shown to run"


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The micro batches that ran; more than 3 run out of memory."""
    ran: list[int] = []

    def run(trial: Trial, directory: TrialDirectory, *rest: object) -> dict[str, Any]:
        ran.append(trial.micro_batch_size)
        found = {"trial_id": trial.trial_id, "status": "ok" if trial.micro_batch_size <= 3 else "oom", "reason": ""}
        directory.path.mkdir(parents=True)
        write_record(directory.trial_json, trial.to_json())
        write_record(directory.result_json, found)
        return found

    monkeypatch.setattr(sweep, "run_trial", run)
    return ran


def largest_of(out: Path, *more: str) -> Any:
    words = ("--device", "cpu", "--devices", "1", "--precisions", "fp32", "--seq-lens", "32", "--batch-sizes", "2")
    return result("throughput", "pretrain", *words, "--max-batch-search", "--out", str(out), *more)


def test_searches_that_share_a_folder_keep_each_others_largest_batches(tmp_path: Path, fits: list[int]) -> None:
    for more in (("--preset", "tiny"), ("--preset", "mini"), ("--preset", "tiny", "--activation-checkpointing"),
                 ("--preset", "tiny"), ("--preset", "tiny", "--memory-limit-gib", "1")):  # fmt: skip
        found = largest_of(tmp_path, *more)
        assert found.document["max_batch"][0]["micro_batch_size"] == 3 and len(found.document["max_batch"]) == 1
    rows = RunDirectory(tmp_path).read_max_batches()
    assert [(row["preset"], row["activation_checkpointing"], row["memory_limit_gib"]) for row in rows] == [
        ("mini", False, None), ("tiny", True, None), ("tiny", False, None), ("tiny", False, 1.0),
    ]  # fmt: skip


def test_a_search_is_resumed_whatever_memory_is_free_by_then(
    tmp_path: Path, fits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, free in enumerate((4, 3)):
        monkeypatch.setattr(max_batch, "available_bytes", lambda free=free: free * 2**30)
        largest_of(tmp_path, "--preset", "tiny")
        assert fits == ([2, 4, 3, 3] if number == 0 else []), "its trials are finished"
        fits.clear()
