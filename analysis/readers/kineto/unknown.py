"""Counts events of categories that no table has, and tells whether an accelerator that is not understood was active."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.readers.columns import MISSING
from analysis.readers.kineto.events import AnyEvent, Arguments, KernelArguments

_ACCELERATORS = {
    "mtia": "MTIA", "hpu": "HPU (Gaudi)", "glow": "Glow", "gcu": "GCU", "privateuse1": "PrivateUse1", "npu": "NPU",
    "tpu": "TPU", "xpu": "XPU", "mlu": "MLU", "musa": "MUSA",
}  # fmt: skip
# Names of the processes that hold the events of a device which have no category.
_PROCESSES = (
    (re.compile(r"\bAscend|\bCANN\b|\bHCCL\b|\bNPU\b"), "Ascend NPU"),
    (re.compile(r"/device:TPU|\bTPU\b|SparseCore"), "TPU"),
    (re.compile(r"/device:GPU"), "GPU (trace of XLA: JAX or TensorFlow)"),
    (re.compile(r"\bNeuron"), "Neuron"),
    (re.compile(r"\bHPU\b|Gaudi|^DEVICE \("), "HPU (Gaudi)"),
    (re.compile(r"\bMTIA\b"), "MTIA"),
    (re.compile(r"Level.?Zero|\bXPU\b|\bze_"), "XPU (Level Zero)"),
    (re.compile(r"\b(?:HIP|HSA|COPY|GPU ?\d+)\b.*|^\d+ GPU\d+$"), "AMD GPU (rocprof before version 3)"),
)
# How Kineto and its forks name what a device, or the runtime of one, did.
_OF_A_DEVICE = re.compile(
    r"kernel|memcpy|memset|runtime|driver|device|accelerator|(?<!cpu)_op$|(?:^|_)ccp(?:_|$)", re.I
)
# Arguments of what an accelerator ran, by the tools of Ascend and of XLA, and by rocprof before version 3.
_TASK = re.compile(rb'"(?:Task Type|Physic Stream Id|hlo_op|hlo_module|run_id|BeginNs)"')
_LOOKED_AT = 64
_MOST_NAMED = 16
_MOST_LISTED = 5
_OTHERS = "other categories"


@dataclass(slots=True)
class Unknown:
    """Events of categories that are not understood."""

    counts: Counter[str] = field(default_factory=Counter)
    """How many there are, by category."""
    nameless: int = 0
    """Events without a category."""
    of_a_task: bool = False
    """Whether arguments of those say that they ran on a device."""
    _devices: set[str] = field(default_factory=set)

    def add(self, category: str, events: Sequence[AnyEvent]) -> None:
        """Count events of a category that is neither in TABLES nor in NEEDLESS."""
        self._count(category, len(events), category in self._devices or _of_device(category, events))

    def add_nameless(self, events: Sequence[AnyEvent]) -> None:
        """Count events without a category: other tools' traces have none."""
        self.nameless += len(events)
        self.of_a_task = self.of_a_task or any(_TASK.search(event.args) for event in events[:_LOOKED_AT])

    def _count(self, category: str, count: int, of_device: bool) -> None:
        if category not in self.counts and len(self.counts) >= _MOST_NAMED:
            category = _OTHERS
        self.counts[category] += count
        if of_device:
            self._devices.add(category)

    def accelerator(self, processes: Sequence[str] = ()) -> str:
        """Return what was active besides the host, with the number of events; "" where nothing says that any was.

        Args:
            processes: names of the trace's processes, asked where events have no category.
        """
        if not self._devices:
            named = {label for pattern, label in _PROCESSES if any(pattern.search(name) for name in processes)}
            if not self.nameless or not (named or self.of_a_task):
                return ""
            what = f"{' and '.join(sorted(named))} activity" if named else "activity of an unknown accelerator"
            return f"{what} ({self.nameless:,} event{'s' if self.nameless > 1 else ''} without a category)"
        names = {_ACCELERATORS.get(category.split("_")[0].lower(), "") for category in self._devices}
        known = " and ".join(sorted(names - {""})) or "activity of an unknown accelerator"
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
