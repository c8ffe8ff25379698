"""Options shared by sweeps and training runs: their ranges, the meaning of `auto`, and the options of each task."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from bench.machine.devices import Devices, native_bf16
from bert.model.config import PRESETS
from bert.parallel import STRATEGIES
from bert.speed import STEPS
from bert.tasks import given_options, known_tasks, task_data
from bert.tasks.base import Task, TaskOption
from common.errors import UsageError
from common.flags import flag
from common.registry import lookup
from records.trial import PRECISIONS

AUTO = "auto"
DEVICE, PADDING = Parameter(choices=(AUTO, "cpu", "cuda")), Parameter(choices=(AUTO, "longest", "fixed"))
PRESET = Parameter(choices=tuple(PRESETS))
STEP = Parameter(choices=STEPS)
EVALUATED_PRECISION = Parameter(choices=(AUTO, *PRECISIONS[:-1]))
"""Those of a trained model: FP8 is for training."""
STRATEGY, PRECISION = Parameter(choices=(AUTO, *STRATEGIES)), Parameter(choices=(AUTO, *PRECISIONS))
COUNT = Parameter(validator=validators.Number(gte=1))
POSITIVE = Parameter(validator=validators.Number(gt=0, lt=math.inf))


def resolve_strategy(name: str, world_size: int) -> str:
    """Return the strategy for `auto`; other names are unchanged."""
    if name != AUTO:
        return name
    return "single" if world_size == 1 else "ddp"


def resolve_precision(name: str, devices: Devices) -> str:
    """Return the precision for `auto`; other names are unchanged. Raises UsageError: an unknown name."""
    if name == AUTO:
        return "bf16" if native_bf16(devices) else "fp32"
    lookup(dict.fromkeys(PRECISIONS), name, "precision")  # --vary and --search give any word
    return name


def resolve_padding(name: str, data: Task, task: str) -> str:
    """Return the padding for `auto`, or `name`; "" for tasks with padded samples. Raises UsageError."""
    if name == AUTO:
        return data.paddings[0] if data.paddings else ""
    if not data.paddings:
        problem = f"--padding {name} does not apply to {task}, whose samples are already padded: omit it"
        raise UsageError("option-not-applicable", problem)
    return name


_FIELDS = {"task": "benchmark_task"}
"""Options whose field has another name: the first word of the command is `task` too."""


def _fields() -> list[tuple[str, Any, Any]]:
    """Return a field for each task option that a user can give; None or False if not given."""
    owners: dict[str, list[tuple[str, TaskOption]]] = {}
    for task in known_tasks():
        for option in task_data(task).options:
            if not option.from_data:
                owners.setdefault(option.name, []).append((task, option))
    fields: list[tuple[str, Any, Any]] = []
    for name, pairs in owners.items():
        kind, choices = pairs[0][1].kind, {option.choices for _, option in pairs}
        words = Parameter(name=flag(name), choices=(choices.pop() if len(choices) == 1 else ()) or None)
        about = {"help": " ".join(_help(*pair) for pair in pairs)}
        default = dataclasses.field(default=False if kind is bool else None, metadata=about)
        fields.append((_FIELDS.get(name, name), Annotated[kind if kind is bool else kind | None, words], default))
    return fields


def _help(task: str, option: TaskOption) -> str:
    default = f"; default {option.default}" if option.default not in (None, False) else ""
    return f"{task}: {option.says or ' '.join(option.choices)}{default}."


class _Given:
    """Options that only some tasks have."""

    def options(self, task: str) -> dict[str, Any]:
        """Return the options of a task, with its defaults for missing ones. Raises UsageError: one it does not have."""
        names = {field: name for name, field in _FIELDS.items()}
        given = {names.get(field, field): value for field, value in vars(self).items() if value not in (None, False)}
        return given_options(task, given)


if TYPE_CHECKING:

    @dataclasses.dataclass(frozen=True)
    class TaskFlags(_Given):
        """For type checkers; the class below is made from the options of the tasks."""

        def __init__(self, **options: Any) -> None: ...

else:
    TaskFlags = dataclasses.make_dataclass(
        "TaskFlags", _fields(), bases=(_Given,), namespace={"__module__": __name__}, frozen=True, kw_only=True
    )


def request_of(options: Any) -> dict[str, Any]:
    """Return a dataclass of options as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(options), default=str))
    return plain


def check_same_request(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a folder that was begun with another request than `now`; `before` is empty for a new one.

    Raises UsageError with the first difference and both values.
    """
    for name in {**now, **before} if before else ():
        if before.get(name) != now.get(name):
            difference = f"{name} {before.get(name)}, not {now.get(name)}"
            problem = f"{folder} was begun with {difference}: give that again, or another --out"
            raise UsageError("settings-changed", problem)
