"""A timeline whose tables are made when they are first asked for: who sums over GPU work needs none of them."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from analysis.gpu_work import GpuWork
from analysis.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

_FIELDS = tuple(field.name for field in fields(Timeline))
_TABLES = ("steps", "operators", "kernels", "ranges", "api", "collectives")


class TableSource(Protocol):
    """Makes tables. It is pickled with the timeline."""

    def make(self, table: str) -> "Mapping[str, pd.DataFrame]":
        """Return a table of Timeline by name, and those that are made with it; the arrays behind are let go."""

    def work(self) -> GpuWork:
        """Return the GPU work; asked only before `kernels` was made."""


class LazyTimeline(Timeline):
    """A Timeline like any other; `dataclasses.replace` makes its tables."""

    __slots__ = ("_tables",)
    _tables: TableSource

    @classmethod
    def of(cls, tables: TableSource, **known: Any) -> "LazyTimeline":
        """Return a timeline of these tables; `known`: all its other fields."""
        made = cls.__new__(cls)
        for name, value in known.items():
            object.__setattr__(made, name, value)
        object.__setattr__(made, "_tables", tables)
        return made

    @property
    def work(self) -> GpuWork:
        """Timeline.work."""
        if "kernels" in self._known():
            return GpuWork.of_frame(self.kernels)
        return self._tables.work()

    def __getattr__(self, name: str) -> Any:
        """Make a table: called for what is not there yet."""
        if name not in _TABLES:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        for made, table in self._tables.make(name).items():
            object.__setattr__(self, made, table)
        return object.__getattribute__(self, name)

    def __getstate__(self) -> Any:
        """Pickle what is there; tables that nobody asked for are made on the other side."""
        return self._known()

    def __setstate__(self, state: Any) -> None:
        """Take what was pickled."""
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def _known(self) -> dict[str, Any]:
        known = {}
        for name in (*_FIELDS, "_tables"):
            try:
                known[name] = object.__getattribute__(self, name)
            except AttributeError:
                continue
        return known
