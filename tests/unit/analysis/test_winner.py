"""Which configuration is the fastest: by hand, and the same on the terminal, in best.json and on the page."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commands import result, text
from support.fake_run import step_rows, write_trial

from analysis.diagnose.answer import points, winners
from analysis.load import load_run
from analysis.metrics.comparison.ratio import Candidate, choose
from bench.cli import profile
from bench.machine.devices import Devices
from bench.sweep import sweep
from bench.sweep.sweep import Session
from bench.sweep.trials import Sweep, expand
from records.files import write_record
from records.run import RunDirectory
from records.trial import Trial

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("pictures_of_one_pixel")]


def of(*rates: float, half: float = 0.0) -> Candidate:
    return Candidate(rates, rates[0] - half, rates[0] + half)


@pytest.mark.parametrize(
    ("candidates", "best", "close"),
    [
        # One round each: the fastest, and whose interval reaches into its own (110 - 3 = 107).
        ([of(100.0, half=3), of(110.0, half=3), of(105.0, half=3)], 1, (2,)),
        # Logarithms of 99, 100, 101 have s = 0.01: from one round of 103 to them t(0.975, 2) x s x sqrt(1 + 1/3) = 5 %.
        ([of(99.0, 100.0, 101.0), of(103.0, half=0.1)], 0, (1,)),
        ([of(99.0, 100.0, 101.0), of(110.0, half=0.1)], 1, ()),
        ([of(99.0, 100.0, 101.0), of(97.0, half=0.1), of(90.0, half=0.1)], 0, (1,)),
        # Three rounds each, t(0.975, 4) x s x sqrt(2/3) = 2.3 %.
        ([of(99.0, 100.0, 101.0), of(100.0, 101.0, 102.0), of(93.0, 94.0, 95.0)], 1, (0,)),
        ([of(5.0)], 0, ()),
    ],
)
def test_the_fastest_and_what_may_be_as_fast_by_hand(
    candidates: list[Candidate], best: int, close: tuple[int, ...]
) -> None:
    choice = choose(candidates)
    assert (choice.best, choice.close) == (best, close)


def test_the_rate_is_that_of_the_median_time() -> None:
    # 10 ms and 20 ms for 1 sample: 15 ms in the middle, 66.7 samples/s, where the mean of 100 and 50 is 75.
    assert of(100.0, 50.0).rate == pytest.approx(1000 / 15)


RATES = {1: (100.0,) * 9, 2: (104.0, *(90.0,) * 8), 3: (50.0,) * 9, 4: (106.0, *(80.0,) * 8)}
"""Samples/s by micro batch and round: the sizes that win the first round are the slower ones."""


def measured_as(rates: dict[int, Sequence[float]]) -> Callable[..., list[dict[str, Any]]]:
    """In place of running a trial: write its records, steps that all take as long, and return its result."""

    def run_trials(session: Session, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        (trial,), run = trials, session.run
        time_ms = 1000 * trial.micro_batch_size / rates[trial.micro_batch_size][trial.round]
        if not run.trial(trial.trial_id).path.exists():
            write_trial(run, trial, {0: step_rows([time_ms] * 30, trial.micro_batch_size)})
        (loaded,) = [found for found in load_run(run) if found.trial.trial_id == trial.trial_id]
        measured = {name: loaded.row[name] for name in ("samples_per_second", "step_time_ms", "peak_memory_bytes")}
        result = run.trial(trial.trial_id).read_result() or {}
        write_record(run.trial(trial.trial_id).result_json, {**result, **measured})
        return [dict(loaded.row)]

    return run_trials


@pytest.mark.parametrize(("rounds", "winner", "rate"), [(1, 4, 106.0), (9, 1, 100.0)])
def test_terminal_file_and_page_name_one_winner_and_what_is_close_to_it(
    rounds: int,
    winner: int,
    rate: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep, "run_trials", measured_as(RATES))
    out = tmp_path / "tuned"
    words = ["pretrain", "--preset", "tiny", "--device", "cpu", "--devices", "1", "--precision", "fp32"]
    words += ["--last-batch", "4", "--memory-limit-gib", "64", "--rounds", str(rounds), "--out", str(out)]
    called = result("tune", words[0], "--for", "throughput", *words[1:])
    assert called.code == 0
    shown = text(called.blocks)
    best = json.loads((out / "best.json").read_text())
    state = json.loads((out / "tune.json").read_text())
    assert best["micro_batch_size"] == state["best"]["micro_batch_size"] == winner
    assert best["samples_per_second"] == pytest.approx(rate)
    (starred,) = [line for line in shown.splitlines() if line.lstrip().startswith("*")]
    assert f"micro batch {winner} " in starred and f"{rate:.1f}" in starred
    assert f"--micro-batch-size {winner} " in shown, "the command that is printed runs it"

    (page,) = winners(points(load_run(RunDirectory(out))))
    assert page.best.row["micro_batch_size"] == winner and page.best.samples_per_second == pytest.approx(rate)
    names = [f"single, micro batch {point.row['micro_batch_size']}" for point in page.close]
    assert best["close"] == names and len(names) == 1 and best["undecided"]
    marked = [line for line in shown.splitlines() if line.lstrip().startswith("~")]
    assert len(marked) == len(names) and all(name in line for name, line in zip(names, marked, strict=True))
    assert len(best["rounds"]) == rounds


PROFILE = ["pretrain", "--device", "cpu", "--start", "3", "--stop", "6"]


def profiled(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Trial:
    """The one trial that `bertbench profile` would run."""

    def stop(session: Session, trials: Sequence[Trial]) -> None:
        raise LookupError(*trials)

    monkeypatch.setattr(profile, "profile_trials", stop)
    with pytest.raises(LookupError) as asked:
        result("profile", *PROFILE, *words)
    (trial,) = asked.value.args
    return trial


def test_the_winner_of_a_run_is_profiled_as_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path / "run")
    # Samples/s: 80 of batch 8 on one rank, 2 x 8 / 0.16 = 100 on two, 160 of batch 16 by hf, 32 / 0.4 = 80 of the
    # largest batch; a trial of another task is faster than all.
    for fields, time_ms in (
        ({"micro_batch_size": 8}, 100.0),
        ({"micro_batch_size": 8, "world_size": 2, "strategy": "ddp"}, 160.0),
        ({"micro_batch_size": 16, "implementation": "hf"}, 100.0),
        ({"micro_batch_size": 32}, 400.0),
        ({"micro_batch_size": 8, "task": "squad", "seq_len": 384}, 1.0),
    ):
        values = {"preset": "tiny", "precision": "fp32", "strategy": "single", "max_seconds": 6.0, "min_steps": 8}
        trial = Trial(**{**values, **fields})
        steps = {rank: step_rows([time_ms] * 20, trial.micro_batch_size) for rank in range(trial.world_size)}
        write_trial(run, trial, steps)
    words = ["--winner-of", str(run.path), "--out", str(tmp_path / "out")]
    trial = profiled(words, monkeypatch)
    assert (trial.implementation, trial.micro_batch_size, trial.world_size) == ("hf", 16, 1)
    assert (trial.kind, trial.profiler, trial.start_iteration, trial.stop_iteration) == ("profile", "torch", 3, 6)
    by_name = Sweep(
        presets=("tiny",), precisions=("fp32",), implementations=("hf",), batch_sizes=(16,), devices=(1,),
        seq_lens=(128,), start=3, stop=6, rounds=1,
    )  # fmt: skip
    (same,) = expand(by_name, Devices("cpu", (), 2), kind="profile", profiler="torch")
    assert trial.trial_id == same.trial_id, "the trial that its options would name"
