"""Python processes in which packages seem not to be installed."""

import os
from collections.abc import Iterable
from pathlib import Path

_SITE = """import sys
from importlib.machinery import PathFinder

ABSENT = {absent!r}


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else PathFinder.find_spec(name, path, target)


sys.meta_path[:] = [Finder if one is PathFinder else one for one in sys.meta_path]
"""


def without(names: Iterable[str], folder: Path, root: Path) -> dict[str, str]:
    """Return the environment of a Python that finds none of these top-level modules, nor do those that it starts.

    Args:
        names: the modules.
        folder: made; a sitecustomize.py is written into it.
        root: of the project, whose own modules are found.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITE.format(absent=sorted(names)))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(root)])}
