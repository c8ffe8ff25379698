"""Where GLUE's tables lie in a folder, by their names or ones that differ in case, - and _ alone. Imports no torch."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from bert.tasks.glue.tasks import TASKS, GlueSpec

ENDINGS = (".tsv", ".tsv.gz")
_OTHER_WORDS = {"validation": "dev", "valid": "dev", "val": "dev", "development": "dev", "training": "train"}
"""What others call a split."""
_CLOSE = 0.6
_MOST_NAMED = 5


def find_table(folder: Path, spec: GlueSpec, split: str) -> Path | None:
    """Return the table of a split in a task's folder or in the folder above it; None where there is none."""
    named = spec.elsewhere.get(split, (split,))
    for place in _places(folder, spec, split):
        tables = _tables(place)
        for name in named:
            exact = [place / f"{name}{ending}" for ending in ENDINGS]
            close = [path for path in tables if _plain(_stem(path)) == _plain(name)]
            found = next((path for path in [*exact, *close] if path in tables), None)
            if found is not None:
                return found
    return None


def missing_tables(folder: Path, spec: GlueSpec) -> list[str]:
    """Return what is to be said of a task's tables that are not there, and of others in their place."""
    found = {split: find_table(folder, spec, split) for split in spec.splits}
    missing = [split for split in spec.splits if found[split] is None and split not in spec.elsewhere]
    if not missing:
        return []
    place = next(iter(_places(folder, spec, spec.splits[0])), folder / spec.folder)
    looked = ", ".join(f"{place / split}.tsv" for split in missing)
    unused = [path for path in _tables(place) if path not in found.values()]
    told = f"{spec.name}: no table for {', '.join(missing)}: {looked} (or .tsv.gz) "
    told += f"{'was' if len(missing) == 1 else 'were'} looked for"
    if unused:
        more = ", ..." if len(unused) > _MOST_NAMED else ""
        told += f"; not used: {', '.join(_meant(path, missing) for path in unused[:_MOST_NAMED])}{more}"
    return [told]


def unused_folders(folder: Path, specs: Sequence[GlueSpec]) -> list[str]:
    """Return, in words, the folders with tables that belong to none of the tasks `specs` and to no other one."""
    if _task_of(folder.resolve()) is not None:
        return []
    used = {place for spec in specs for split in spec.splits for place in _places(folder, spec, split)}
    found = []
    for place in _folders(folder):
        if place not in used and _task_of(place) is None and _tables(place):
            guess = _guess(place.name)
            found.append(f"{place} (rename it {guess}, if it is that)" if guess else str(place))
    return found


def what_is_there(folder: Path) -> str:
    """Return, in words, what lies in a folder without tables of the tasks that are wanted; empty for nothing."""
    tables = [path.name for path in _tables(folder)]
    if tables and _task_of(folder.resolve()) is None:
        guess = _guess(folder.resolve().name)
        hint = f" ({guess}?)" if guess else ""
        return f"it holds {', '.join(tables[:_MOST_NAMED])}, but its own name is that of no task{hint}: rename it"
    others = unused_folders(folder, ())
    named = others or [place.name for place in _folders(folder)]
    return f"there is {', '.join(named[:_MOST_NAMED])}{', ...' * (len(named) > _MOST_NAMED)}" if named else ""


def _places(folder: Path, spec: GlueSpec, split: str) -> list[Path]:
    """The folders in which a table may lie, those of the published names first."""
    names = [*spec.elsewhere.get(split, ()), spec.folder, spec.name]
    plain = {_plain(name) for name in names}
    inner = [place for place in _folders(folder) if _plain(place.name) in plain]
    inner.sort(key=lambda place: names.index(place.name) if place.name in names else len(names))
    return [*inner, *([folder] if _plain(folder.resolve().name) in plain else [])]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _tables(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.lower().endswith(ENDINGS) and path.is_file())


def _stem(path: Path) -> str:
    return path.name.lower().removesuffix(".gz").removesuffix(".tsv")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _task_of(place: Path) -> GlueSpec | None:
    return TASKS.get(_plain(place.name))


def _guess(name: str) -> str | None:
    """Return the name of the task's folder that is most like another name."""
    plain = _plain(name)
    inside = [task for task in TASKS if task in plain]
    close = inside or difflib.get_close_matches(plain, TASKS, 1, _CLOSE)
    return TASKS[close[0]].folder if close else None


def _meant(path: Path, missing: Sequence[str]) -> str:
    """A table that was not used, with the name that it may have to have."""
    words = _stem(path).replace("-", "_").split("_")
    name = "_".join(_OTHER_WORDS.get(word, word) for word in words)
    return f"{path.name} (rename it {name}.tsv, if it is that)" if name in missing else path.name
