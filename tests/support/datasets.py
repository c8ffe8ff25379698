"""Small data of each task in the published forms, most of it so that a model learns it by heart, and vocabularies."""

import csv
import itertools
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.training_runs import settings

from bert.data.vocabulary import SPECIAL_PIECES
from bert.tasks.classify.prepare import CsvConfig, CsvSummary
from bert.tasks.classify.prepare import prepare as prepare_csv
from bert.tasks.gap.features import GapConfig
from bert.tasks.gap.features import prepare as prepare_gap
from bert.tasks.glue.features import GlueConfig
from bert.tasks.glue.features import prepare as prepare_glue
from bert.tasks.squad.features import SquadFeatures, open_features
from bert.tasks.squad.prepare import SquadConfig, prepare

LETTERS = string.ascii_lowercase + string.digits


def silent(stage: str, done: int, total: int | None) -> None:
    """Take the progress."""


def write_vocabulary(folder: Path, *words: str) -> Path:
    """Write a vocab.txt of `words`, of letters and digits, which cut every ASCII word into pieces, and of signs."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*SPECIAL_PIECES, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,;:!?'\"-()=+@*"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in dict.fromkeys(pieces)), encoding="utf-8")
    return folder / "vocab.txt"


def paragraph(context: str, *questions: dict[str, Any]) -> dict[str, Any]:
    return {"context": context, "qas": list(questions)}


def question(name: str, text: str = "why?", *answers: tuple[str, int | None], **more: Any) -> dict[str, Any]:
    golds = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": name, "question": text, "answers": golds, **more}


def write_squad(path: Path, *paragraphs: dict[str, Any], version: str = "1.1") -> Path:
    content = {"version": version, "data": [{"title": "Title", "paragraphs": list(paragraphs)}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def squad_summary(source: Path, vocab: Path, output: Path, **options: Any) -> Any:
    """Make features with one worker, where `options` say no other number."""
    config = SquadConfig(input=(source,), vocab=vocab, output=output, **{"workers": 1, **options})
    (summary,) = prepare(config, silent)
    return summary


def squad_features(source: Path, vocab: Path, output: Path, **options: Any) -> SquadFeatures:
    summary = squad_summary(source, vocab, output, **options)
    return open_features(summary.features, summary.settings.split)


SQUAD_TOKENS = 48
# Three contexts of two or three sentences, the questions with their answers.
SQUAD = (
    ("Rollo came from Norway. His son William ruled Rouen.",
     ("who came from norway", "Rollo"), ("who ruled rouen", "William")),
    ("The river runs north; the old bridge is red, the new bridge is blue.",
     ("what is red", "old bridge"), ("where does the river run", "north"), ("what is blue", "new bridge")),
    ("Ada wrote notes in 1843, Alan wrote papers in 1936.",
     ("what did ada write", "notes"), ("when did alan write", "1936")),
)  # fmt: skip


def learnable_squad(path: Path, version: str = "1.1", times: int = 1) -> Path:
    """Write the questions as SQuAD's JSON; for 2.0 with one question more per context, which has no answer."""
    paragraphs = []
    more = {"is_impossible": False} if version == "2.0" else {}
    for copy, (number, (text, *asked)) in itertools.product(range(times), enumerate(SQUAD)):
        qas = [
            question(f"{copy}-{number}-{q}", words, (answer, text.index(answer)), **more)
            for q, (words, answer) in enumerate(asked)
        ]
        qas += [question(f"{copy}-{number}-x", "why", is_impossible=True)] if more else []
        paragraphs.append(paragraph(text, *qas))
    return write_squad(path, *paragraphs, version=f"v{version}" if more else version)


def squad_splits(folder: Path, version: str = "1.1", times: int = 1, **changes: Any) -> dict[str, Path]:
    """Make the features of both splits of these questions; return the file of each."""
    texts = " ".join(part for text, *asked in SQUAD for part in (text, *(words for words, _ in asked)))
    vocab = write_vocabulary(folder, *sorted({word.strip(".,;").lower() for word in texts.split()}))
    inputs = {
        "training": learnable_squad(folder / "train.json", version, times),
        "evaluation": learnable_squad(folder / "dev.json", version),
    }
    options = {"max_seq_length": SQUAD_TOKENS, "doc_stride": 16, "max_query_length": 12, "workers": 1, **changes}
    config = SquadConfig(input=tuple(inputs.values()), vocab=vocab, output=folder / "features", **options)
    return dict(zip(inputs, (summary.features for summary in prepare(config, silent)), strict=True))


def squad_settings(files: dict[str, Path], **changes: Any) -> Any:
    """Return settings of a tiny model that learns these questions."""
    known = open_features(files["training"], "training").settings
    values = {
        "task": "squad", "seq_len": known.max_seq_length, "vocab_size": known.vocab_size, "optimizer": "adamw",
        "schedule": "linear", "learning_rate": 1e-3, "warmup": 0.1, "eval_data": str(files["evaluation"]), **changes,
    }  # fmt: skip
    return settings(str(files["training"]), **values)


GAP_COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL")
NAMES = ("Ada", "Bea", "Cleo", "Dora", "Eva", "Fay")


def gap_row(name: str, text: str, pronoun: str, a: str, b: str, label: int | None, **changes: Any) -> dict[str, str]:
    """A row whose mentions stand where the text first has them, the pronoun where it last does."""
    cells = {
        "ID": name, "Text": text, "Pronoun": pronoun, "Pronoun-offset": str(text.rindex(pronoun)), "A": a,
        "A-offset": str(text.index(a)), "A-coref": "" if label is None else str(label == 1).upper(), "B": b,
        "B-offset": str(text.index(b)), "B-coref": "" if label is None else str(label == 2).upper(),
        "URL": "http://example.org/page",
    }  # fmt: skip
    return cells | {key: str(value) for key, value in changes.items()}


def learnable_gap(count: int, prefix: str = "development") -> list[dict[str, str]]:
    """Rows whose verb says which name is meant: praised neither, thanked A, asked B."""
    rows = []
    for number in range(count):
        label = number % 3
        a, b = NAMES[number % 6], NAMES[(number + 1 + number // 6 % 5) % 6]
        pronoun = ("she", "he")[number // 3 % 2]
        text = f"{a} {('praised', 'thanked', 'asked')[label]} {b} because {pronoun} was kind."
        rows.append(gap_row(f"{prefix}-{number + 1}", text, pronoun, a, b, label))
    return rows


def write_gap(path: Path, rows: Sequence[Mapping[str, str]], columns: Sequence[str] = GAP_COLUMNS) -> Path:
    lines = ["\t".join(columns), *("\t".join(cells[name] for name in columns) for cells in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return path


def gap_vocabulary(folder: Path) -> Path:
    words = ["praised", "thanked", "asked", "because", "she", "he", "was", "kind"]
    return write_vocabulary(folder, *(name.lower() for name in NAMES), *words)


def gap_features(folder: Path, training: int = 48, validation: int = 12, **changes: Any) -> Path:
    """The features of both splits of learnable rows, in `folder`/features."""
    inputs = (
        write_gap(folder / "gap-development.tsv", learnable_gap(training)),
        write_gap(folder / "gap-validation.tsv", learnable_gap(validation, "validation")),
    )
    options = {"input": inputs, "vocab": gap_vocabulary(folder), "max_seq_length": 32, **changes}
    prepare_gap(GapConfig(output=folder / "features", **options), silent)
    return folder / "features"


# Task -> (folder, header of train and dev, of test, one row with LABEL where the label stands, labels).
GLUE = {
    "cola": ("CoLA", "", "index\tsentence", "gj04\tLABEL\t*\tA sentence {n}.", "{n}\tA test {n}.", "0 1"),
    "sst2": ("SST-2", "sentence\tlabel", "index\tsentence", "a film {n} \tLABEL", "{n}\ta film {n} ", "0 1"),
    "mrpc": (
        "MRPC", "﻿Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
        'LABEL\t7{n}\t8{n}\t"We {n}," he said .\tHe said {n}', "{n}\t1\t2\tOne {n}\tTwo {n}", "0 1",
    ),
    "qqp": (
        "QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "id\tquestion1\tquestion2",
        "{n}\t1\t2\tHow {n}?\tWhy {n}?\tLABEL", "{n}\tHow {n}?\tWhy {n}?", "0 1",
    ),
    "stsb": (
        "STS-B", "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "{n}\tnews\tf\t2012\t1\tnone\tnone\tOne {n}.\tTwo {n}.\tLABEL",
        "{n}\tnews\tf\t2012\t1\tnone\tnone\tOne {n}.\tTwo {n}.", "0.000 5.000 2.500",
    ),
    "mnli": (
        "MNLI", "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label",
        "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2",
        "{n}\t1\t2\tfiction\tOne {n}.\tTwo {n}.\tneutral\tLABEL", "{n}\t1\t2\tfiction\tOne {n}.\tTwo {n}.",
        "entailment neutral contradiction",
    ),
    "qnli": (
        "QNLI", "index\tquestion\tsentence\tlabel", "index\tquestion\tsentence", "{n}\tWho {n}?\tNobody {n}.\tLABEL",
        "{n}\tWho {n}?\tNobody {n}.", "entailment not_entailment",
    ),
    "rte": (
        "RTE", "index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2", "{n}\tOne {n}.\tTwo {n}.\tLABEL",
        "{n}\tOne {n}.\tTwo {n}.", "entailment not_entailment",
    ),
    "wnli": (
        "WNLI", "index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2", "{n}\tOne {n}.\tTwo {n}.\tLABEL",
        "{n}\tOne {n}.\tTwo {n}.", "0 1",
    ),
}  # fmt: skip


def make_glue(folder: Path, tasks: Sequence[str] = tuple(GLUE), rows: int = 12) -> Path:
    """Write the tables of tasks, each with `rows` rows, and return the folder."""
    for task in tasks:
        name, header, test_header, row, test_row, labels = GLUE[task]
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        classes = labels.split()
        for split in glue_splits(task):
            is_test = split.startswith("test")
            lines = [test_header] if is_test else [header] if header else []
            for n in range(rows):
                text = (test_row if is_test else row).format(n=n).replace("LABEL", classes[n % len(classes)])
                lines.append(text)
            (place / f"{split}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def glue_splits(task: str) -> tuple[str, ...]:
    if task != "mnli":
        return "train", "dev", "test"
    return "train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"


def glue_vocabulary(folder: Path) -> Path:
    """Write a vocabulary that knows the words of these tables."""
    words = "one two we he said how why who nobody film test sentence the"
    return write_vocabulary(folder, *words.split())


def glue_features(glue: Path | None, output: Path, **options: object) -> dict[tuple[str, str], Path]:
    """Make features with that vocabulary, and return the files by task and split."""
    config = GlueConfig(input=glue, output=output, vocab=glue_vocabulary(output.parent), **options)  # type: ignore[arg-type]
    return {(one.settings.task, one.settings.split): one.features for one in prepare_glue(config, silent)}  # type: ignore[union-attr, misc]


THINGS = ("red", "green", "blue", "cat", "dog", "bird", "one", "two", "three")


def write_csv(path: Path, rows: Sequence[tuple[str, str]], header: tuple[str, str] = ("text", "label")) -> Path:
    """A CSV of texts and labels."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def colours_and_animals(count: int) -> list[tuple[str, str]]:
    """Texts that a model learns to tell apart in a few steps: what they name is their label."""
    kinds = {"colour": THINGS[:3], "animal": THINGS[3:6], "number": THINGS[6:]}
    labels = list(kinds)
    return [
        (f"{kinds[label][number % 3]} {kinds[label][number // 3 % 3]} {LETTERS[number % 36]}{number}", label)
        for number in range(count)
        for label in [labels[number % len(labels)]]
    ]


def csv_database(path: Path, **options: object) -> CsvSummary:
    """Prepare a CSV with the vocabulary beside it, made where it is missing."""
    vocabulary = path.parent / "vocab.txt"
    if not vocabulary.exists():
        write_vocabulary(path.parent, *THINGS)
    return prepare_csv(CsvConfig(**{"input": path, "vocab": vocabulary, **options}), silent)  # type: ignore[arg-type]
