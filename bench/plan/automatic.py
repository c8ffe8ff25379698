"""What `auto` stands for, among the options of a sweep or a training."""

from typing import Any

from bench.machine.devices import Devices
from bench.machine.environment import native_bf16
from bert.parallel import devices_per_rank
from bert.tasks.base import TaskData
from common.errors import UsageError
from common.registry import lookup

AUTO = "auto"


def resolve_strategy(name: str, world_size: int) -> str:
    """Return the strategy that `auto` stands for, others as they are."""
    if name != AUTO:
        return name
    return "single" if world_size == 1 else "ddp"


def strategy_fields(strategy: str, options: str, world_size: int) -> dict[str, Any]:
    """Return the fields of a Trial that say how its devices work together."""
    return {
        "strategy": strategy,
        "strategy_options": options,
        "devices_per_rank": devices_per_rank(strategy, world_size),
    }


def resolve_precision(name: str, devices: Devices) -> str:
    """Return the precision that `auto` stands for, others as they are."""
    if name != AUTO:
        return name
    return "bf16" if native_bf16(devices) else "fp32"


def resolve_padding(name: str, data: TaskData, task: str) -> str:
    """Return the padding that `auto` stands for, or `name`; "" where batches come padded. Raises UsageError."""
    if name == AUTO:
        return data.paddings[0] if data.paddings else ""
    if not data.paddings:
        raise UsageError(
            "option-not-applicable",
            f"--padding {name}: the batches of {task} come padded, there is nothing to choose; leave it out",
        )
    lookup(dict.fromkeys((AUTO, *data.paddings)), name, "padding")
    return name
