"""Small TSVs of GAP, for tests: sentences with a pronoun and two names, and a vocabulary for them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NAMES = ("Ada", "Bea", "Cleo", "Dora", "Eva", "Fay")


def row(name: str, text: str, pronoun: str, a: str, b: str, label: int | None, **changes: Any) -> dict[str, str]:
    """A row whose mentions stand where the text first has them, the pronoun where it last does."""
    cells = {
        "ID": name, "Text": text, "Pronoun": pronoun, "Pronoun-offset": str(text.rindex(pronoun)), "A": a,
        "A-offset": str(text.index(a)), "A-coref": "" if label is None else str(label == 1).upper(), "B": b,
        "B-offset": str(text.index(b)), "B-coref": "" if label is None else str(label == 2).upper(),
        "URL": "http://example.org/page",
    }  # fmt: skip
    return cells | {key: str(value) for key, value in changes.items()}


def learnable(count: int, prefix: str = "development") -> list[dict[str, str]]:
    """Rows whose verb says which name is meant: praised neither, thanked A, asked B."""
    rows = []
    for number in range(count):
        label = number % 3
        a, b = NAMES[number % 6], NAMES[(number + 1 + number // 6 % 5) % 6]
        pronoun = ("she", "he")[number // 3 % 2]
        text = f"{a} {('praised', 'thanked', 'asked')[label]} {b} because {pronoun} was kind."
        rows.append(row(f"{prefix}-{number + 1}", text, pronoun, a, b, label))
    return rows


def write(path: Path, rows: Sequence[Mapping[str, str]], columns: Sequence[str] = COLUMNS) -> Path:
    lines = ["\t".join(columns), *("\t".join(cells[name] for name in columns) for cells in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return path


def vocabulary(path: Path) -> Path:
    words = [*(name.lower() for name in NAMES), "praised", "thanked", "asked", "because", "she", "he", "was", "kind"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789")
    pieces = dict.fromkeys([*SPECIAL, *words, *letters, *(f"##{letter}" for letter in letters), *".,;?'\"-()"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


def prepared(folder: Path, training: int = 48, validation: int = 12, **changes: Any) -> Path:
    """The features of both splits of learnable rows, in `folder`/features."""
    from bert.tasks.gap.features import GapConfig, prepare

    inputs = (
        write(folder / "gap-development.tsv", learnable(training)),
        write(folder / "gap-validation.tsv", learnable(validation, "validation")),
    )
    options = {"max_seq_length": 32, **changes}
    config = GapConfig(input=inputs, vocab=vocabulary(folder / "vocab.txt"), output=folder / "features", **options)
    prepare(config, lambda *_: None)
    return folder / "features"
