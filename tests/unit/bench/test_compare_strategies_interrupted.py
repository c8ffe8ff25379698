"""`compare-strategies` that is interrupted after all training: the table is there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commands import result

from bench.cli import compare_strategies as command
from bench.cli.result import Result
from bench.machine.devices import Devices


def test_the_table_is_written_and_shown_when_profiling_is_interrupted_and_again_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    interrupted = True

    def profile(*_: Any) -> dict[str, Any]:
        done.append("profiled")
        if interrupted:
            raise KeyboardInterrupt
        return {"variant": {}}

    class Comparison:
        rows: Sequence[Any] = ()
        failed: Sequence[Any] = ()

    def written(*given: Any) -> tuple[dict[str, Any], Any]:
        done.append("written with profiles" if given[-1] else "written")
        return {}, Comparison()

    monkeypatch.setattr(command, "find_devices", lambda *_: Devices("cpu", (), 2))
    monkeypatch.setattr(command, "plan_variant", lambda *_: None)
    monkeypatch.setattr(command, "with_same_batches", lambda *_: None)
    monkeypatch.setattr(command, "check_comparable", lambda *_: None)
    monkeypatch.setattr(command, "train_all", lambda *_: True)
    monkeypatch.setattr(command, "_profile", profile)
    monkeypatch.setattr(command, "_written", written)
    monkeypatch.setattr(command, "_result", lambda *_: Result(blocks=["the table"]))
    words = ["pretrain", "--data", str(tmp_path), "--steps", "2", "--devices", "1", "2", "--out", str(tmp_path / "out")]
    with pytest.raises(KeyboardInterrupt):
        result("compare-strategies", *words)
    assert done == ["written", "profiled"]
    said = capsys.readouterr()
    assert "the table" in said.out and "interrupted while profiling" in said.err
    interrupted = False
    assert result("compare-strategies", *words).code == 0
    assert done[2:] == ["written", "profiled", "written with profiles"]
    assert result("compare-strategies", *words, "--profile-steps", "0").code == 0
    assert done[5:] == ["written"]
