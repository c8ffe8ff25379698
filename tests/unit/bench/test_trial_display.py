"""What a command shows while it works: trials with the time left, and stages of data."""

import io
import sys
from pathlib import Path

import pytest

from bench.cli.progress import duration, show_stages
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


def test_a_stage_has_its_rate_and_the_time_left_once_a_minute_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 30.0, 61.0, 90.0, 200.0])
    progress = show_stages(lambda: next(times))
    for done in (1000, 2000, 5000, 9000):
        progress("download x", done, 10_000)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "download x 2.0 kB of 10.0 kB, 32 bytes/s, 4:08 min left" and second.endswith("/s, 21 s left")
    assert [duration(seconds) for seconds in (7, 185, 8040, 273_600)] == ["7 s", "3:05 min", "2:14 h", "3 d 4 h"]


def test_a_stage_on_a_terminal_is_one_line_that_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, times = Terminal(), iter([0.0, 0.5, 2.0, 2.1])
    monkeypatch.setattr(sys, "stderr", screen)
    progress = show_stages(lambda: next(times))
    for done in (1, 2, 3):
        progress("shards", done, 3)
    shown = screen.getvalue()
    assert "2 of 3, 1/s, 2 s left" in shown and shown.endswith("3 of 3\n")
