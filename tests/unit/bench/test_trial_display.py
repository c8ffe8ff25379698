"""How far a running trial is, from the records it writes."""

import io
import sys
from pathlib import Path

import pytest

from bench.cli.sweep_progress import describe, show_progress
from bench.cli.trial_display import TrialDisplay, last_row, progress_of
from records.run import TrialDirectory
from records.trial import Trial


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", None),
        ("step,time\n", None),
        ("step,time\n0,1.5\n", 1),
        ("step,time\n0,1.5\n1,1.5\n12,1", 2),  # the last row is not whole yet
        ("step,time\n" + "".join(f"{number},{'x' * 500}\n" for number in range(100)), 100),
    ],
)
def test_the_last_whole_row_counts(text: str, rows: int | None, tmp_path: Path) -> None:
    path = tmp_path / "steps-0.csv"
    assert last_row(path) is None
    path.write_text(text)
    assert last_row(path) == rows


def test_a_given_window_ends_at_its_last_step() -> None:
    trial = Trial(start_iteration=10, stop_iteration=40)
    assert progress_of(trial, 10, 3.0, 6) == (0.25, pytest.approx(15.0))  # 30 steps of half a second


def test_an_automatic_window_ends_at_the_first_limit() -> None:
    trial = Trial(max_seconds=10.0, max_steps=1000, min_steps=5)
    assert progress_of(trial, 20, 4.0, 20) == (pytest.approx(0.4), pytest.approx(6.0))  # time comes first
    assert progress_of(trial, 900, 4.0, 900)[1] == pytest.approx(100 * 4 / 900)  # steps do
    assert progress_of(Trial(max_seconds=10.0, max_steps=8, min_steps=8), 1, 5.0, 1) == (1 / 8, pytest.approx(35.0))


def test_on_a_terminal_it_says_how_far_the_trial_is_and_how_long_it_takes_and_takes_the_line_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, now = Terminal(), [0.0]
    monkeypatch.setattr(sys, "stderr", screen)
    display = TrialDisplay(show_progress, describe, clock=lambda: now[0])
    trial, directory = Trial(preset="tiny", start_iteration=2, stop_iteration=20), TrialDirectory(tmp_path)
    display.show(1, 2, trial, None, False)
    display.look(trial, directory)
    directory.steps_csv(0).write_text("step,time\n0,1\n")
    for seconds, step in ((2.0, 0), (2.2, 4), (4.0, 9)):
        now[0] = seconds
        with directory.steps_csv(0).open("a") as file:
            file.write(f"{step},1\n")
        display.look(trial, directory)
    said = screen.getvalue()
    assert "[1/2]" in said and "step 10" in said
    assert "step 5" not in said, "no line more often than once a second"
    # 9 steps in 2 s, 10 are left.
    assert "2 s left" in said
    display.show(1, 2, trial, {"status": "ok", "samples_per_second": 3.0}, False)
    assert screen.getvalue().rstrip().endswith("3.0 samples/s")


def test_without_a_terminal_there_is_a_plain_line_per_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = TrialDisplay(show_progress, describe)
    trial, directory = Trial(preset="tiny"), TrialDirectory(tmp_path)
    directory.steps_csv(0).write_text("step,time\n0,1\n1,1\n")
    display.show(1, 1, trial, None, False)
    display.look(trial, directory)
    display.show(1, 1, trial, {"status": "ok", "samples_per_second": 3.0}, False)
    assert capsys.readouterr().err.count("\n") == 1
