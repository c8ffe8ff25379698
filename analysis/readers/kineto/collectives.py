"""Communication in a Kineto trace: kernels of collectives with size, type and group recorded by them or by the host's
calls around their launch, or the spans of gloo and MPI.
"""

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from analysis.names import collective, kernel_collective
from analysis.readers.kineto.events import CommunicationArguments, whole
from analysis.timeline import COLLECTIVE_COLUMNS, GpuWork, ProcessGroup, typed

if TYPE_CHECKING:
    import pandas as pd

HostCall = tuple[str, str, int, int, CommunicationArguments]
"""A call of a collective: name, thread, start, end, arguments."""
Named = Sequence[tuple[str, CommunicationArguments]]
"""CommunicationArguments of the calls of these names, the best first."""

_HOST_CALL = re.compile(
    r"record_param_comms$|(?:nccl|gloo|mpi|ucc|xccl)[:_]|c10d::_?allgather_base",
    re.IGNORECASE,
)
_ON_CPU = re.compile(r"(?:gloo|mpi|ucc)[:_]", re.IGNORECASE)
# What one rank receives is counted; all others count what one rank gives.
_BY_OUTPUT = ("all_gather", "gather")
_DEEPEST = 32
_BYTES = {
    **dict.fromkeys(("double", "long", "int64", "complexfloat", "complex<float>", "long int", "unsigned long"), 8),
    **dict.fromkeys(("float", "int", "int32", "uint32", "complexhalf", "unsigned int"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "short int", "int16", "uint16", "unsigned short"), 2),
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("complexdouble", "complex<double>"), 16),
}


def is_host_call(name: str) -> bool:
    """Return whether an operator or range of this name is the host's call of a collective."""
    return _HOST_CALL.match(name) is not None


def process_groups(information: Mapping[str, Any], calls: Iterable[CommunicationArguments]) -> dict[str, ProcessGroup]:
    """Return the process groups that a trace lists, by name.

    Args:
        information: its distributedInfo.
        calls: arguments of its communication; they name groups that the list lacks.
    """
    groups = {}
    for group in information.get("pg_config") or ():
        if isinstance(group, dict) and (name := _text(group.get("pg_name"))):
            ranks = _ranks(group.get("ranks"))
            size = max(_count(group.get("pg_size")), len(ranks)) or -1
            groups[name] = ProcessGroup(name, _described(group.get("pg_desc")), size, ranks)
    for args in calls:
        name = _text(args.group)
        if not name or name in groups:
            continue
        size, ranks = _count(args.group_size), _ranks(args.ranks)
        first, stride = _count(args.first_rank), _count(args.rank_stride)
        if not ranks and first >= 0 and stride > 0 and size > 0:
            ranks = tuple(range(first, first + size * stride, stride))
        groups[name] = ProcessGroup(name, _described(args.description), max(size, len(ranks)) or -1, ranks)
    return groups


def _described(value: Any) -> str:
    text = _text(value).strip()
    return "" if text == "undefined" else text


def _ranks(value: Any) -> tuple[int, ...]:
    """A list of ranks, or the text of one; () where it is cut off ("[0, 1, ...]") or no list."""
    try:
        return tuple(sorted(msgspec.json.decode(value, type=list[int]) if isinstance(value, str) else value or ()))
    except msgspec.DecodeError:
        return ()


@dataclass(slots=True)
class _Facts:
    """What is known of one collective."""

    bytes: int = -1
    dtype: str = ""
    group: str = ""
    group_size: int = -1
    seq: int = -1
    communicator: str = ""


def collectives(
    work: GpuWork,
    kernel_calls: Mapping[int, CommunicationArguments],
    host_calls: Sequence[HostCall],
    api: "pd.DataFrame",
    groups: Mapping[str, ProcessGroup],
) -> "pd.DataFrame":
    """Return the communication of a trace, in order of start, with COLLECTIVE_COLUMNS.

    Args:
        work: work on GPUs.
        kernel_calls: arguments of the communication kernels by their row.
        host_calls: the host's calls of collectives.
        api: calls of the runtime and driver, with times of the same clock as the host calls.
        groups: process groups by name, of `process_groups`.
    """
    if kernel_calls:
        rows = list(_of_kernels(work, kernel_calls, host_calls, api, groups))
    else:
        rows = list(_of_cpu(host_calls, groups))
    if len({facts.communicator for _, facts in rows if facts.communicator}) > 1:
        for _, facts in rows:
            if facts.communicator:
                facts.seq = -1  # numbers of several groups that cannot be distinguished
    rows.sort(key=lambda row: row[0]["start"])
    return typed(
        [
            {column: row[column] if column in row else getattr(facts, column) for column in COLLECTIVE_COLUMNS}
            for row, facts in rows
        ],
        COLLECTIVE_COLUMNS,
    )


def _of_kernels(
    work: GpuWork,
    kernel_calls: Mapping[int, CommunicationArguments],
    host_calls: Sequence[HostCall],
    api: "pd.DataFrame",
    groups: Mapping[str, ProcessGroup],
) -> Iterable[tuple[dict[str, Any], _Facts]]:
    by_thread: dict[str, list[HostCall]] = defaultdict(list)
    by_id: dict[Any, list[tuple[str, CommunicationArguments]]] = defaultdict(list)
    for call in sorted(host_calls, key=lambda call: (call[2], -call[3])):
        by_thread[call[1]].append(call)
        by_id[call[4].external_id].append((call[0], call[4]))
    correlations = work.more["correlation_id"][list(kernel_calls)]
    calls = api[np.isin(api["correlation_id"], correlations[correlations >= 0])]
    launches = dict(zip(calls["correlation_id"], zip(calls["thread"], calls["start"], strict=True), strict=True))
    for (place, own), correlation in zip(kernel_calls.items(), correlations.tolist(), strict=True):
        name = work.names[work.name[place]]
        row = {column: int(getattr(work, column)[place]) for column in ("device", "stream", "start", "end")}
        kind = kernel_collective(name) or ""
        named = [("", own)]
        if correlation in launches:
            thread, moment = launches[correlation]
            last = bisect.bisect_right(by_thread[thread], moment, key=lambda call: call[2])
            begun = reversed(by_thread[thread][max(0, last - _DEEPEST) : last])
            around = [(call[0], call[4]) for call in begun if call[3] >= moment]  # the innermost first
            named += sorted(around, key=lambda call: call[1].elements_in is None)
        elif own.external_id is not None:  # kernels carry PyTorch's id where the launch is not in the trace
            named += by_id[own.external_id]
        # An all-to-all is sends and receives, and RCCL's kernels are all of one name: PyTorch says which it was.
        if kind in ("send_recv", "other"):
            kind = next((other for one, args in named if (other := _host_kind(one, args))), kind)
        yield (
            {**row, "name": name, "collective": kind, "correlation_id": correlation},
            # Libraries that PyTorch does not run have groups of their own, which a trace does not name.
            _facts(kind, named, groups, _only(groups) if collective(name) else None),
        )


def _of_cpu(
    host_calls: Sequence[HostCall], groups: Mapping[str, ProcessGroup]
) -> Iterable[tuple[dict[str, Any], _Facts]]:
    """The spans of gloo and MPI; of equal ones inside each other the outer one."""
    reached: dict[tuple[str, str], int] = {}
    for name, thread, start, end, args in sorted(host_calls, key=lambda call: (call[2], -call[3])):
        kind = collective(name) if _ON_CPU.match(name) else None
        if kind is None or reached.get((thread, kind), start - 1) >= end:
            continue
        reached[thread, kind] = end
        row = {"name": name, "device": -1, "stream": -1, "start": start, "end": end, "correlation_id": -1}
        yield {**row, "collective": kind}, _facts(kind, [(name, args)], groups, _only(groups))


def _only(groups: Mapping[str, ProcessGroup]) -> ProcessGroup | None:
    """The group where nothing names one; of several equally large ones only the size is known."""
    sizes = {group.size for group in groups.values()}
    if len(groups) == 1:
        return next(iter(groups.values()))
    return ProcessGroup("", size=sizes.pop()) if len(sizes) == 1 else None


def _host_kind(name: str, args: CommunicationArguments) -> str | None:
    if args.operation:
        return collective(f"nccl:{args.operation}")
    return collective(name) if name.lower().startswith("nccl:") else None


def _facts(kind: str, named: Named, groups: Mapping[str, ProcessGroup], only: ProcessGroup | None) -> _Facts:
    """Put together what the kernel and the host's calls around its launch say; `only`: where nothing names a group."""
    facts = _Facts()
    for name, args in named:
        facts.dtype = facts.dtype or _text(args.dtype)
        facts.group = facts.group or _text(args.group)
        facts.group_size = facts.group_size if facts.group_size > 0 else _count(args.group_size)
        facts.seq = facts.seq if facts.seq >= 0 else _count(args.seq)
        if name == "record_param_comms":
            _read_inputs(args, facts)
    own = groups.get(facts.group)
    if not facts.group and not facts.communicator and only is not None:
        facts.group, own = only.name, only
    if facts.group_size <= 0 and own is not None:
        facts.group_size = own.size
    for name, args in named:
        if facts.bytes < 0:
            facts.bytes = _size(kind, name, args, facts)
    return facts


def _read_inputs(args: CommunicationArguments, facts: _Facts) -> None:
    """PyTorch 2.1 and 2.2 name no argument: tensors, number, group's address, rank, "", splits, splits, ranks."""
    types, inputs = msgspec.json.decode(args.types) or [], msgspec.json.decode(args.inputs) or []
    if len(inputs) != 8 or facts.group:
        return
    if types[1:] == ["Scalar", "Scalar", "Scalar", "", "ScalarList", "ScalarList", "Scalar"]:
        facts.seq, facts.group_size = _count(inputs[1]), _count(inputs[7])
        facts.communicator = _text(inputs[2])


def _size(kind: str, name: str, args: CommunicationArguments, facts: _Facts) -> int:
    """Bytes of one rank as COLLECTIVE_COLUMNS counts them; -1 where these arguments do not say."""
    width = _width(facts.dtype)
    given, received = _count(args.elements_in), _count(args.elements_out)
    if max(given, received) > 0 and width:
        if kind in _BY_OUTPUT:
            return (received if received > 0 else given * max(facts.group_size, 0)) * width or -1
        return (given if given > 0 else received) * width
    tensors = _tensors(args)
    if not tensors:
        return 0 if kind == "barrier" and max(given, received) == 0 else -1
    if name.startswith("c10d::"):
        tensors = tensors[:1]  # output, input, ...
    elif ":" not in name:
        return -1
    facts.dtype = facts.dtype or tensors[0][1]
    total = sum(elements * _width(dtype) for elements, dtype in tensors)
    if kind in _BY_OUTPUT and not name.startswith("c10d::"):
        total *= max(facts.group_size, 0)
    return total if total > 0 else -1


def _width(dtype: Any) -> int:
    return _BYTES.get(str(dtype).lower().removeprefix("c10::"), 0)


def _tensors(args: CommunicationArguments) -> list[tuple[int, str]]:
    """Elements and type of each tensor among the inputs; lists of tensors do not say their type."""
    shapes, types = msgspec.json.decode(args.dimensions) or [], msgspec.json.decode(args.types) or []
    return [
        (math.prod(shape), dtype)
        for shape, dtype in zip(shapes, types, strict=False)
        if _width(dtype) and all(type(extent) is int for extent in shape)
    ]


def _count(value: Any) -> int:
    return max(whole(value), -1)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
