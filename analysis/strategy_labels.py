"""How a parallel strategy, an implementation and a task, each with its options, are called in tables and pictures."""

import hashlib
import json


def strategy_label(strategy: str, options: str, recomputing: bool = False, allocator: str = "") -> str:
    """Return a strategy with its options in a few words; longer ones, such as a configuration, as a hash.

    Args:
        strategy: Trial.strategy.
        options: Trial.strategy_options.
        recomputing: Trial.activation_checkpointing.
        allocator: Trial.allocator.
    """
    named = _read(options)
    words = [f"{name}={_short(value)}" for name, value in sorted(named.items(), reverse=True)]
    words += ["recomputing"] * recomputing + [f"memory={allocator}"] * bool(allocator)
    return " ".join([strategy, *words])


def implementation_label(implementation: str, levers: str) -> str:
    """Return an implementation with the levers it computes with, where they are not those of its device.

    Args:
        implementation: Trial.implementation.
        levers: Trial.levers.
    """
    words = {"": "", "none": " without levers"}
    return f"{implementation}{words.get(levers, f' {levers}')}"


def is_single(label: str) -> bool:
    """Return whether a label is that of training without parallelism, which serves as the base of every strategy."""
    return label.split(" ", 1)[0] == "single"


def bucket_mib(options: str) -> int | None:
    """Return the size of the buckets of gradients that Trial.strategy_options ask for; None for the strategy's own."""
    value = _read(options).get("bucket_mib")
    return value if isinstance(value, int) else None


def task_label(task: str, options: str) -> str:
    """Return a task with its options in a few words, those that are off left out.

    Args:
        task: Trial.task.
        options: Trial.task_options.
    """
    named = {name: value for name, value in _read(options).items() if value is not False}
    words = [name if value is True else f"{name}={value}" for name, value in sorted(named.items())]
    return " ".join([task, *words])


def _read(options: str) -> dict[str, object]:
    try:
        return dict(json.loads(options or "{}"))
    except (ValueError, TypeError):
        return {"options": options}


def _short(value: object) -> str:
    if isinstance(value, int | float):
        return str(value)
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
