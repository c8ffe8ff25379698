"""What a command shows while it works: trials with the time left, and stages of data."""

import io
import sys
from pathlib import Path

import pytest

from bench.cli.session import TrialDisplay
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_shows_how_far_the_trial_is_and_a_log_how_each_ended(
    live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, now = Terminal() if live else io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", screen)
    display = TrialDisplay(RunDirectory(tmp_path / "run"), clock=lambda: now[0])
    trial, directory = Trial(preset="tiny", max_seconds=30.0), TrialDirectory(tmp_path)
    display.show(1, 2, trial, None)
    for seconds in (0.0, 0.4, 8.0):
        now[0] = seconds
        display.look(trial, directory)
    shown = screen.getvalue()
    assert shown.count("0 s, about") == live, "no line more often than once a second"
    # A start of 8 s and at most 30 s of steps.
    assert [text in shown for text in ("[1/2]", "8 s, about 30 s left")] == [live] * 2
    display.show(1, 2, trial, {"status": "ok", "samples_per_second": 3.0})
    assert screen.getvalue().endswith("3.0 samples/s\n") and screen.getvalue().count("\n") == 1
