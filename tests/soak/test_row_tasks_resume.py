"""Trainings on whole rows with the command line: resumed bit for bit, and the same on one rank and on two."""

from pathlib import Path
from typing import Any

import pytest
from support import datasets
from support.cli import TrainCli, kill_all, wait_for_steps
from support.datasets import colours_and_animals, csv_database, write_csv

from common.scores import scores_in
from records.training import TrainRun, read_events

STEPS = 40
GLOBAL_BATCH = 8


class RowTraining(TrainCli):
    """A training of a task on rows; an epoch has other than a whole number of batches."""

    def __init__(self, task: str, data: Path, out: Path, ranks: int = 1, *more: str) -> None:
        super().__init__(data, out, ranks, STEPS)
        self.task = task
        self.options = (
            "--data", str(data), "--out", str(out), "--steps", str(STEPS), "--devices", str(ranks), "--preset", "tiny",
            "--device", "cpu", "--threads", "1", "--precision", "fp32", "--learning-rate", "1e-3", "--log-every", "1",
            "--save-every", "5", "--eval-every", "20", "--global-batch-size", str(GLOBAL_BATCH),
            "--micro-batch-size", str(GLOBAL_BATCH // ranks // 2), *more,
        )  # fmt: skip

    def finish(self) -> None:
        self.run()
        assert self.state()["finished"]

    def kill_and_finish(self) -> None:
        """Kill all processes behind the first checkpoint, then give the same command again."""
        running = self.start()
        wait_for_steps(self, running, 1, 12)
        kill_all(running)
        assert running.returncode < 0 and self.checkpoints() and not self.finished
        self.finish()
        assert len(self.attempts()) == 2

    @property
    def finished(self) -> bool:
        return (self.out / "train.json").exists() and bool(self.state()["finished"])

    def evaluations(self) -> dict[int, dict[str, Any]]:
        """Scores by the update they were found after, without the seconds that took."""
        found = {}
        for attempt in TrainRun(self.out).attempts():
            for event in read_events(attempt):
                if event["event"] == "evaluated":
                    found[event["applied_steps"]] = {**scores_in(event), "samples": event["samples"]}
        return found


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of texts of which some are folded."""
    rows = [(f"{text} {'a b c d ' * (number % 4)}", label)
            for number, (text, label) in enumerate(colours_and_animals(100))]  # fmt: skip
    return csv_database(write_csv(tmp_path_factory.mktemp("texts") / "a.csv", rows), max_seq_length=12).source.path


def test_a_killed_training_of_gap_goes_on_bit_for_bit(tmp_path: Path) -> None:
    data = datasets.gap_features(tmp_path / "gap", training=44)
    whole = RowTraining("gap", data, tmp_path / "whole", 1, "--head", "span")
    broken = RowTraining("gap", data, tmp_path / "broken", 1, "--head", "span")
    whole.finish()
    broken.kill_and_finish()
    assert len(whole.curve().splitlines()) == STEPS + 1 and broken.curve() == whole.curve()
    assert broken.evaluations() == whole.evaluations() and sorted(whole.evaluations()) == [20, 40]


def test_texts_train_alike_on_one_rank_and_on_two_of_which_all_are_killed(texts: Path, tmp_path: Path) -> None:
    # Without dropout, which ranks draw each for themselves. The sums of one batch are added up in another order.
    alone = RowTraining("classify", texts, tmp_path / "alone", 1, "--dropout", "0")
    pair = RowTraining("classify", texts, tmp_path / "pair", 2, "--dropout", "0")
    broken = RowTraining("classify", texts, tmp_path / "broken", 2, "--dropout", "0")
    alone.finish()
    pair.finish()
    broken.kill_and_finish()
    assert broken.curve() == pair.curve() and broken.evaluations() == pair.evaluations()
    losses = [[float(line.split(",")[1]) for line in one.curve().splitlines()[1:]] for one in (alone, pair)]
    assert len(losses[0]) == STEPS and losses[1] == pytest.approx(losses[0], rel=1e-3, abs=1e-4)
    for step, scores in alone.evaluations().items():
        assert pair.evaluations()[step] == pytest.approx(scores, rel=1e-3)
