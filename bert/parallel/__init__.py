"""The parallel strategies by name, and their options. Imports torch only to make one."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from common.errors import UsageError
from common.flags import flag
from common.registry import load
from common.train_spec import TrainSpec

if TYPE_CHECKING:
    from bert.parallel.base import Strategy

# Environment variable: seconds after which a rank gives up waiting for the others.
JOIN_TIMEOUT_VARIABLE = "BERTBENCH_JOIN_TIMEOUT_SECONDS"

# An entry is "module:class"; `common.registry.load` imports it when asked for.
STRATEGIES = {
    "single": "bert.parallel.base:SingleStrategy",
    "ddp": "bert.parallel.ddp:DdpStrategy",
    "dp": "bert.parallel.dp:DpStrategy",
    "fsdp": "bert.parallel.fsdp:FsdpStrategy",
    "deepspeed": "bert.parallel.deepspeed:DeepSpeedStrategy",
    "horovod": "bert.parallel.horovod:HorovodStrategy",
}

ZERO_STAGES = (0, 1, 2, 3)

# Options of each strategy that has some: bucket_mib is the size of the buckets gradients are reduced in, zero_stage one
# of ZERO_STAGES, config a configuration of DeepSpeed.
OPTIONS: dict[str, tuple[str, ...]] = {"ddp": ("bucket_mib",), "deepspeed": ("zero_stage", "config")}


def devices_per_rank(strategy: str, world_size: int) -> int:
    """Devices that each process of a strategy drives where there are `world_size` devices in all."""
    return world_size if strategy == "dp" else 1


def options_text(strategy: str, options: Mapping[str, Any]) -> str:
    """Return the options of a strategy as one canonical text, "" without options; None counts as not given.

    Raises:
        UsageError: the strategy has no such option, or not with this value.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - set(OPTIONS.get(strategy, ())):
        owners = " or ".join(owner for owner, own in OPTIONS.items() if name in own)
        option = "--deepspeed-config" if name == "config" else flag(name)
        raise UsageError(
            "option-not-applicable", f"--strategy {strategy} has no option {option}: use --strategy {owners or 'ddp'}"
        )
    size, stage = given.get("bucket_mib", 1), given.get("zero_stage", 0)
    if type(size) is not int or size < 1:
        raise UsageError("option-value", f"--bucket-mib {size!r} must be a whole number of MiB, at least 1")
    if type(stage) is not int or stage not in ZERO_STAGES:
        raise UsageError("option-choice", f"--zero-stage {stage!r}: choose one of {', '.join(map(str, ZERO_STAGES))}")
    if not isinstance(given.get("config", {}), Mapping):
        raise UsageError("option-value", "the DeepSpeed configuration must be a JSON object")
    return json.dumps(given, sort_keys=True, separators=(",", ":"), allow_nan=False) if given else ""


def read_options(text: str) -> dict[str, Any]:
    """Return the options that `options_text` wrote."""
    options: dict[str, Any] = json.loads(text) if text else {}
    return options


def zero_stage(spec: TrainSpec) -> int:
    """Return the stage of ZeRO that a training divides model states as; FSDP divides all of them, as stage 3."""
    return 3 if spec.strategy == "fsdp" else int(read_options(spec.strategy_options).get("zero_stage", 0))


def make_strategy(name: str, options: str = "") -> "Strategy":
    """Return a strategy that is not set up yet; `options` is the result of `options_text`. Raises UsageError."""
    given = read_options(options)
    options_text(name, given)
    made: Strategy = load(STRATEGIES, name, "strategy")(given)
    return made
