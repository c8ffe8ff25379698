"""Which call launched which kernel: correlation ids tie a kernel to a call such as cudaLaunchKernel."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.timeline import Timeline, kept

if TYPE_CHECKING:
    import pandas as pd

Rows = npt.NDArray[np.int64]
"""Places in a table."""


@kept
def launching_calls(timeline: Timeline) -> Rows | None:
    """Return for each row of `kernels` the row of `api` that launched it, -1 unknown; None where no row is known.

    Several rows of one call (a CUDA graph's) have the same. Of calls that share an id the first counts.
    """
    kernels, api = timeline.kernels, timeline.api
    if not {"correlation_id"} <= {*kernels.columns} & {*api.columns} or not len(kernels) or not len(api):
        return None
    calls = calls_with(api, kernels["correlation_id"].to_numpy())
    return calls if (calls >= 0).any() else None


def calls_with(api: "pd.DataFrame", correlations: npt.NDArray[Any]) -> Rows:
    """Return for each of n correlation ids the row of `api` that has it, the first of several; -1 where none has.

    Ids begin with 1; 0 is no call's.
    """
    ids, first = np.unique(api["correlation_id"].to_numpy(), return_index=True)
    if not len(ids):
        return np.full(len(correlations), -1, dtype=np.int64)
    place = np.searchsorted(ids, correlations).clip(max=len(ids) - 1)
    return np.where((ids[place] == correlations) & (correlations > 0), first[place], -1)
