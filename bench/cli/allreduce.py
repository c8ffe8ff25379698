"""`bertbench allreduce PATH...`: communication, what of it is exposed, who is waited for."""

from dataclasses import dataclass
from pathlib import Path

from bench.cli.options import Tables
from bench.cli.result import ALL_TABLES, Result, of_view
from common.flags import Positional


@dataclass(frozen=True, kw_only=True, slots=True)
class AllreduceOptions(Tables):
    """Break down the cost of communication: per rank and collective, overlapped and exposed time, transfer and waiting,
    and stragglers. PATH is a trace, a folder of ranks, a tar, an nsys export, a profiled trial or a run directory; of
    an nsys summary of kernels (CSV), the share of communication in the kernels' time.

    Examples:
        bertbench allreduce runs/profile
        bertbench allreduce rank0.json rank1.json  # separates transfer from waiting
    """

    paths: Positional[tuple[Path, ...]]
    """Files or folders to read. Several are read as one, such as the traces of all ranks of a run."""


OPTIONS = {"allreduce PATH...": AllreduceOptions}


def run(options: AllreduceOptions) -> Result:
    """Read the traces and break down communication; a trace without any is no error."""
    from analysis.views import allreduce

    path, view = options.paths[0], allreduce(options.paths)
    return of_view(view, options, f"bertbench allreduce {path}", f"{ALL_TABLES} As a page: bertbench report {path}")
