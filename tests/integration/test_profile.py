"""`bertbench profile --profiler torch` on two real ranks, and what comes of it."""

import csv
import json
from pathlib import Path

import pytest
from support.cli import TINY, Cli
from support.commands import Called, called
from support.refusals import check_refusal

from analysis.readers.kineto.reader import read
from common.errors import Code


def profile(cli: Cli, *options: str, code: int = 0) -> Called:
    words = ("profile", "pretrain", *TINY, "--batch-sizes", "2", *options, "--out", str(cli.out))
    return called(*words, code=code)


@pytest.mark.slow
def test_the_traces_of_two_ranks_hold_exactly_the_steps_asked_for(cli: Cli) -> None:
    done = profile(cli, "--profiler", "torch", "--start", "3", "--stop", "6", "--devices", "2", "--json")
    (found,) = json.loads(done.stdout)["profiles"]
    assert [Path(trace).name for trace in found["files"]] == ["trace-rank0.json.gz", "trace-rank1.json.gz"]
    for rank, trace in enumerate(found["files"]):
        timeline = read(Path(trace))
        assert timeline.rank == rank
        assert sorted(timeline.steps["step"]) == [3, 4, 5]
        names = set(timeline.ranges["name"])
        assert {f"bertbench:{phase}" for phase in ("data", "forward", "backward", "optimizer")} <= names
        assert "bertbench:layer.0.attention" in names, "the model's phases are recorded too"
        collectives = timeline.collectives
        assert set(collectives["collective"]) == {"all_reduce"} and set(collectives["group_size"]) == {2}
        per_step = collectives["bytes"].sum() / 3
        record = json.loads((Path(trace).parent.parent / "rank-0.json").read_text(encoding="utf-8"))
        parameters = record["parameters"]
        assert record["step_lacks"] is None
        assert per_step == pytest.approx(4 * parameters, rel=0.01), "every gradient once a step, four bytes each"
    steps = [row for row in found["findings"]["steps"]["rows"] if row["rank"] == 0]
    assert [row["step"] for row in steps] == [3, 4, 5]
    recorded = {row["step"]: row["step_time_ms"] for row in clock_rows(cli)}
    for row in steps:
        assert row["step_time_ms"] <= 1.02 * recorded[row["step"]] + 1, (
            "a step in the trace is no longer than on the clock"
        )
    called("report", cli.out)
    assert "aten::" in (cli.out / "report" / "report.html").read_text(encoding="utf-8")


def clock_rows(cli: Cli) -> list[dict[str, float]]:
    from records.run import RunDirectory

    (trial,) = (found for found in RunDirectory(cli.out).trials() if found.read_trial().kind == "profile")
    return trial.read_steps(0)


def test_what_the_profiler_cost_stands_beside_the_profile(cli: Cli) -> None:
    done = profile(cli, "--profiler", "torch", "--start", "1", "--stop", "3", "--with", "tensorboard", "--json")
    (found,) = json.loads(done.stdout)["profiles"]
    ratio = found["step_time_ms"] / found["unprofiled_step_time_ms"]
    assert found["step_time_ratio"] == pytest.approx(ratio)
    (row,) = csv.DictReader((cli.out / "compute_utilization.csv").open(encoding="utf-8"))
    assert float(row["step_time_ratio"]) == pytest.approx(ratio)
    assert 0 < float(row["compute_utilization"]) <= 1 and row["counted"] == "CPU operators" and row["steps"] == "2"
    assert len(list(cli.out.glob("trials/profile-*/profile/tensorboard/rank0.*.pt.trace.json.gz"))) == 1
    kinds = {line.split(",")[20] for line in (cli.out / "results.csv").read_text(encoding="utf-8").splitlines()[1:]}
    assert kinds == {"probe", "profile"}, "neither run counts as throughput"


@pytest.mark.parametrize(
    ("options", "code", "fact"),
    [
        (["--profiler", "nsight"], "option-choice", "nsight"),
        (
            ["--profiler", "torch", "--with", "shape"],
            "option-choice",
            "shapes, stacks, memory",
        ),
        (["--profiler", "ncu"], "option-not-applicable", "CPU"),
        (["--profiler", "nvprof"], "option-not-applicable", "CPU"),
        (["--profiler", "torch", "--stop", "1"], "option-value", "--stop 1"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_anything_runs(
    cli: Cli, options: list[str], code: Code, fact: str
) -> None:
    check_refusal(profile(cli, "--start", "1", "--stop", "3", *options, code=2).stderr, code, fact)
    assert not (cli.out / "trials").exists()


def test_a_window_is_needed(cli: Cli) -> None:
    check_refusal(profile(cli, "--profiler", "torch", code=2).stderr, "option-missing", "--start N --stop M")
