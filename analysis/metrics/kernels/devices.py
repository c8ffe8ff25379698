"""The table of devices, devices.csv: published peaks of arithmetic, memory and links.

All rates are dense: data sheets also give rates "with sparsity", twice as high, which BERT does not reach. GEMMs of
16- and 8-bit types accumulate in fp32, at half the rate on GeForce cards. What no source says is None or absent.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.timeline import ProcessGroup, Timeline

_TYPES = ("fp64", "fp32", "fp16", "tensor_fp64", "tensor_tf32", "tensor_fp16", "tensor_bf16", "tensor_fp8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One kind of GPU."""

    flops: Mapping[str, float]
    """FLOP/s by type: fp32, fp64, fp16 outside the tensor cores, tensor_<type of the inputs> inside."""
    bytes_per_second: float | None
    """Of its memory."""
    link_gb_s: float | None
    """All links of one GPU in one direction, 1e9 bytes/s, half of what data sheets give; None where only pairs have a
    bridge."""
    source: str
    """URL of the maker's figures."""


@cache
def devices() -> Mapping[str, Device]:
    """Return the table of devices.csv by pattern of the driver's name, without the maker's.

    Columns: memory and link in 1e9 bytes/s, rates in TFLOP/s. NVIDIA publishes no data sheet of the H20.
    """
    table = {}
    with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            table[row["driver_name"]] = Device(
                flops={kind: float(row[kind]) * 1e12 for kind in _TYPES if row[kind]},
                bytes_per_second=float(row["memory_gb_s"]) * 1e9 if row["memory_gb_s"] else None,
                link_gb_s=float(row["link_gb_s"]) if row["link_gb_s"] else None,
                source=row["source"],
            )
    return table


def device_of(driver_name: str | None) -> Device | None:
    """Return a GPU by what the driver calls it; None for one not in the table, a slice of a GPU (MIG) included."""
    name = re.sub(r"^(?:NVIDIA|Tesla|AMD|Instinct|\s)+", "", (driver_name or "").strip(), flags=re.IGNORECASE)
    # The name must fit as a whole, so that a variant nobody listed is unknown.
    return next((device for pattern, device in devices().items() if re.fullmatch(pattern, name, re.IGNORECASE)), None)


_FASTER = 1.5


def faster_types(driver_name: str) -> tuple[str, ...] | None:
    """Return the types in which a GPU's GEMMs are much faster than in fp32, of fp16, bf16, tf32; None: not known."""
    device = device_of(driver_name)
    if device is None or not device.flops:
        return None
    rates = {kind.removeprefix("tensor_"): rate for kind, rate in device.flops.items()}
    return tuple(kind for kind in ("fp16", "bf16", "tf32") if rates.get(kind, 0) >= _FASTER * rates["fp32"])


def link_of(timeline: Timeline, group: ProcessGroup) -> float | None:
    """Return a GPU's published link_gb_s for a group within one node; None where nothing says that it is.

    All of the job is within one, or, with ranks in the order of nodes, the group's ranks are in one block of as many as
    the trace has GPUs.
    """
    names, visible = set(timeline.devices.values()), len(timeline.devices)
    whole = timeline.world_size is not None and timeline.world_size <= visible
    in_block = visible > 1 and len({rank // visible for rank in group.ranks}) == 1
    device = device_of(names.pop()) if len(names) == 1 and (whole or in_block) else None
    return device.link_gb_s if device else None
