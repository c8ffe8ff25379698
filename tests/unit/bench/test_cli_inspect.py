"""`data inspect` and `data verify`: exit codes, what they print, what they write."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from support import pretraining_shards as shards
from support.commands import document, result, text
from support.refusals import refused

from analysis.render.png import write_png
from analysis.render.tables import Table
from analysis.render.task_figures import LengthCounts, lengths_figure

FIRST = "small_training_0.hdf5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards.write_folder(tmp_path / "small")


def inspected(*words: object) -> tuple[str, int]:
    """What a terminal of 150 characters shows, and the exit code."""
    found = result("data", "inspect", *words)
    return text(found.blocks), found.code


def test_inspect_shows_figures_checks_and_samples_and_writes_nothing(folder: Path) -> None:
    before = sorted(path.name for path in folder.parent.rglob("*"))
    shown, code = inspected(folder)
    assert code == 0
    for fact in (
        "padding efficiency", "instances by real tokens", "####", "30 checks passed, 0 failed",
        "cls_first", "most frequent pieces", "[MASK:", "masked / real tokens without [CLS], [SEP]",
    ):  # fmt: skip
        assert fact in shown
    assert sorted(path.name for path in folder.parent.rglob("*")) == before


def checks(folder: Path) -> dict[str, tuple[str, str]]:
    """State of each check, and what is said of it."""
    (table,) = (
        block
        for block in result("data", "inspect", folder, "--samples", 0).blocks
        if isinstance(block, Table) and block.name == "checks"
    )
    return {name.text: (state.text, said.text) for state, name, said in table.rows}


def test_a_broken_shard_gives_exit_code_1_and_says_where(folder: Path) -> None:
    with h5py.File(folder / FIRST, "r+") as file:
        file["input_ids"][7, 0] = 9
    state, said = checks(folder)["cls_first"]
    assert state == "FAILED" and said.startswith("1 ") and f"{FIRST} row 7" in said
    shown, code = inspected(folder, "--samples", "0")
    assert "1 failed" in shown and code == 1


def test_truncated_shards_are_named_and_no_picture_is_drawn(folder: Path) -> None:
    for path in folder.glob("*.hdf5"):
        path.write_bytes(path.read_bytes()[:3000])
    assert inspected(folder, "--out", folder / "pictures")[1] == 1
    assert checks(folder)["readable"][0] == "FAILED" and not (folder / "pictures").exists()


def test_pieces_from_outside_neither_style_nor_break_the_output(folder: Path) -> None:
    pieces = [*shards.PIECES[:-2], "[/red]\x1b[31m", "[bold]"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    shown, _ = inspected(folder, "--samples", "90")
    assert "[bold]" in shown and "[/red] [31m" in shown and "\x1b" not in shown


def test_json_holds_everything(folder: Path) -> None:
    found = document("data", "inspect", folder, "--split", "test", "--samples", "2")
    assert found["passed"] is True and found["pictures"] == []
    (one,) = found["inspections"]
    assert [split["split"] for split in one["splits"]] == ["test"] and len(one["samples"]) == 2
    assert sum(one["splits"][0]["lengths"]) == 20 and one["test_in_training"] is None


def test_the_picture_goes_into_the_given_folder_one_per_preparation(tmp_path: Path) -> None:
    for length in (24, 32):
        place = tmp_path / "all" / f"hdf5_lower_case_1_seq_len_{length}_max_pred_3" / "small"
        shards.write(place / FIRST, shards.instances(30, 1, seq_len=length))
    out = tmp_path / "out"
    assert len(result("data", "inspect", tmp_path / "all", "--out", out, "--workers", 1).written) == 2
    names = sorted(path.name for path in out.iterdir())
    assert names == [f"hdf5_lower_case_1_seq_len_{length}_max_pred_3_small_lengths.png" for length in (24, 32)]
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_a_picture_beside_the_shards_disturbs_nothing(folder: Path) -> None:
    assert result("data", "inspect", folder, "--out", folder).code == 0
    assert (folder / "lengths.png").is_file() and result("data", "inspect", folder).code == 0


def test_bad_input_is_refused(folder: Path, tmp_path: Path) -> None:
    for argv, code, facts in (
        ([str(tmp_path / "none")], "path-missing", (tmp_path / "none",)),
        ([str(folder), "--seq-len", "512"], "data-mismatch", (folder, 512)),
        ([str(folder), "--vocab", "none.txt"], "path-missing", ("none.txt",)),
        ([str(folder), "--samples", "-1"], "option-value", ("--samples -1",)),
        ([str(folder), "--workers", "0"], "option-value", ("--workers 0", 1)),
    ):
        with refused(code, *facts):
            result("data", "inspect", *argv)


def test_verify_says_equal_or_what_differs(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    found = result("data", "verify", folder, other)
    assert found.code == 0 and found.blocks[0] == "5 file(s) identical byte for byte"
    with h5py.File(other / FIRST, "r+") as file:
        file["masked_lm_ids"][3, 1] = 42
    found = result("data", "verify", folder, other)
    assert found.code == 1 and str(found.blocks[0]).startswith(f"differs: {FIRST}: masked_lm_ids[3, 1] is")
    assert found.document["equal_content"] is False and found.document["differences"][0]["first_row"] == 3
    with refused("path-missing", tmp_path / "none"):
        result("data", "verify", folder, tmp_path / "none")


@pytest.mark.parametrize("seq_len", [1, 5, 31, 128, 512])
def test_any_length_is_drawn(tmp_path: Path, seq_len: int) -> None:
    counts = np.zeros(seq_len + 1, np.int64)
    counts[-1] = 3
    split = LengthCounts("_$odd", counts.tolist(), counts.tolist(), np.roll(counts, 1).tolist())
    figure = lengths_figure([split, split], "$name_")
    bars = figure.panels[0].series[0]
    assert bars.end[-1] == 100 and set(bars.end[:-1]) <= {0.0} and bars.at[-1] < seq_len
    assert write_png(figure, tmp_path / "new").is_file()
