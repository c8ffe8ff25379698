"""GLUE through the `datasets` library: the hub, its cache, or a local folder of the same form. Imports no torch."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert.data.finished import Counts
from bert.tasks.glue.tables import GlueRow, GlueTable, check_table, make_row
from bert.tasks.glue.tasks import TRAIN, GlueSpec
from common.errors import InputError, MissingToolError

_OLDEST = 4
"""Release of `datasets` since which a dataset is data alone: before it came with programs, which were run."""
_BATCH = 10_000


def hub_split(split: str) -> str:
    """Return what `datasets` calls a split: validation instead of dev."""
    return split.replace("dev", "validation", 1)


def read_hub(name: str, spec: GlueSpec) -> dict[str, GlueTable]:
    """Return the tables of a task by split.

    Args:
        name: what datasets.load_dataset takes: a name on the hub, or a local folder.
        spec: the task, which is the name of the configuration.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingToolError(
            "package-missing",
            "--dataset needs the package `datasets`, which is not installed: pip install datasets, or give --input "
            "FOLDER with GLUE's tables",
        ) from error
    if int(datasets.__version__.split(".")[0]) < _OLDEST:
        raise MissingToolError(
            "tool-version",
            f"datasets {datasets.__version__} would run code that comes with a dataset: pip install "
            f"'datasets>={_OLDEST}', or give --input FOLDER with GLUE's tables",
        )
    datasets.disable_progress_bars()
    try:
        found = datasets.load_dataset(name, spec.name)  # nosec B615 # whose name and version the user chooses
    except Exception as error:  # the library raises what the network, the hub or pyarrow raise
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
        raise InputError(
            "download-failed",
            f"datasets.load_dataset({name!r}, {spec.name!r}) failed ({reason[:300]}): give a dataset name on the hub, "
            "a local folder of such a dataset, or --input FOLDER with GLUE's tables",
        ) from error
    tables = {
        split: _table(name, spec, split, found[hub_split(split)]) for split in spec.splits if hub_split(split) in found
    }
    if not tables:
        splits = ", ".join(map(str, found)) or "none"
        raise InputError("data-missing", f"the dataset {name} has no GLUE split of {spec.name}, only {splits}")
    return tables


def _table(name: str, spec: GlueSpec, split: str, data: Any) -> GlueTable:
    needed = [*spec.hub_texts, *([] if split in spec.tests else ["label"])]
    missing = [column for column in needed if column not in data.column_names]
    if missing:
        raise InputError(
            "columns-missing",
            f"the dataset {name}, split {hub_split(split)}, lacks the column(s) {', '.join(missing)} of {spec.name}: "
            f"it has {', '.join(data.column_names)}",
        )
    counts = Counts({"rows": 0})
    rows = tuple(_rows(spec, split, data, _names(name, spec, data), counts))
    table = GlueTable(Path(f"{name}/{spec.name}/{hub_split(split)}"), rows, counts)
    check_table(table, len(data))
    return table


def _names(name: str, spec: GlueSpec, data: Any) -> Sequence[str]:
    known: Sequence[str] = getattr(data.features.get("label"), "names", None) or ()
    if spec.is_regression or not known or set(spec.classes) == {"0", "1"}:
        if known and len(known) != spec.labels:
            raise InputError(
                "labels-invalid", f"the dataset {name} has {len(known)} classes, but {spec.name} has {spec.labels}"
            )
        return spec.classes
    if set(known) != set(spec.classes):
        raise InputError(
            "labels-invalid",
            f"the dataset {name} has the classes {', '.join(known)}, but {spec.name} has {', '.join(spec.classes)}",
        )
    return known


def _rows(spec: GlueSpec, split: str, data: Any, names: Sequence[str], counts: Counts) -> Iterator[GlueRow]:
    has_labels = split not in spec.tests
    has_index = "idx" in data.column_names and split != TRAIN
    seen: set[int] = set()
    number = 0
    for batch in data.iter(_BATCH):
        for place in range(len(batch[spec.hub_texts[0]])):
            index = int(batch["idx"][place]) if has_index else number
            texts = [str(batch[column][place]) for column in spec.hub_texts]
            label = _label(spec, batch, place, names) if has_labels else None
            row = make_row(spec, index, texts, label, seen, counts, f"row {number}", has_labels)
            number += 1
            if row is not None:
                yield row


def _label(spec: GlueSpec, batch: Mapping[str, Sequence[Any]], place: int, names: Sequence[str]) -> str:
    """Return a label as the tables write it; nothing for one that is missing, which the library writes as -1."""
    value = batch["label"][place]
    if value is None or value == -1:
        return ""
    if spec.is_regression:
        return repr(float(value))
    return names[int(value)] if 0 <= int(value) < len(names) else str(value)
