"""`with bertbench.measure(...)`: one trial per block, whose step times are those that the loop saw."""

import csv
import statistics
import time
from pathlib import Path

import pytest
from support.refusals import refused

import bertbench
from analysis.metrics.statistics import median_interval, warmup_steps
from records.run import RunDirectory


def spin(milliseconds: float) -> None:
    until = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < until:
        pass


def statuses(out: Path) -> list[tuple[str, str]]:
    with RunDirectory(out).results_csv.open(newline="", encoding="utf-8") as file:
        return [(row["status"], row["reason"]) for row in csv.DictReader(file)]


def test_a_loop_becomes_one_trial_with_the_times_that_its_own_clock_saw(tmp_path: Path) -> None:
    seen = []
    with bertbench.measure("loop", out=tmp_path) as m:
        before = time.perf_counter()
        for step in range(40):
            spin(150 if step < 2 else 5)
            m.step(samples=4, tokens=100, loss=1.0 / (step + 1) if step != 4 else [1.0, 2.0])
            now = time.perf_counter()
            seen.append(1000 * (now - before))
            before = now
    found = bertbench.load_run(tmp_path)
    assert len(found.results) == 1 and found.results.loc[0, ["status", "kind"]].tolist() == ["ok", "measure"]
    times = found.steps["step_time_ms"].tolist()
    assert len(times) == 40 and sum(times) == pytest.approx(sum(seen), rel=0.05)
    skipped = warmup_steps(times)
    row = found.results.loc[0]
    median = statistics.median(times[skipped:])
    assert row["steps_warmup"] == skipped and row["step_time_ms"] == pytest.approx(median)
    assert (row["step_time_ms_low"], row["step_time_ms_high"]) == pytest.approx(median_interval(times[skipped:]))
    mean = statistics.mean(times[skipped:])
    assert row["samples_per_second"] == pytest.approx(4000 / mean)
    assert row["tokens_per_second"] == pytest.approx(100_000 / mean)
    assert row["peak_memory_bytes"] > 1e6 and found.steps["loss"].tolist()[:2] == [1.0, 0.5]
    assert {"memory_used_bytes", "load_average"} <= set(found.telemetry["quantity"])
    assert m.result is not None and m.result["step_time_ms"] == pytest.approx(median)


def test_an_interrupt_and_an_exception_keep_the_steps_and_go_up(tmp_path: Path) -> None:
    for error, status in ((KeyboardInterrupt(), "interrupted"), (ValueError("no such layer"), "crashed")):
        out = tmp_path / status
        with pytest.raises(type(error)) as caught, bertbench.measure("loop", out=out) as m:
            m.step()
            m.step()
            raise error
        assert caught.value is error
        ((given, reason),) = statuses(out)
        assert given == status and "2 steps" in reason
        assert ("no such layer" in reason) == (status == "crashed")
        assert bertbench.load_run(out).steps["step"].tolist() == [0, 1]
    with bertbench.measure("loop", out=out) as m:  # the folder is free again
        m.step()
    assert [status for status, _ in statuses(out)] == ["crashed", "ok"]


def test_a_block_without_steps_is_refused_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="step"), bertbench.measure("empty", out=tmp_path):
        pass
    assert [status for status, _ in statuses(tmp_path)] == ["refused"]


def test_the_same_name_again_is_another_round(tmp_path: Path) -> None:
    blocks = [bertbench.measure(name, out=tmp_path) for name in ("loop", "loop", "other")]  # planned at once
    for block in blocks:
        with block as m:
            m.step()
    results = bertbench.load_run(tmp_path).results
    rounds = sorted(zip(results["implementation"], results["round"], strict=True))
    assert rounds == [("loop", 0), ("loop", 1), ("other", 0)]


def test_two_blocks_in_one_folder_and_a_step_outside_are_refused(tmp_path: Path) -> None:
    with bertbench.measure("one", out=tmp_path) as m:
        with refused("folder-locked", tmp_path), bertbench.measure("two", out=tmp_path):
            pass
        m.step()
    with refused("option-conflict"):
        m.step()
    assert [status for status, _ in statuses(tmp_path)] == ["ok"]
