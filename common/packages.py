"""Packages that only some commands need, in extras of the distribution."""

import importlib.util

from common.errors import MissingToolError

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""Packages that are installed by another name than they are imported by."""


def need(what: str, extra: str, *modules: str) -> None:
    """Raise MissingToolError where a module is not installed that an extra of bertbench brings.

    Args:
        what: what needs it, in words.
        extra: of pyproject.toml.
        modules: names as they are imported.
    """
    missing = [_DISTRIBUTIONS.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingToolError(
            "package-missing",
            f"{what}: this needs {' and '.join(missing)}, which is not installed: pip install 'bertbench[{extra}]', or "
            "`make setup` in a clone",
        )
