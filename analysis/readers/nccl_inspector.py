"""JSON lines of NCCL Inspector (plugins/profiler/inspector of NCCL): one per collective or transfer of one rank.

`coll_perf` and `p2p_perf` of a line have its name, size, time and bandwidths, as nccl-tests counts them; of an
all-gather and a reduce-scatter the size is of one rank.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from analysis.counters import Summary
from analysis.names import collective
from analysis.readers.packed import log_lines
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

_LINE = re.compile(r'^\s*\{\s*"header"\s*:.*"(?:coll|p2p)_perf"', re.DOTALL)
_OF_ONE_RANK = ("all_gather", "reduce_scatter")
_FIELDS = ("msg_size_bytes", "exec_time_us", "algobw_gbs", "busbw_gbs")


class _Header(msgspec.Struct):
    n_ranks: int


class _Line(msgspec.Struct):
    header: _Header
    coll_perf: dict[str, Any] = {}
    p2p_perf: dict[str, Any] = {}


def recognises(head: "Head") -> bool:
    """Return whether a file holds NCCL Inspector's lines."""
    return bool(_LINE.match(head.text))


def read(path: Path) -> list[Summary]:
    """Read a file: one summary per collective and number of ranks.

    Returns:
        what "collectives": collective, size_bytes (as nccl-tests counts), calls, time_us, algbw_gb_s and busbw_gb_s
        (medians over the calls), a row per size; placement, redop, root and wrong are unknown. Facts: ranks.

    Raises:
        InputError: the file cannot be read, or a line of it is none of NCCL Inspector.
    """
    import pandas as pd

    columns = ["collective", "ranks", "size_bytes", "time_us", "algbw_gb_s", "busbw_gb_s"]
    calls = pd.DataFrame(_calls(path), columns=columns)
    groups = calls.groupby(columns[:3], as_index=False)
    by_size = groups[columns[3:]].median().assign(calls=groups.size()["size"])
    found = []
    for (name, _), rows in by_size.groupby(columns[:2]):
        facts = {"ranks": int(rows["ranks"].iloc[0])}
        table = rows.drop(columns="ranks").reset_index(drop=True)
        table = table.assign(placement="in the program", redop="", root=-1, wrong=-1)
        found.append(Summary("collectives", f"NCCL Inspector {name}", table, "NCCL Inspector", facts))
    return found


def _calls(path: Path) -> Iterator[tuple[object, ...]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(log_lines(path), 1):
        if not line.strip():
            continue
        try:
            one = decoder.decode(line)
            kind, about = ("coll", one.coll_perf) if one.coll_perf else ("p2p", one.p2p_perf)
            size, *values = (float(about[f"{kind}_{field}"]) for field in _FIELDS)
        except (msgspec.DecodeError, KeyError) as error:
            raise InputError(
                "file-damaged", f"{path}, line {number} is no line of NCCL Inspector ({error}): copy the file again"
            ) from error
        name = collective(f"nccl:{about.get(kind)}".replace("2", "To")) or "other"
        ranks = one.header.n_ranks
        yield name, ranks, int(size) * (ranks if name in _OF_ONE_RANK else 1), *values
