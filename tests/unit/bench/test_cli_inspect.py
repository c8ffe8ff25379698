"""`data inspect` and `data verify`: exit codes, what they print, what they write."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from support import pretraining_shards as shards
from support.refusals import refused

from analysis.render.png import write_png
from analysis.render.task_figures import LengthCounts, lengths_figure
from bench.cli.dispatch import call

FIRST = "small_training_0.hdf5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards.write_folder(tmp_path / "small")


def test_inspect_prints_figures_checks_and_samples_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    before = sorted(path.name for path in folder.parent.rglob("*"))
    assert call(["data", "inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "padding efficiency",
        "chance gives",
        "instances by real tokens",
        "####",
        "30 checks passed, 0 failed",
    ):
        assert text in shown
    assert "cls_first" in shown and "most frequent pieces" in shown and "[MASK:" in shown
    assert sorted(path.name for path in folder.parent.rglob("*")) == before


def test_a_broken_shard_gives_exit_code_1_and_says_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(folder / FIRST, "r+") as file:
        file["input_ids"][7, 0] = 9
    assert call(["data", "inspect", str(folder), "--samples", "0"]) == 1
    shown = capsys.readouterr().out
    assert f"FAILED   cls_first                 1 x, the first: {FIRST} row 7" in shown and "1 failed" in shown


def test_truncated_shards_are_named_and_no_traceback_comes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.glob("*.hdf5"):
        path.write_bytes(path.read_bytes()[:3000])
    assert call(["data", "inspect", str(folder), "--out", str(folder / "pictures")]) == 1
    assert "FAILED   readable" in capsys.readouterr().out and not (folder / "pictures").exists()


def test_pieces_from_outside_neither_style_nor_break_the_output(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = [*shards.PIECES[:-2], "[/red]\x1b[31m", "[bold]"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    call(["data", "inspect", str(folder), "--samples", "90"])
    shown = capsys.readouterr().out
    assert "[bold]" in shown and "[/red] [31m" in shown and "\x1b" not in shown


@pytest.mark.parametrize("width", [40, 60, 100])
def test_narrow_terminals_get_whole_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert call(["data", "inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    for text in ("instances", "70", "masked / real tokens without [CLS], [SEP]", "segment_switch_after_sep"):
        assert text in words


def test_json_holds_everything(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["data", "inspect", str(folder), "--json", "--split", "test", "--samples", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is True and found["pictures"] == []
    (one,) = found["inspections"]
    assert [split["split"] for split in one["splits"]] == ["test"] and len(one["samples"]) == 2
    assert sum(one["splits"][0]["lengths"]) == 20 and one["test_in_training"] is None


def test_the_picture_goes_into_the_given_folder_one_per_preparation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for length in (24, 32):
        place = tmp_path / "all" / f"hdf5_lower_case_1_seq_len_{length}_max_pred_3" / "small"
        shards.write(place / FIRST, shards.instances(30, 1, seq_len=length))
    out = tmp_path / "out"
    assert call(["data", "inspect", str(tmp_path / "all"), "--out", str(out), "--workers", "1"]) == 0
    assert capsys.readouterr().out.count("wrote ") == 2
    names = sorted(path.name for path in out.iterdir())
    assert names == [f"hdf5_lower_case_1_seq_len_{length}_max_pred_3_small_lengths.png" for length in (24, 32)]
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_a_picture_beside_the_shards_disturbs_nothing(folder: Path) -> None:
    assert call(["data", "inspect", str(folder), "--out", str(folder), "--json"]) == 0
    assert (folder / "lengths.png").is_file() and call(["data", "inspect", str(folder), "--json"]) == 0


def test_bad_input_is_refused(folder: Path, tmp_path: Path) -> None:
    for argv, code, facts in (
        ([str(tmp_path / "none")], "path-missing", (tmp_path / "none",)),
        ([str(folder), "--seq-len", "512"], "data-mismatch", (folder, 512)),
        ([str(folder), "--vocab", "none.txt"], "path-missing", ("none.txt",)),
        ([str(folder), "--samples", "-1"], "option-value", ("--samples -1",)),
        ([str(folder), "--workers", "0"], "option-value", ("--workers 0", 1)),
    ):
        with refused(code, *facts):
            call(["data", "inspect", *argv])


def test_verify_says_equal_or_what_differs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert call(["data", "verify", str(folder), str(other)]) == 0
    shown = capsys.readouterr().out
    assert "5 file(s) identical byte for byte" in shown and "the folders hold the same" in shown
    with h5py.File(other / FIRST, "r+") as file:
        file["masked_lm_ids"][3, 1] = 42
    assert call(["data", "verify", str(folder), str(other)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert f"differs: {FIRST}: masked_lm_ids[3, 1] is" in shown and "1 file(s) differ" in shown
    assert call(["data", "verify", str(folder), str(other), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["equal_content"] is False and found["differences"][0]["first_row"] == 3
    with refused("path-missing", tmp_path / "none"):
        call(["data", "verify", str(folder), str(tmp_path / "none")])


@pytest.mark.parametrize("seq_len", [1, 5, 31, 128, 512])
def test_any_length_is_drawn(tmp_path: Path, seq_len: int) -> None:
    counts = np.zeros(seq_len + 1, np.int64)
    counts[-1] = 3
    split = LengthCounts("_$odd", counts.tolist(), counts.tolist(), np.roll(counts, 1).tolist())
    figure = lengths_figure([split, split], "$name_")
    bars = figure.panels[0].series[0]
    assert bars.end[-1] == 100 and set(bars.end[:-1]) <= {0.0} and bars.at[-1] < seq_len
    assert write_png(figure, tmp_path / "new").is_file()
