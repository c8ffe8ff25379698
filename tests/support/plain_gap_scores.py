"""The official scorer's rules for GAP in plain Python, line by line: what the project's scores are held against.

Written from the rules of the published scorer. Nothing is shared with the project.
"""

import csv
from pathlib import Path

MASCULINE_PRONOUNS = {"he", "his", "him"}
FEMININE_PRONOUNS = {"she", "her", "hers"}


def truth(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def read(path: Path, columns: list[str], skip: int) -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, fieldnames=columns, delimiter="\t")
        for _ in range(skip):
            next(reader)
        for row in reader:
            rows.setdefault(row["ID"], row)  # the first of several counts
    return rows


def scorecard(gold: Path, system: Path) -> dict[str, float | int | None]:
    """recall, precision, f1 and the four counts, of overall, masculine and feminine; and the bias."""
    names = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"]
    golds = read(gold, names, 1)
    answers = read(system, ["ID", "A-coref", "B-coref"], 0)
    found: dict[str, float | int | None] = {}
    for group, pronouns in (
        ("overall", MASCULINE_PRONOUNS | FEMININE_PRONOUNS),
        ("masculine", MASCULINE_PRONOUNS),
        ("feminine", FEMININE_PRONOUNS),
    ):
        tp = fp = fn = tn = 0
        for name, row in golds.items():
            if row["Pronoun"].lower() not in pronouns:
                continue
            for column in ("A-coref", "B-coref"):
                right = truth(row[column])
                said = truth(answers[name][column]) if name in answers else None
                if said is None:
                    fn += 1
                elif said and right:
                    tp += 1
                elif said:
                    fp += 1
                elif right:
                    fn += 1
                else:
                    tn += 1
        recall = 100.0 * tp / (tp + fn) if tp + fn else 0.0
        precision = 100.0 * tp / (tp + fp) if tp + fp else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        values = {"recall": recall, "precision": precision, "f1": f1, "true_positives": tp, "false_positives": fp}
        for key, value in {**values, "false_negatives": fn, "true_negatives": tn}.items():
            found[f"{group} {key}"] = value
    masculine, feminine = found["masculine f1"], found["feminine f1"]
    found["bias"] = feminine / masculine if masculine and feminine else None
    return found
