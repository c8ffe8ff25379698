"""Workers that make SQuAD features: any number gives the same bytes."""

import json
from pathlib import Path

import pytest
from support.datasets import paragraph, question, squad_summary, write_squad, write_vocabulary

from bert.tasks.squad import prepare as parts


def large(path: Path, paragraphs: int) -> Path:
    """A file of several units of work, with ids that stand in more than one of them."""
    text = "a duke of x came here in 1066 and went there in 1067 . " * 20
    rows = []
    for number in range(paragraphs):
        place = text.index("106", number % 700)
        names = [f"q{number}", f"q{number // 2}", f"p{number % 7}"]
        rows.append(paragraph(f"{number} {text}", *(question(n, "when was it?", ("1066", place)) for n in names)))
    return write_squad(path, *rows)


@pytest.mark.parametrize("split", ["training", "evaluation"])
def test_any_number_of_workers_and_either_mode_give_the_same_bytes(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, vocab = large(tmp_path / "data.json", 300), write_vocabulary(tmp_path, "duke")
    found = set()
    for mode, workers, unit in (
        ("merge", 1, 10**6),
        ("merge", 1, 7),
        ("spill", 1, 7),
        ("merge", 2, 50),
        ("spill", 2, 50),
    ):
        monkeypatch.setattr(parts, "UNIT_QUESTIONS", unit)
        made = squad_summary(
            source, vocab, tmp_path / f"{mode}{workers}{unit}", split=split, mode=mode, workers=workers
        )
        names = {path.name for path in made.features.parent.iterdir()}
        assert names == {made.features.name, "vocab.txt", ".lock"}
        found.add((made.features.read_bytes(), json.dumps(made.counts.numbers, sort_keys=True)))
    assert len(found) == 1
    assert made.counts.get("left out: duplicate ids") == 300 - 7 + 300
