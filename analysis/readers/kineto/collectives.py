"""Communication in a Kineto trace: kernels of collectives with size, type and group recorded by them or by the host's
calls around their launch, or the spans of gloo and MPI.
"""

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from analysis.names import collective, kernel_collective
from analysis.readers.kineto.events import Arguments, whole
from analysis.timeline import COLLECTIVE_COLUMNS, GpuWork, ProcessGroup, typed

if TYPE_CHECKING:
    import pandas as pd

HostCall = tuple[str, str, int, int, Arguments]
"""A call of a collective: name, thread, start, end, arguments."""
_Named = Sequence[tuple[str, Arguments]]
"""Arguments of the calls of these names, the best first."""
_Row = dict[str, Any]

_HOST_CALL = re.compile(r"record_param_comms$|(?:nccl|gloo|mpi|ucc|xccl)[:_]|c10d::_?allgather_base", re.IGNORECASE)
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


def process_groups(information: Mapping[str, Any], calls: Iterable[Arguments]) -> dict[str, ProcessGroup]:
    """Return the process groups that a trace lists, by name.

    Args:
        information: its distributedInfo.
        calls: arguments of its communication; they name groups that the list lacks.
    """
    groups: dict[str, ProcessGroup] = {}

    def add(name: str, description: Any, size: int, ranks: tuple[int, ...]) -> None:
        text = _text(description).strip()
        count = max(size, len(ranks)) or -1
        groups.setdefault(name, ProcessGroup(name, "" if text == "undefined" else text, count, ranks))

    for group in information.get("pg_config") or ():
        ranks = _ranks(group.get("ranks"))
        add(_text(group.get("pg_name")), group.get("pg_desc"), _count(group.get("pg_size")), ranks)
    for args in calls:
        if (name := _text(args.group)) and name not in groups:
            size, first, stride = _count(args.group_size), _count(args.first_rank), _count(args.rank_stride)
            ranks = _ranks(args.ranks)
            if not ranks and first >= 0 and stride > 0 and size > 0:
                ranks = tuple(range(first, first + size * stride, stride))
            add(name, args.description, size, ranks)
    groups.pop("", None)
    return groups


def _ranks(value: Any) -> tuple[int, ...]:
    """A list of ranks, or the text of one; () where it is cut off ("[0, 1, ...]") or no list."""
    try:
        return tuple(sorted(msgspec.json.decode(value, type=list[int]) if isinstance(value, str) else value or ()))
    except msgspec.DecodeError:
        return ()


def collectives(
    work: GpuWork,
    kernel_calls: Mapping[int, Arguments],
    host_calls: Sequence[HostCall],
    launches: Mapping[int, tuple[str, int]],
    groups: Mapping[str, ProcessGroup],
) -> "pd.DataFrame":
    """Return the communication of a trace, in order of start, with COLLECTIVE_COLUMNS.

    Args:
        work: work on GPUs.
        kernel_calls: arguments of the communication kernels by their row.
        host_calls: the host's calls of collectives.
        launches: thread and time of the calls that launched the kernels, by correlation id; of the host calls' clock.
        groups: process groups by name, of `process_groups`.
    """
    calls = sorted(host_calls, key=lambda call: (call[2], -call[3]))
    # Where nothing names a group it is the only one; of several equally large ones only the size is known.
    sizes = {group.size for group in groups.values()}
    only = next(iter(groups.values())) if len(groups) == 1 else None
    if only is None and len(sizes) == 1:
        only = ProcessGroup("", size=sizes.pop())
    rows = []
    for row, named in _of_kernels(work, kernel_calls, calls, launches) if kernel_calls else _of_cpu(calls):
        # Libraries that PyTorch does not run have groups of their own, which a trace does not name.
        rows.append(row | _facts(row["collective"], named, groups, only if collective(row["name"]) else None))
    if len({row["communicator"] for row in rows if row["communicator"]}) > 1:
        for row in rows:
            if row["communicator"]:
                row["seq"] = -1  # numbers of several groups that cannot be distinguished
    return typed(sorted(rows, key=lambda row: row["start"]), COLLECTIVE_COLUMNS)


def _of_kernels(
    work: GpuWork,
    kernel_calls: Mapping[int, Arguments],
    calls: Sequence[HostCall],
    launches: Mapping[int, tuple[str, int]],
) -> Iterator[tuple[_Row, _Named]]:
    by_thread: dict[str, list[HostCall]] = defaultdict(list)
    by_id: dict[Any, list[tuple[str, Arguments]]] = defaultdict(list)
    for call in calls:
        by_thread[call[1]].append(call)
        by_id[call[4].external_id].append((call[0], call[4]))
    for place, of_kernel in kernel_calls.items():
        name, correlation = work.names[work.name[place]], int(work.more["correlation_id"][place])
        row = {column: int(getattr(work, column)[place]) for column in ("device", "stream", "start", "end")}
        kind = kernel_collective(name) or ""
        named = [("", of_kernel)]
        if correlation in launches:
            thread, moment = launches[correlation]
            last = bisect.bisect_right(by_thread[thread], moment, key=lambda call: call[2])
            begun = reversed(by_thread[thread][max(0, last - _DEEPEST) : last])
            around = [(call[0], call[4]) for call in begun if call[3] >= moment]  # the innermost first
            named += sorted(around, key=lambda call: call[1].elements_in is None)
        elif of_kernel.external_id is not None:  # kernels carry PyTorch's id where the launch is not in the trace
            named += by_id[of_kernel.external_id]
        # An all-to-all is sends and receives, and RCCL's kernels are all of one name: PyTorch says which it was.
        if kind in ("send_recv", "other"):
            kind = next((other for one, args in named if (other := _host_kind(one, args))), kind)
        yield {**row, "name": name, "collective": kind, "correlation_id": correlation}, named


def _of_cpu(calls: Sequence[HostCall]) -> Iterator[tuple[_Row, _Named]]:
    """The spans of gloo and MPI; of equal ones inside each other the outer one."""
    reached: dict[tuple[str, str], int] = {}
    for name, thread, start, end, args in calls:
        kind = collective(name) if _ON_CPU.match(name) else None
        if kind is None or reached.get((thread, kind), start - 1) >= end:
            continue
        reached[thread, kind] = end
        row = {"name": name, "device": -1, "stream": -1, "start": start, "end": end, "correlation_id": -1}
        yield {**row, "collective": kind}, [(name, args)]


def _host_kind(name: str, args: Arguments) -> str | None:
    if args.operation:
        return collective(f"nccl:{args.operation}")
    return collective(name) if name.lower().startswith("nccl:") else None


def _facts(kind: str, named: _Named, groups: Mapping[str, ProcessGroup], only: ProcessGroup | None) -> _Row:
    """Put together what the kernel and the host's calls around its launch say; `only`: where nothing names a group."""
    dtype = group = communicator = ""
    size = seq = -1
    for name, args in named:
        dtype, group = dtype or _text(args.dtype), group or _text(args.group)
        size = size if size > 0 else _count(args.group_size)
        seq = seq if seq >= 0 else _count(args.seq)
        # PyTorch 2.1 and 2.2 name no argument: tensors, number, group's address, rank, "", splits, splits, ranks.
        if name == "record_param_comms" and not group:
            types, inputs = msgspec.json.decode(args.types) or [], msgspec.json.decode(args.inputs) or []
            if len(inputs) == 8 and types[1:] == [
                "Scalar",
                "Scalar",
                "Scalar",
                "",
                "ScalarList",
                "ScalarList",
                "Scalar",
            ]:
                seq, size, communicator = _count(inputs[1]), _count(inputs[7]), _text(inputs[2])
    listed = groups.get(group)
    if not group and not communicator and only is not None:
        group, listed = only.name, only
    if size <= 0 and listed is not None:
        size = listed.size
    counted = -1
    for name, args in named:
        if counted < 0:
            counted, dtype = _bytes(kind, name, args, dtype, max(size, 0))
    facts = {"bytes": counted, "dtype": dtype, "group": group, "group_size": size, "seq": seq}
    return {**facts, "communicator": communicator}


def _bytes(kind: str, name: str, args: Arguments, dtype: str, ranks: int) -> tuple[int, str]:
    """Bytes of one rank as COLLECTIVE_COLUMNS counts them, -1 where these arguments do not say; and the type."""
    width = _width(dtype)
    given, received = _count(args.elements_in), _count(args.elements_out)
    if max(given, received) > 0 and width:
        if kind in _BY_OUTPUT:
            return (received if received > 0 else given * ranks) * width or -1, dtype
        return (given if given > 0 else received) * width, dtype
    shapes, types = msgspec.json.decode(args.dimensions) or [], msgspec.json.decode(args.types) or []
    tensors = [  # lists of tensors do not say their type
        (math.prod(shape), kind_of)
        for shape, kind_of in zip(shapes, types, strict=False)
        if _width(kind_of) and all(type(extent) is int for extent in shape)
    ]
    if not tensors:
        return 0 if kind == "barrier" and max(given, received) == 0 else -1, dtype
    of_c10d = name.startswith("c10d::")  # output, input, ...
    if ":" not in name:
        return -1, dtype
    total = sum(elements * _width(kind_of) for elements, kind_of in tensors[: 1 if of_c10d else None])
    total *= ranks if kind in _BY_OUTPUT and not of_c10d else 1
    return total if total > 0 else -1, dtype or tensors[0][1]


def _width(dtype: Any) -> int:
    return _BYTES.get(str(dtype).lower().removeprefix("c10::"), 0)


def _count(value: Any) -> int:
    return max(whole(value), -1)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
