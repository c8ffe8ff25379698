import json
from pathlib import Path

import pytest
from support.commands import result, text

from bench.cli.dispatch import call

SMALL = ["--seq-len", "16", "--dupe-factor", "1", "--vocab-size", "400"]


def test_generated_text_becomes_shards_and_a_summary(tmp_path: Path) -> None:
    shown = text(
        result("data", "pretrain", "--generate", "20000", "--output", str(tmp_path), "--lower-case", *SMALL).blocks
    )
    for word in ("documents", "sentences", "400 word pieces, trained on this text", "training +", "real", "folder"):
        assert word in shown
    (folder,) = tmp_path.glob("hdf5_lower_case_1_seq_len_16_max_pred_2_*/generated")
    assert str(folder) in shown and len(list(folder.glob("generated_training_*.hdf5"))) == 4


def test_json_is_the_summary_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--output", str(tmp_path / "out"), *SMALL, "--shards", "2", "--no-lower-case", "--json"]
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / "in" / f"{number}.txt").write_bytes(b"An \xe9clair. Number One. It was open, was it not? " * 40)
    assert call(["data", "pretrain", "--input", str(tmp_path / "in"), *options]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    (length,) = summary["lengths"]
    assert length["shards"] == 3 and summary["documents"] == 5
    assert "lower_case_0" in length["folder"] and "latin-1" in " ".join(summary["notes"])
    call(["data", "pretrain", "--input", str(tmp_path / "in"), *options])
    assert json.loads(capsys.readouterr().out)["lengths"][0]["shards_kept"] == 3
