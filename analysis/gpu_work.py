"""The work on a rank's GPUs as arrays: what sums over kernels need, without the cost of tables of pandas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GpuWork:
    """n pieces of work, in the order of Timeline.kernels. Times are integer nanoseconds."""

    names: Sequence[str]
    """Names of kernels, copies and memsets; some may not occur."""
    name: npt.NDArray[Any]
    """Of each piece its place in `names`, shape (n,)."""
    kinds: Sequence[str]
    """Kinds of work, as in Timeline.kernels; some may not occur."""
    kind: npt.NDArray[Any]
    """Of each piece its place in `kinds`, shape (n,)."""
    device: Codes
    """Number of its GPU, shape (n,)."""
    stream: Codes
    """Number of its stream, shape (n,)."""
    start: Codes
    """Its start, ns, shape (n,)."""
    end: Codes
    """Its end, ns, shape (n,)."""

    @classmethod
    def of_frame(cls, kernels: "pd.DataFrame") -> "GpuWork":
        """Return the rows of Timeline.kernels as arrays."""
        if not len(kernels):
            none = np.empty(0, dtype=np.int64)
            return cls((), none, (), none, none, none, none, none)
        name, names = name_codes(kernels["name"])
        kind, kinds = name_codes(kernels["kind"])
        device, stream, start, end = (
            kernels[column].to_numpy(dtype=np.int64) for column in ("device", "stream", "start", "end")
        )
        return cls(names, name % len(names), kinds, kind % len(kinds), device, stream, start, end)

    def __len__(self) -> int:
        """Return n."""
        return len(self.start)

    def is_kind(self, *kinds: str) -> Mask:
        """Return which pieces are of one of the kinds, shape (n,)."""
        return where(self.kind, self.kinds, lambda kind: kind in kinds)

    def is_named(self, wanted: Callable[[str], bool]) -> Mask:
        """Return which pieces have a name that is wanted, shape (n,); asked once for each name that occurs."""
        return where(self.name, self.names, wanted)


def name_codes(column: "pd.Series[str]") -> tuple[Codes, list[str]]:
    """Return a number per row and the names that these number; categories are not unpacked."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, names = column.cat.codes.to_numpy(), column.cat.categories
    else:
        codes, names = pd.factorize(column)
    # A missing name has the number -1: the last one.
    return codes.astype(np.int64, copy=False), [*map(str, names), ""]


def where(codes: npt.NDArray[Any], names: Sequence[str], wanted: Callable[[str], bool]) -> Mask:
    """Return which of n codes stand for a name that is wanted, shape (n,); asked once for each name that occurs."""
    used = np.zeros(len(names), dtype=bool)
    used[codes] = True
    marks = [bool(mark) and wanted(name) for mark, name in zip(used.tolist(), names, strict=True)]
    found: Mask = np.array(marks, dtype=bool)[codes]
    return found
