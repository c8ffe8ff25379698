"""The trials of `comm`: which collectives are measured, over which sizes."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter, validators

from bench.launch.world import World
from bench.machine.devices import Devices
from bench.sweep.options import COUNT
from common.errors import UsageError
from common.flags import flag
from records.trial import Trial

# Placements that torch.distributed has: its all-reduce and its broadcast write where they read.
COLLECTIVES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("in_place",),
    "reduce_scatter": ("out_of_place", "in_place"),
    "all_gather": ("out_of_place", "in_place"),
    "broadcast": ("in_place",),
}


def sizes_of(test: Mapping[str, Any], ranks: int) -> list[int]:
    """Return the sizes in bytes of what a trial measures, each a multiple of what divides over the ranks in parts of
    16 bytes. Raises UsageError if not even the largest size gives every rank a part.
    """
    grain, size, sizes = 16 * ranks, float(test["min_bytes"]), dict[int, None]()
    while size <= test["max_bytes"] * (1 + 1e-9):
        sizes[int(size) // grain * grain] = None
        size *= test["factor"]
    sizes.pop(0, None)
    if not sizes:
        given = f"--min-bytes {test['min_bytes']} to --max-bytes {test['max_bytes']}"
        raise UsageError("option-value", f"{given} holds no multiple of {grain} bytes, which {ranks} ranks need")
    return list(sizes)


def _bytes(text: str, option: str) -> int:
    """Return bytes of "1024", "64K", "1M" or "1G" (powers of 1024, as nccl-tests reads them). Raises UsageError."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+|[0-9]+\.)([KMG]?)(I?B)?", text.strip().upper())
    value = float(match[1]) * 1024 ** "_KMG".index(match[2] or "_") if match else 0.0
    if not 1 <= value < 2**50:
        raise UsageError("option-value", f"{option} {text}: give a number of bytes, such as 1024, 64K, 256M or 1G")
    return int(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommSweep:
    """Which collectives to measure: every combination of the listed values is one trial, over all sizes."""

    collectives: Annotated[tuple[str, ...], Parameter(choices=tuple(COLLECTIVES))] = ("all_reduce",)
    """Collectives to measure."""
    devices: Annotated[tuple[int, ...], Parameter(validator=validators.Number(gte=2))] = ()
    """Numbers of ranks; default 2 4 8 ... up to every GPU, or 2 ranks on the CPU."""
    dtypes: Annotated[tuple[str, ...], Parameter(choices=("fp32", "fp16", "bf16"))] = ("fp32",)
    """Data types."""
    min_bytes: str = "1K"
    """Smallest message size; K, M and G are powers of 1024."""
    max_bytes: str = "256M"
    """Largest message size; K, M and G are powers of 1024."""
    factor: Annotated[float, Parameter(validator=validators.Number(gt=1, lt=math.inf))] = 2.0
    """Ratio of one message size to the previous one."""
    rounds: Annotated[int, COUNT] = 1
    """Interleaved rounds of all sizes, each in new processes."""


def expand_collectives(sweep: CommSweep, devices: Devices, world: World | None = None) -> list[Trial]:
    """Return the trials in the order they run, round by round. Raises UsageError."""
    if world is not None:
        world_sizes = [world.check_devices(*sweep.devices)]
    elif devices.count < 2:
        problem = f"a collective needs two devices, this node has {devices.count}"
        raise UsageError("device-missing", f"{problem}: bertbench launch ... -- bertbench comm")
    else:
        for size in sweep.devices:
            devices.environment(size)  # refuses too many
        default = [2] if devices.kind == "cpu" else [size for size in devices.default_world_sizes() if size > 1]
        world_sizes = list(dict.fromkeys(sweep.devices or default))
    names, dtypes = (list(dict.fromkeys(values)) for values in (sweep.collectives, sweep.dtypes))
    sizes = {name: _bytes(getattr(sweep, name), flag(name)) for name in ("min_bytes", "max_bytes")}
    trials = []
    for number, name, dtype, size in itertools.product(range(sweep.rounds), names, dtypes, world_sizes):
        test = {**sizes, "factor": sweep.factor, "name": name}
        sizes_of(test, size)
        trials.append(
            Trial(
                kind="comm", task="comm", implementation="torch", strategy="ddp", preset="", data="", precision=dtype,
                world_size=size, nodes=1 if world is None else world.nodes, device=devices.kind, round=number,
                collective=tuple(sorted(test.items())),
            )
        )  # fmt: skip
    return trials
