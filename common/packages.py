"""Packages that only some commands need, in extras of the distribution."""

import importlib.util

from common.errors import MissingToolError

_DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def need(what: str, extra: str, *modules: str) -> None:
    """Raise MissingToolError where `what` needs a module, of an extra of bertbench, that is not installed."""
    missing = [_DISTRIBUTIONS.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingToolError(
            "package-missing", f"{what} needs {' and '.join(missing)}: pip install 'bertbench[{extra}]'"
        )
