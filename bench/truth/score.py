"""The score of a tool's answers: each fact of a corpus right, wrong by how much, or not answered."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.truth.corpus import MANIFEST
from common.errors import InputError
from common.json_file import read_json
from records.files import read_record

RIGHT, WRONG, UNANSWERED = "right", "wrong", "unanswered"
_MOST_NAMED, _MOST = 5, 1e300
_FORM = '{"tool": NAME, "answers": {ID: NUMBER, ...}}'


def score(corpus: Path, answers: Path) -> dict[str, Any]:
    """Return {"tool", "facts": [...], "kinds": [...], "total": {...}}: a row per fact, counts per kind of fact, all.

    A fact has id, kind, unit, truth, answer, error (answer - truth), relative_error, allowed and verdict.

    Args:
        corpus: a folder that `write_corpus` wrote.
        answers: JSON, {"tool": name, "answers": {id of a fact: number, or null for no answer}}.

    Raises:
        InputError: one of them cannot be read, an answer is no number, or is to no fact of this corpus.
    """
    path = corpus / MANIFEST
    if not path.is_file():
        raise InputError(
            "path-missing", f"{path} does not exist: give a folder that `bertbench truth-corpus` has written"
        )
    manifest = read_record(path)
    try:
        rows: list[dict[str, Any]] = [
            {"id": str(fact["id"]), "kind": str(about["kind"]), "unit": str(about["unit"]),
             "relative": float(about["relative"]), "absolute": float(about["absolute"]), "truth": float(fact["value"])}
            for fact in manifest["facts"] for about in [manifest["quantities"][fact["quantity"]]]
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("record-foreign", f"{path} is no manifest of a truth corpus: {error!r}") from error
    tool, given = _read_answers(answers, {row["id"] for row in rows})
    facts = [_judged(row, given.get(row["id"])) for row in rows]
    kinds = {}
    for name in dict.fromkeys(row["kind"] for row in facts):
        kinds[name] = _counts(Counter(row["verdict"] for row in facts if row["kind"] == name))
    total = _counts(Counter(row["verdict"] for row in facts))
    return {"tool": tool, "total": total, "kinds": [{"kind": name, **found} for name, found in kinds.items()],
            "facts": facts}  # fmt: skip


def _counts(found: Counter[str]) -> dict[str, int]:
    return {"facts": found.total(), RIGHT: found[RIGHT], WRONG: found[WRONG], UNANSWERED: found[UNANSWERED]}


def _judged(row: Mapping[str, Any], answer: float | None) -> dict[str, Any]:
    truth, error = row["truth"], None if answer is None else answer - row["truth"]
    allowed = max(row["relative"] * abs(truth), row["absolute"])
    verdict = UNANSWERED if error is None else RIGHT if abs(error) <= allowed else WRONG
    relative = None if error is None or not truth else error / truth
    found = {name: value for name, value in row.items() if name not in ("relative", "absolute")}
    return {**found, "answer": answer, "error": error, "relative_error": relative, "allowed": allowed,
            "verdict": verdict}  # fmt: skip


def _read_answers(path: Path, known: set[str]) -> tuple[str, dict[str, float | None]]:
    document = read_json(path, "file of answers", f"give {_FORM}", strict=True)
    given = document.get("answers")
    if not isinstance(given, dict):
        raise InputError("file-format", f'{path} has no object "answers": give {_FORM}')
    strange = [name for name in given if name not in known]
    if strange:
        named = ", ".join(repr(name) for name in strange[:_MOST_NAMED])
        raise InputError(
            "answers-invalid",
            f"{path} answers {len(strange):,} facts that the corpus does not have: {named}; take the ids of {MANIFEST}",
        )
    wrong = [name for name, value in given.items() if value is not None and not _is_number(value)]
    if wrong:
        named = ", ".join(f"{name}: {given[name]!r:.40}" for name in wrong[:_MOST_NAMED])
        raise InputError("answers-invalid", f"{path} has answers that are neither numbers nor null: {named}")
    return str(document.get("tool") or path.stem), given


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST
