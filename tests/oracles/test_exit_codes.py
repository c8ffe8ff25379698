"""Exit codes of the commands: 0 done, 1 a check failed, 2 bad usage or input, 3 part of a sweep failed, 4 undecided."""

import json
from pathlib import Path

import pytest
from frozen import DATA
from golden import GOLDEN, with_step_times
from support.cli import SHORT, TINY
from support.commands import called

# GOLDEN is the recorded run, SLOWER it with four times its step times, NOISY it within its noise, OUT a new folder.
CODES = json.loads((DATA / "exit_codes.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("line", CODES)
def test_a_command_line_has_its_code(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("a line of text\n")
    paths = {"OUT": tmp_path / "out", "EMPTY": tmp_path / "empty", "TEXT": tmp_path / "text.txt", "GOLDEN": GOLDEN}
    if "SLOWER" in line:
        paths["SLOWER"] = with_step_times(tmp_path / "slower", 4.0)
    if "NOISY" in line:
        paths["NOISY"] = with_step_times(tmp_path / "noisy", 1.02)
    called(*(paths.get(word, word) for word in line.split()), code=CODES[line])


def test_a_trial_out_of_time_is_part_of_a_sweep_that_failed(tmp_path: Path) -> None:
    words = ("throughput", "pretrain", *TINY, *SHORT, "--batch-sizes", "1", "--timeout-seconds", "0.5")
    called(*words, "--out", tmp_path / "run", code=3)
