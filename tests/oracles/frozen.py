"""Results that must stay equal, as JSON files in data/.

`ORACLES=write python -m pytest -n 0 tests/oracles` writes them again. Each accepted difference is a line of CHANGES.md.
"""

import csv
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).parent / "data"
RATIO = 1e-12
"""Relative tolerance of floats. It is below a nanosecond in a quarter of an hour, so sums of times are equal too."""
MOST_DIFFERENCES = 20


def check(name: str, key: str, found: Any, rtol: float = RATIO) -> None:
    """Compare plain JSON values with those stored under `key` in data/NAME.json, or store them.

    Texts, whole numbers and the lengths of lists must be equal; fields that are not stored are ignored.
    """
    path = DATA / f"{name}.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = json.loads(json.dumps(found, allow_nan=False))
    if os.environ.get("ORACLES") == "write":
        stored[key] = found
        path.write_text(_laid_out(dict(sorted(stored.items()))) + "\n", encoding="utf-8")
        return
    assert key in stored, f"{path.name} has nothing of {key}: write it with ORACLES=write"
    differences = list(_differences(key, stored[key], found, rtol))
    more = f"\nand {len(differences) - MOST_DIFFERENCES} more"
    text = "\n".join(differences[:MOST_DIFFERENCES]) + more * (len(differences) > MOST_DIFFERENCES)
    assert not differences, f"{path.name} differs (stored, now):\n{text}"


def _differences(place: str, stored: Any, found: Any, rtol: float) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(found, dict):
        for name, value in stored.items():
            yield from _differences(f"{place} / {name}", value, found.get(name, "absent"), rtol)
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for number, (one, other) in enumerate(zip(stored, found, strict=True)):
            yield from _differences(f"{place} / {number}", one, other, rtol)
    elif isinstance(stored, float) and isinstance(found, (int, float)):
        if not math.isclose(stored, found, rel_tol=rtol, abs_tol=0.0):
            yield f"{place}: {stored!r}, {found!r}"
    elif stored != found:
        yield f"{place}: {str(stored)[:200]!r}, {str(found)[:200]!r}"


def _laid_out(value: Any, indent: str = "") -> str:
    """Return JSON with a line for each field and for each row of a table."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        fields = (f"{deeper}{json.dumps(name)}: {_laid_out(one, deeper)}" for name, one in value.items())
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return "[\n" + ",\n".join(deeper + json.dumps(row) for row in value) + f"\n{indent}]"
    return json.dumps(value)


def digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the sha256 of arrays in the order of their names, whatever width their whole numbers are stored in."""
    content = hashlib.sha256()
    for _, array in sorted(arrays.items()):
        whole = array.dtype.kind in "iub"
        content.update(repr(array.shape).encode())
        content.update(np.ascontiguousarray(array, dtype="<i8" if whole else array.dtype).tobytes())
    return content.hexdigest()


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
