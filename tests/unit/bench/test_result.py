"""How a result is printed: what goes to which stream, in which form, and what the exit code is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.refusals import refused

from analysis.render.tables import Facts, Plain, Table, texts
from bench.cli.options import Tables
from bench.cli.result import Result, of_view, show, when_writable
from common.errors import InputError, StorageError

Capture = pytest.CaptureFixture[str]
TABLE = texts("t", ("name", "ms"), [["a", "1.50"]], "A title")


def test_blocks_stand_apart_and_sentences_follow_what_they_are_about(capsys: Capture) -> None:
    blocks = [Plain("  as\n it is"), TABLE, "one.", "two.", Facts([("name", "value"), ("longer", "x " * 200)], "Facts")]
    assert show(Result(blocks=blocks, code=3), False) == 3
    parts = [[line.rstrip() for line in part.splitlines()] for part in capsys.readouterr().out.split("\n\n")]
    assert parts[0] == ["  as", " it is"]
    assert parts[1][0].strip() == "A title"
    assert parts[-2][-2:] == ["one.", "two."]
    assert parts[-1][:2] == ["Facts", "name    value"] and len(parts[-1]) == 3, "values are not broken over lines"


def test_json_is_the_document_alone_and_problems_are_told_beside_it(capsys: Capture) -> None:
    result = Result(document={"a": [1, None]}, blocks=["shown"], notes=["note"], problems=["lost"], written=[Path("x")])
    assert show(result, True) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"a": [1, None]} and shown.err == "bertbench: lost\n"
    show(result, False)
    shown = capsys.readouterr()
    assert shown.out == "shown\n\nwrote x\n" and shown.err == "note: note\nbertbench: lost\n"
    with pytest.raises(ValueError, match="JSON"):
        show(Result(document=float("nan")), True)


def test_what_is_said_often_is_said_once_and_what_is_much_is_counted(capsys: Capture) -> None:
    written = [Path("out") / f"{number}.csv" for number in range(7)]
    problems = ["same", "same", *(f"problem {number}" for number in range(30))]
    show(Result(written=[*written, Path("page.html")], notes=["n", "n"], problems=problems), False)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["wrote page.html", "wrote 7 files into out"]
    assert shown.err.count("same") == shown.err.count("note: n") == 1 and "and 26 more" in shown.err


def test_a_failure_is_raised_after_what_there_is_was_shown(capsys: Capture) -> None:
    error = StorageError("disk-full", "no place for page.html")
    written, failure = when_writable(lambda: [Path("never")][1:])
    assert (list(written), failure) == ([], None)

    def full() -> list[Path]:
        raise error

    written, failure = when_writable(full)
    with refused("disk-full", "page.html"):
        show(Result(blocks=["the numbers"], written=written, failure=failure), False)
    assert capsys.readouterr().out == "the numbers\n"
    with refused("run-mismatch"):
        show(Result(document=[], failure=InputError("run-mismatch", "nothing alike")), True)
    assert capsys.readouterr().out == "[]\n"


def test_findings_are_shown_on_one_screen_or_whole_and_written_whole(tmp_path: Path) -> None:
    import pandas as pd

    from analysis.diagnose.finding import Finding
    from analysis.views import of_findings

    finding = Finding("kernels", "Kernels", pd.DataFrame({"name": list("abcdefghijklmnop"), "ms": 1.0}), "Sixteen.")
    options = Tables(csv=tmp_path, markdown=tmp_path / "all.md")
    found = of_view(of_findings([finding], ["lost"], path="x"), options, "t", "the rest: --full", 1)
    answer, table, rest = found.blocks
    assert answer == Plain("Sixteen.") and isinstance(table, Table) and len(table.rows) == 10 and "--full" in str(rest)
    assert found.written == [tmp_path / "kernels.csv"] and len(pd.read_csv(tmp_path / "kernels.csv")) == 16
    assert len(found.document["findings"]["kernels"]["rows"]) == 16 and found.document["path"] == "x"
    assert (found.code, found.problems) == (1, ["lost"])
    assert "| j |" in (tmp_path / "all.md").read_text() and "| k |" not in (tmp_path / "all.md").read_text()
    table, sentence = of_view(of_findings([finding], []), replace(options, full=True), "u").blocks
    assert "### u\n" in (tmp_path / "all.md").read_text() and "| p |" in (tmp_path / "all.md").read_text()
    assert isinstance(table, Table) and len(table.rows) == 16 and sentence == "Sixteen."
