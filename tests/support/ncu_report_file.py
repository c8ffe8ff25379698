"""Reports of Nsight Compute (.ncu-rep), written field by field.

The field numbers are those of ProfilerReport.proto, RuleResults.proto and Nvtx.proto in the folder
extras/FileFormat of Nsight Compute 2022.3; those of estimated speed-ups, which it lacks, are from the descriptors
in ncu-report 2026.3.1. tests/slow/test_ncu_real.py lets the real ncu read what is written here.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

TYPES = {"none": 0, "ok": 1, "warning": 2, "error": 3, "optimization": 4}
"""Types of a rule's message in the file."""
LOCAL, GLOBAL = 1, 2
Value = int | float | str


@dataclass(frozen=True)
class Rule:
    """One message of a rule."""

    identifier: str
    section: str
    text: str
    kind: str = "optimization"
    speedup: tuple[int, float] | None = None
    """Type, and what is estimated in %."""


@dataclass(frozen=True)
class Kernel:
    """One launch."""

    name: str
    metrics: Mapping[str, Value]
    rules: Sequence[Rule] = ()
    ranges: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Push/pop ranges by domain, outermost first."""
    starts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Start/end ranges by domain."""
    other_thread: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Push/pop ranges of a thread that does not launch the kernel."""
    thread: int = 1


def varint(value: int) -> bytes:
    found = bytearray()
    while True:
        value, low = value >> 7, value & 127
        found.append(low | (128 if value else 0))
        if not value:
            return bytes(found)


def put(number: int, value: int | float | str | bytes) -> bytes:
    """One field: varint, double, or text and messages with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(*fields: tuple[int, int | float | str | bytes]) -> bytes:
    return b"".join(put(number, value) for number, value in fields)


def sized(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def block(header: bytes, payload: Sequence[bytes] = ()) -> bytes:
    """A block: its header, then one entry per result; both with their length."""
    data = b"".join(map(sized, payload))
    return sized(header + put(5, len(data))) + data


def process(pid: int) -> bytes:
    return message((1, pid), (2, "127.0.0.1"), (3, "program"))


DEVICE: Mapping[str, Value] = {
    "launch__device_id": 0.0,
    "device__attribute_display_name": "NVIDIA RTX A2000",
    "device__attribute_chip": 374,  # GA106; these three tell ncu-report the units of metrics
    "device__attribute_architecture": 368,
    "device__attribute_implementation": 6,
    "device__attribute_compute_capability_major": 8,
    "device__attribute_compute_capability_minor": 6,
    "device__attribute_device_index": 0,
}


def report(processes: Sequence[tuple[int, Sequence[Kernel]]], device: Mapping[str, Value] = DEVICE) -> bytes:
    """Return a report: a block of results per (process number, kernels), in this order."""
    system = message((1, "Linux"), (6, 2))
    session = message((2, 1_700_000_000), (3, system))
    attributes = message((1, 0), (2, str(device.get("device__attribute_display_name", "unknown"))))
    for name, value in device.items():
        attributes += put(3, message((1, name), (2, metric_value(value))))
    parts = [b"NVR\0", sized(put(1, 7))]
    for pid, given in processes:
        kernels = [replace(kernel, metrics={**device, **kernel.metrics}) for kernel in given]
        names = list(dict.fromkeys(name for kernel in kernels for name in kernel.metrics))
        about = put(6, process(pid))
        parts.append(block(message((1, 0), (2, 0), (3, session), (4, b"")) + about))
        strings = b"".join(put(1, name) for name in names)
        results = [result(number, kernel, names) for number, kernel in enumerate(kernels)]
        parts.append(block(message((1, 0), (2, len(results)), (4, strings)) + about, results))
        details = message((6, attributes), (8, message((1, "CUDA Version"), (2, "12.8"))))
        parts.append(block(message((1, 0), (2, 0), (3, details), (4, b"")) + about))
    return b"".join(parts)


def metric_value(value: Value) -> bytes:
    return message((1 if isinstance(value, str) else 5 if isinstance(value, int) else 3, value))


def result(number: int, kernel: Kernel, names: Sequence[str]) -> bytes:
    axes = message((1, 1), (2, 1), (3, 1))
    name = kernel.name.partition("(")[0]
    found = [(1, kernel.thread), (2, number + 1), (3, 0), (4, number), (5, name), (6, name), (7, kernel.name), (8, 1)]
    found += [(9, axes), (10, axes), (11, axes)]
    found += [
        (13, message((1, names.index(metric)), (2, metric_value(value)))) for metric, value in kernel.metrics.items()
    ]
    found += [(14, 1_700_000_000 + number), (15, put(1, 1)), (16, 0)]
    found += [(19, rule_result(rule, place)) for place, rule in enumerate(kernel.rules)]
    if kernel.ranges or kernel.starts or kernel.other_thread:
        found.append((21, nvtx(kernel)))
    return message(*found, (22, 1), (23, 7))


def rule_result(rule: Rule, place: int) -> bytes:
    item = put(1, message((1, rule.text), (2, TYPES[rule.kind]), (3, place), (4, "")))
    if rule.speedup is not None:
        item += put(10, message((1, rule.speedup[0]), (2, rule.speedup[1])))
    return message((1, rule.identifier), (2, f"Name of {rule.identifier}"), (3, put(1, item)), (4, rule.section))


def nvtx(kernel: Kernel) -> bytes:
    domains = list(dict.fromkeys([*kernel.ranges, *kernel.starts, *kernel.other_thread]))
    state = b"".join(put(1, message((1, place + 1), (2, name))) for place, name in enumerate(domains))
    for thread, ranges in ((kernel.thread, kernel.ranges), (kernel.thread + 1, kernel.other_thread)):
        stacks = b"".join(
            put(2, put(1, domains.index(domain) + 1) + b"".join(put(3, put(1, name)) for name in names))
            for domain, names in ranges.items()
        )
        if stacks:
            state += put(2, put(1, thread) + stacks)
    for domain, names in kernel.starts.items():
        ranges_ = b"".join(put(3, message((1, place + 1), (2, name))) for place, name in enumerate(names))
        state += put(3, put(1, domains.index(domain) + 1) + ranges_)
    return state
