"""The table of devices, devices.csv: published peaks of arithmetic, memory and links.

All rates are dense: data sheets also give rates "with sparsity", twice as high, which BERT does not reach. GEMMs of
16- and 8-bit types accumulate in fp32, at half the rate on GeForce cards. What no source says is None or absent.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.counters import Summary
from analysis.timeline import ProcessGroup, Timeline

_TYPES = ("fp64", "fp32", "fp16", "tensor_fp64", "tensor_tf32", "tensor_fp16", "tensor_bf16", "tensor_fp8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One kind of GPU."""

    name: str
    flops: Mapping[str, float]
    """FLOP/s by type: fp32, fp64, fp16 outside the tensor cores, tensor_<type of the inputs> inside."""
    bytes_per_second: float | None
    """Of its memory."""
    link: "LinkRate | None"
    """All links of one GPU in one direction, half of what data sheets give; None where only pairs have a bridge."""
    source: str
    """URL of the maker's figures."""


class LinkRate(NamedTuple):
    """What a link carries."""

    gb_s: float
    """1e9 bytes/s, as bus bandwidths."""
    source: str
    """Such as "measured (nccl-tests, 8 ranks)" or "published (NVLink 3)"."""


@cache
def devices() -> Mapping[str, Device]:
    """Return the table of devices.csv by pattern of the driver's name, without the maker's.

    Columns: memory and link in 1e9 bytes/s, rates in TFLOP/s. NVIDIA publishes no data sheet of the H20.
    """
    table = {}
    with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table[row["driver_name"]] = Device(
                name=row["name"],
                flops={kind: float(row[kind]) * 1e12 for kind in _TYPES if row[kind]},
                bytes_per_second=float(row["memory_gb_s"]) * 1e9 if row["memory_gb_s"] else None,
                link=LinkRate(float(row["link_gb_s"]), f"published ({row['link']})") if row["link"] else None,
                source=row["source"],
            )
    return table


def device_of(driver_name: str | None) -> Device | None:
    """Return a GPU by what the driver calls it; None for one not in the table, a slice of a GPU (MIG) included."""
    name = re.sub(r"^(?:NVIDIA|Tesla|AMD|Instinct|\s)+", "", (driver_name or "").strip(), flags=re.IGNORECASE)
    # The name must fit as a whole, so that a variant nobody listed is unknown.
    return next((device for pattern, device in devices().items() if re.fullmatch(pattern, name, re.IGNORECASE)), None)


# GPUs without tensor cores, and those whose tensor cores know 16-bit floats alone, that are not in the table.
_WITHOUT_TENSOR_CORES = r"\bGTX\b|\b[KMP]\d{1,3}(?:c|m|s|X|Xm)?\b|TITAN (?:X|Xp|Z|Black)\b|Quadro [KMP]"
_ONLY_FP16 = r"\bV100|\bT4G?\b|GeForce RTX 20\d\d|TITAN (?:V|RTX)\b|Quadro (?:RTX|GV)"
_FASTER = 1.5


def faster_types(driver_name: str) -> tuple[str, ...] | None:
    """Return the types in which a GPU's GEMMs are much faster than in fp32, of fp16, bf16, tf32; None: not known."""
    device = device_of(driver_name)
    if device and device.flops:
        rates = {kind.removeprefix("tensor_"): rate for kind, rate in device.flops.items()}
        return tuple(kind for kind in ("fp16", "bf16", "tf32") if rates.get(kind, 0) >= _FASTER * rates["fp32"])
    if re.search(_WITHOUT_TENSOR_CORES, driver_name, re.IGNORECASE):
        return ()
    return ("fp16",) if re.search(_ONLY_FP16, driver_name, re.IGNORECASE) else None


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bus bandwidths of links: measured ones by collective, number of ranks and size, else published ones."""

    measured: Mapping[tuple[str, int], Sequence[tuple[int, float]]]
    """Size in bytes and the best bus bandwidth at it, 1e9 bytes/s, in order of size."""
    sources: Mapping[tuple[str, int], str]

    @classmethod
    def of(cls, summaries: Iterable[Summary] = (), rows: Iterable[Mapping[str, Any]] = ()) -> "LinkRates":
        """Return what tests measured; those without a number of ranks, or with wrong results, count for nothing.

        The suite's own trials (rows of `collectives.by_size`) come before nccl-tests'.
        """
        best: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        sources: dict[tuple[str, int], str] = {}
        tests: list[tuple[Mapping[Any, Any], int, str]] = [(row, int(row["ranks"]), "bertbench comm") for row in rows]
        for one in summaries:
            if one.source == "nccl-tests" and one.facts.get("ranks"):
                tests += [(row, int(one.facts["ranks"]), "nccl-tests") for row in one.table.to_dict("records")]
        for row, ranks, source in tests:
            rate, size, key = row["busbw_gb_s"], int(row["size_bytes"]), (str(row["collective"]), ranks)
            if rate and rate > 0 and size > 0 and not row["wrong"] > 0 and sources.setdefault(key, source) == source:
                best[key][size] = max(float(rate), best[key].get(size, 0.0))
        return cls({key: sorted(sizes.items()) for key, sizes in best.items()}, sources)

    def rate(self, timeline: Timeline, collective: str, group: ProcessGroup, size_bytes: float) -> LinkRate | None:
        """Return what the links carry for a collective of one group; None where nothing says it.

        Between two measured sizes it is interpolated in the logarithm of the size; beyond the largest it is that of
        the largest, and below the smallest unknown. Published rates hold inside one node only.
        """
        points = self.measured.get((collective, group.size), ())
        if points and size_bytes >= points[0][0]:
            sizes, rates = (np.array(values, dtype=float) for values in zip(*points, strict=True))
            rate = float(np.interp(np.log(size_bytes), np.log(sizes), rates))
            return LinkRate(rate, f"measured ({self.sources[collective, group.size]}, {group.size} ranks)")
        names = set(timeline.devices.values())
        device = device_of(names.pop()) if len(names) == 1 and in_one_node(timeline, group) else None
        return device.link if device else None


def in_one_node(timeline: Timeline, group: ProcessGroup) -> bool:
    """Return whether a group is within one node, as far as a trace says: all of the job is, or, with ranks in the
    order of nodes, its ranks are in one block of as many as the trace has GPUs."""
    visible = len(timeline.devices)
    if timeline.world_size is not None and timeline.world_size <= visible:
        return True
    return visible > 1 and len(group.ranks) > 0 and len({rank // visible for rank in group.ranks}) == 1
