"""`bertbench data squad`: what it prints."""

from pathlib import Path

import pytest
from support.commands import document
from support.datasets import paragraph, question, write_squad, write_vocabulary

from bench.cli.main import run


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    rows = [question("a", "what is it?", ("c d", 4)), question("b", "who?", ("zebra", 1)), question("c", "?", ("a", 0))]
    source = write_squad(tmp_path / "train.json", paragraph("a b c d e f", *rows))
    return ["--input", str(source), "--vocab", str(write_vocabulary(tmp_path))]


def test_the_summary_says_what_was_made_and_what_was_left_out(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["data", "squad", *given, "--output", str(tmp_path / "out"), "--lower-case"]) == 0
    said = capsys.readouterr()
    assert "for training" in said.out and "left out" in said.out
    assert "the answer is not found at its place, such as b" in said.err
    (found,) = document("data", "squad", *given, "--output", str(tmp_path / "out"))
    assert found["kept"] and found["counts"]["questions"] == 2 and Path(found["features"]).is_file()
