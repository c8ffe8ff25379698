"""How far a running trial is, from the records it writes."""

import io
import sys
from pathlib import Path

import pytest

from bench.cli.progress import TrialDisplay, duration, last_row, seconds_left, show_stages
from records.run import TrialDirectory
from records.trial import Trial


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("step,time\n", None),
        ("step,time\n0,1.5\n1,1.5\n12,1", 2),  # the last row is not whole yet
        ("step,time\n" + "".join(f"{number},{'x' * 500}\n" for number in range(100)), 100),
    ],
)
def test_the_last_whole_row_counts(text: str, rows: int | None, tmp_path: Path) -> None:
    path = tmp_path / "steps-0.csv"
    assert last_row(path) is None
    path.write_text(text)
    assert last_row(path) == rows


def test_a_window_ends_at_its_last_step_or_the_first_limit() -> None:
    trial = Trial(start_iteration=10, stop_iteration=40)
    assert seconds_left(trial, 10, 3.0, 0) is None
    assert seconds_left(trial, 10, 3.0, 6) == pytest.approx(15.0)  # 30 steps of half a second
    trial = Trial(max_seconds=10.0, max_steps=1000, min_steps=5)
    assert seconds_left(trial, 20, 4.0, 20) == pytest.approx(6.0)  # time comes first
    assert seconds_left(trial, 900, 4.0, 900) == pytest.approx(100 * 4 / 900)  # steps do
    assert seconds_left(Trial(max_seconds=10.0, max_steps=8, min_steps=8), 1, 5.0, 1) == pytest.approx(35.0)


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_shows_how_far_the_trial_is_and_a_log_how_each_ended(
    live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, now = Terminal() if live else io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", screen)
    display = TrialDisplay(clock=lambda: now[0])
    trial, directory = Trial(preset="tiny", start_iteration=2, stop_iteration=20), TrialDirectory(tmp_path)
    display.show(1, 2, trial, None)
    directory.steps_csv(0).write_text("step,time\n0,1\n")
    for seconds, step in ((2.0, 0), (2.2, 4), (4.0, 9)):
        now[0] = seconds
        with directory.steps_csv(0).open("a") as file:
            file.write(f"{step},1\n")
        display.look(trial, directory)
    shown = screen.getvalue()
    assert "step 5" not in shown, "no line more often than once a second"
    # 9 steps in 2 s, 10 are left.
    assert [text in shown for text in ("[1/2]", "step 10", "2 s left")] == [live] * 3
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
