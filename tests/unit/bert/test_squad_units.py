"""Units of work that a SQuAD file is cut into."""

from pathlib import Path

import pytest
from support.squad_columns import dataset, paragraph, question

from bert.tasks.squad import prepare
from bert.tasks.squad.reading import Place, RawParagraph, parse, read_dataset, together


def rows(tmp_path: Path, count: int) -> Path:
    return dataset(
        tmp_path / "train.json",
        *(paragraph(f"{n} a b c", question(f"q{n}", "what is it?", ("a", len(str(n)) + 1))) for n in range(count)),
    )


def test_a_file_of_any_size_has_a_bounded_number_of_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraphs = read_dataset(rows(tmp_path, 100)).paragraphs
    monkeypatch.setattr(prepare, "LEAST_UNIT_BYTES", 1)
    monkeypatch.setattr(prepare, "MOST_UNIT_BYTES", 1)
    monkeypatch.setattr(prepare, "MOST_UNITS", 10)
    runs = list(prepare.cut(paragraphs, 2))
    assert 5 <= len(runs) <= 11
    assert [one for run in runs for one in run] == list(paragraphs)


def test_paragraphs_together_are_parsed_as_each_alone(tmp_path: Path) -> None:
    paragraphs: tuple[RawParagraph, ...] = read_dataset(rows(tmp_path, 7)).paragraphs
    places = [one.place for one in paragraphs]
    assert places[6] == Place(1, places[0].title, 7)
    every = parse(tmp_path, places, together(paragraphs))
    alone = [parse(tmp_path, [one.place], together([one]))[0] for one in paragraphs]
    assert every == alone and [paragraph.context for paragraph in every][6] == "6 a b c"
