"""Options of the strategies: their names, their canonical text in records, and the strategy created from it.

Imports torch only to make a strategy.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bert.parallel import STRATEGIES
from common.errors import UsageError
from common.flags import flag
from common.registry import load
from common.train_spec import TrainSpec

if TYPE_CHECKING:
    from bert.parallel.base import Strategy

ZERO_STAGES = (0, 1, 2, 3)

# Names of the options of each strategy that has some: bucket_mib is the size of the buckets gradients are reduced in,
# zero_stage one of ZERO_STAGES, config a configuration of DeepSpeed.
OPTIONS: dict[str, tuple[str, ...]] = {"ddp": ("bucket_mib",), "deepspeed": ("zero_stage", "config")}


def options_text(strategy: str, options: Mapping[str, Any]) -> str:
    """Return the options of a strategy as one canonical text, "" without options; None counts as not given.

    Raises:
        UsageError: the strategy has no such option, or not with this value.
    """
    given = {name: value for name, value in options.items() if value is not None}
    foreign = sorted(given.keys() - set(OPTIONS.get(strategy, ())))
    if foreign:
        owners = sorted(name for name, own in OPTIONS.items() if set(foreign) & set(own))
        hint = f": use --strategy {' or '.join(owners)}" if owners else ""
        unknown = ", ".join("--deepspeed-config" if name == "config" else flag(name) for name in foreign)
        raise UsageError("option-not-applicable", f"--strategy {strategy} has no option {unknown}{hint}")
    size = given.get("bucket_mib", 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError("option-value", f"--bucket-mib {size!r} must be a whole number of MiB, at least 1")
    stage = given.get("zero_stage")
    if stage is not None and (isinstance(stage, bool) or stage not in ZERO_STAGES):
        raise UsageError("option-choice", f"--zero-stage {stage!r}: choose one of {', '.join(map(str, ZERO_STAGES))}")
    if not isinstance(given.get("config", {}), Mapping):
        raise UsageError("option-value", "the DeepSpeed configuration must be a JSON object")
    return json.dumps(given, sort_keys=True, separators=(",", ":"), allow_nan=False) if given else ""


def read_options(text: str) -> dict[str, Any]:
    """Return the options that `options_text` wrote."""
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def zero_stage(spec: TrainSpec) -> int:
    """Return the stage of ZeRO that a training divides model states as; FSDP divides all of them, as stage 3."""
    return 3 if spec.strategy == "fsdp" else int(read_options(spec.strategy_options).get("zero_stage", 0))


def make_strategy(name: str, options: str = "") -> "Strategy":
    """Return a strategy that is not set up yet; `options` is the result of `options_text`. Raises UsageError."""
    given = read_options(options)
    options_text(name, given)
    made: Strategy = load(STRATEGIES, name, "strategy")(given)
    return made
