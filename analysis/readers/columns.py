"""Columns of texts as numbers into a list of them."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Integers = npt.NDArray[np.int64]

MISSING = -(2**63)
"""In columns of integers: the file does not say, or what it says is no whole number of 64 bits."""


class Codes(dict[Any, int]):
    """Numbers values as they come: codes[value]."""

    def __missing__(self, value: Hashable) -> int:
        """Give a new value the next number."""
        code = len(self)
        self[value] = code
        return code

    def of(self, values: Iterable[Any], count: int = -1) -> npt.NDArray[np.int32]:
        """Return the numbers of so many values."""
        return np.fromiter(map(self.__getitem__, values), dtype=np.int32, count=count)


def categories(codes: npt.NDArray[Any], labels: Sequence[str]) -> "pd.Categorical":
    """Return a column of texts; only labels that occur become categories, each once."""
    import pandas as pd

    distinct, place = Codes(), np.zeros(len(labels), dtype=np.int32)
    for code in np.flatnonzero(np.bincount(codes, minlength=len(labels))).tolist():
        place[code] = distinct[labels[code]]
    return pd.Categorical.from_codes(place[codes], categories=pd.Index(list(distinct), dtype="str"))
