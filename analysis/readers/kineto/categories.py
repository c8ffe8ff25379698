"""Categories of Kineto's events: what each is read as, and what is said of those that are not understood.

Names and meanings are those of libkineto/include/ActivityType.h. HIP's and XPU's work has the categories of CUDA's.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.readers.kineto.arguments import Arguments, KernelArguments
from analysis.readers.kineto.events import MISSING, AnyEvent

OPERATOR, RANGE, CALL, WORK, COUNTERS = "operator", "range", "call", "work", "counters"
KINDS = ("kernel", "memcpy", "memset")
# Of 2021 (capitals) and of later versions.
TABLES = {
    **dict.fromkeys(("cpu_op", "Operator", "operator"), OPERATOR),
    "user_annotation": RANGE,
    **dict.fromkeys(("cuda_runtime", "hip_runtime", "xpu_runtime", "Runtime", "runtime"), CALL),
    **dict.fromkeys(("cuda_driver", "hip_driver", "xpu_driver", "driver"), CALL),
    **dict.fromkeys(("kernel", "Kernel"), "kernel"),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), "memcpy"),
    **dict.fromkeys(("gpu_memset", "Memset"), "memset"),
    "cuda_profiler_range": COUNTERS,
}
"""Where the events of a category go: a table, one of KINDS, or COUNTERS."""

# No work of a device of its own: the profiler, the host's stacks, arrows, what a GPU's work belongs to, or says again.
NEEDLESS = frozenset(
    (
        *("", "Trace", "python_function", "overhead", "cpu_instant_event", "external_correlation"),
        *("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "forward_backward"),
        *("gpu_user_annotation", "cuda_sync", "cuda_event", "xpu_sync", "collective_comm"),
        *("gpu_pm_counter", "xpu_scope_profiler", "bertbench"),  # the last is this suite's own, in a file for Perfetto
    )
)
"""Categories that are left out on purpose."""

_ACCELERATORS = {"mtia": "MTIA", "hpu": "HPU (Gaudi)", "glow": "Glow", "gcu": "GCU", "privateuse1": "PrivateUse1"}
# How Kineto and its forks name what a device, or the runtime of one, did.
_OF_A_DEVICE = re.compile(
    r"kernel|memcpy|memset|runtime|driver|device|accelerator|(?<!cpu)_op$|(?:^|_)ccp(?:_|$)", re.I
)
_LOOKED_AT = 64
_MOST_NAMED = 16
_MOST_LISTED = 5


@dataclass(slots=True)
class Unknown:
    """Events of categories that are not understood."""

    counts: Counter[str] = field(default_factory=Counter)
    """How many there are, by category."""
    _devices: set[str] = field(default_factory=set)

    def add(self, category: str, events: Sequence[AnyEvent]) -> None:
        """Count events of a category that is neither in TABLES nor in NEEDLESS."""
        of_device = category in self._devices or _of_device(category, events)
        if category not in self.counts and len(self.counts) >= _MOST_NAMED:
            category = "other categories"
        self.counts[category] += len(events)
        if of_device:
            self._devices.add(category)

    def accelerator(self) -> str:
        """Return what was active besides the host, with the number of events; "" where nothing says that any was."""
        if not self._devices:
            return ""
        names = {_ACCELERATORS.get(category.split("_")[0].lower(), "") for category in self._devices}
        known = " and ".join(sorted(names - {""})) or "activity of an accelerator that is not known"
        return f"{known + ' activity' if names - {''} else known} ({self.listed(self._devices)})"

    def listed(self, categories: set[str] | None = None) -> str:
        """Return categories, all by default, with their numbers of events, the largest first."""
        wanted: Mapping[str, int] = self.counts
        if categories is not None:
            wanted = {name: count for name, count in self.counts.items() if name in categories}
        ordered = sorted(wanted.items(), key=lambda item: (-item[1], item[0]))
        said = [f"{_plain(name)}: {count:,} event{'s' if count > 1 else ''}" for name, count in ordered]
        more = [f"{len(said) - _MOST_LISTED} more"] if len(said) > _MOST_LISTED else []
        return ", ".join(said[:_MOST_LISTED] + more)


def _plain(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:60])


def _of_device(category: str, events: Sequence[AnyEvent]) -> bool:
    if category.split("_")[0].lower() in _ACCELERATORS or _OF_A_DEVICE.search(category):
        return True
    found = Arguments(KernelArguments).of(events[:_LOOKED_AT])
    return any(one.stream != MISSING or one.device != MISSING for one in found)
