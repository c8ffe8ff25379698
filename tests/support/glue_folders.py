"""GLUE's nine tasks as small folders, made up in the published forms: headers, columns, encodings."""

from collections.abc import Sequence
from pathlib import Path

from bert.tasks.glue.features import GlueConfig, prepare

# Task -> (folder, header of train and dev, of test, one row with LABEL where the label stands, labels).
FORMS = {
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


def make_glue(folder: Path, tasks: Sequence[str] = tuple(FORMS), rows: int = 12) -> Path:
    """Write the tables of tasks, each with `rows` rows, and return the folder."""
    for task in tasks:
        name, header, test_header, row, test_row, labels = FORMS[task]
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        classes = labels.split()
        for split in splits_of(task):
            is_test = split.startswith("test")
            lines = [test_header] if is_test else [header] if header else []
            for n in range(rows):
                text = (test_row if is_test else row).format(n=n).replace("LABEL", classes[n % len(classes)])
                lines.append(text)
            (place / f"{split}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def splits_of(task: str) -> tuple[str, ...]:
    if task != "mnli":
        return "train", "dev", "test"
    return "train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"


_WORDS = "a one two we he said how why who nobody film test sentence the . , ? * 0 1 2 3 4 5 6 7 8 9 ##0 ##1"
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", '"', "'", *_WORDS.split())


def write_vocabulary(path: Path) -> Path:
    """A vocabulary that knows the words of the tables above."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{piece}\n" for piece in VOCABULARY), encoding="utf-8")
    return path


def prepared(glue: Path | None, output: Path, **options: object) -> dict[tuple[str, str], Path]:
    """Make features with that vocabulary, and return the files by task and split."""
    config = GlueConfig(input=glue, output=output, vocab=write_vocabulary(output.parent / "vocab.txt"), **options)  # type: ignore[arg-type]
    return {(one.settings.task, one.settings.split): one.features for one in prepare(config, lambda *_: None)}  # type: ignore[union-attr, misc]
