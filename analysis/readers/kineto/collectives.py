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

import numpy as np

from analysis.names import collective, kernel_collective
from analysis.readers.kineto.events import CommunicationArguments, HostCall, loose_json, whole
from analysis.timeline import COLLECTIVE_COLUMNS, ProcessGroup

if TYPE_CHECKING:
    import pandas as pd


# Operators of symmetric memory (PyTorch's SymmetricMemory.cpp) and of vLLM's own all-reduce: tensors, then texts.
_OF_PYTORCH = re.compile(r"symm_mem::")
_SYMMETRIC = re.compile(r"symm_mem::|_C_custom_ar::")
_ON_CPU = re.compile(r"(?:gloo|mpi|ucc)[:_]", re.IGNORECASE)
# What one rank receives is counted; all others count what one rank gives.
_BY_OUTPUT = ("all_gather", "gather")
_DEEPEST = 32
_MOST_RANKS = 1 << 20
_BYTES = {
    **dict.fromkeys(("double", "long", "int64", "complexfloat", "complex<float>", "long int", "unsigned long"), 8),
    **dict.fromkeys(("float", "int", "int32", "uint32", "complexhalf", "unsigned int"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "short int", "int16", "uint16", "unsigned short"), 2),
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("complexdouble", "complex<double>"), 16),
}


@dataclass(slots=True)
class _Facts:
    """What is known of one collective."""

    bytes: int = -1
    dtype: str = ""
    group: str = ""
    group_size: int = -1
    seq: int = -1
    communicator: str = ""


def process_groups(information: Mapping[str, Any], calls: Iterable[CommunicationArguments]) -> dict[str, ProcessGroup]:
    """Return the process groups that a trace lists, by name.

    Args:
        information: its distributedInfo.
        calls: arguments of its communication; they name groups that the list lacks.
    """
    listed = information.get("pg_config")
    found: dict[str, ProcessGroup] = {}
    for group in listed if isinstance(listed, list) else []:
        if isinstance(group, dict) and (name := _text(group.get("pg_name"))):
            ranks = _ranks(group.get("ranks"))
            size = max(_count(group.get("pg_size")), len(ranks)) or -1
            found[name] = ProcessGroup(name, _described(group.get("pg_desc")), size, ranks)
    for args in calls:
        name = _text(args.group)
        if not name or name in found:
            continue
        size, ranks = _count(args.group_size), _ranks(loose_json(args.ranks))
        first, stride = _count(args.first_rank), _count(args.rank_stride)
        if not ranks and first >= 0 and stride > 0 and 0 < size <= _MOST_RANKS:
            ranks = tuple(range(first, first + size * stride, stride))
        found[name] = ProcessGroup(name, _described(args.description), max(size, len(ranks)) or -1, ranks)
    return found


def _described(value: Any) -> str:
    text = _text(value).strip()[:200]
    return "" if text == "undefined" else text


def _ranks(value: Any) -> tuple[int, ...]:
    """A list of ranks, or the text of one; () where it is cut off ("[0, 1, ...]") or no list."""
    found = loose_json(value.encode()) if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > _MOST_RANKS:
        return ()
    ranks = [_count(rank) for rank in found]
    return tuple(sorted(ranks)) if min(ranks, default=-1) >= 0 else ()


def collectives(
    kernels: "pd.DataFrame",
    kernel_calls: Mapping[int, CommunicationArguments],
    host_calls: Sequence[HostCall],
    api: "pd.DataFrame",
    groups: Mapping[str, ProcessGroup],
) -> "pd.DataFrame":
    """Return the communication of a trace, in order of start, with COLLECTIVE_COLUMNS.

    Args:
        kernels: work on GPUs, in the order of the file.
        kernel_calls: arguments of the communication kernels by their row.
        host_calls: the host's calls of collectives.
        api: calls of the runtime and driver, with times of the same clock as the host calls.
        groups: process groups by name, of `process_groups`.
    """
    if kernel_calls:
        rows = list(_of_kernels(kernels, kernel_calls, host_calls, api, groups))
    else:
        rows = list(_of_cpu(host_calls, groups))
    if len({facts.communicator for _, facts in rows if facts.communicator}) > 1:
        for _, facts in rows:
            if facts.communicator:
                facts.seq = -1  # numbers of several groups that cannot be distinguished
    return _frame(rows)


def _of_kernels(
    kernels: "pd.DataFrame",
    kernel_calls: Mapping[int, CommunicationArguments],
    host_calls: Sequence[HostCall],
    api: "pd.DataFrame",
    groups: Mapping[str, ProcessGroup],
) -> Iterable[tuple[dict[str, Any], _Facts]]:
    places = list(kernel_calls)
    columns = ("name", "device", "stream", "start", "end", "correlation_id")
    found = {name: kernels[name].to_numpy()[places] for name in columns[1:]}
    found["name"] = np.asarray(kernels["name"].array.take(places), dtype=object)
    around = _Around(host_calls)
    launches = _launches(api, found["correlation_id"]) if host_calls else {}
    for place, row in zip(places, _records(found), strict=True):
        kind = kernel_collective(str(row["name"])) or ""
        own = kernel_calls[place]
        said: list[tuple[str, CommunicationArguments]] = [("", own)]
        if row["correlation_id"] in launches:
            said += around.of(*launches[row["correlation_id"]])
        elif own.external_id is not None:
            said += around.named(own.external_id)
        # An all-to-all is sends and receives, and RCCL's kernels are all of one name: PyTorch says which it was.
        if kind in ("send_recv", "other"):
            kind = next((told for name, args in said if (told := _host_kind(name, args))), kind)
        # PyTorch's groups are those of the libraries that it runs; others have their own, which a trace does not name.
        only = _only(groups) if collective(str(row["name"])) or any(_OF_PYTORCH.match(n) for n, _ in said) else None
        yield row | {"collective": kind}, _facts(kind, said, groups, only)


def _of_cpu(
    host_calls: Sequence[HostCall], groups: Mapping[str, ProcessGroup]
) -> Iterable[tuple[dict[str, Any], _Facts]]:
    """The spans of gloo and MPI; of equal ones inside each other the outer one."""
    reached: dict[tuple[str, str], int] = {}
    for name, thread, start, end, said in sorted(host_calls, key=lambda call: (call[2], -call[3])):
        kind = collective(name) if _ON_CPU.match(name) else None
        if kind is None or reached.get((thread, kind), start - 1) >= end:
            continue
        reached[thread, kind] = end
        row = {"name": name, "device": -1, "stream": -1, "start": start, "end": end, "correlation_id": -1}
        yield row | {"collective": kind}, _facts(kind, [(name, said)], groups, _only(groups))


def _only(groups: Mapping[str, ProcessGroup]) -> ProcessGroup | None:
    """The group where nothing names one; of several equally large ones only the size is known."""
    sizes = {group.size for group in groups.values()}
    if len(groups) == 1:
        return next(iter(groups.values()))
    return ProcessGroup("", size=sizes.pop()) if len(sizes) == 1 else None


def _records(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table, row, strict=True)) for row in zip(*(table[name].tolist() for name in table), strict=True)]


def _host_kind(name: str, said: CommunicationArguments) -> str | None:
    if said.operation:
        return collective(f"nccl:{said.operation}")
    return collective(name) if name.lower().startswith("nccl:") else None


def _facts(
    kind: str,
    said: Sequence[tuple[str, CommunicationArguments]],
    groups: Mapping[str, ProcessGroup],
    only: ProcessGroup | None,
) -> _Facts:
    """Put together what the kernel and the host's calls around its launch, best first, say.

    `only` is the group where nothing names one.
    """
    facts = _Facts()
    for name, args in said:
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
    for name, args in said:
        if facts.bytes < 0:
            facts.bytes = _size(kind, name, args, facts)
    return facts


def _read_inputs(args: CommunicationArguments, facts: _Facts) -> None:
    """PyTorch 2.1 and 2.2 name no argument: tensors, number, group's address, rank, "", splits, splits, ranks."""
    types, inputs = loose_json(args.types), loose_json(args.inputs)
    if not isinstance(types, list) or not isinstance(inputs, list) or len(inputs) != 8 or facts.group:
        return
    if types[1:] == ["Scalar", "Scalar", "Scalar", "", "ScalarList", "ScalarList", "Scalar"]:
        facts.seq, facts.group_size = _count(inputs[1]), _count(inputs[7])
        facts.communicator = _text(inputs[2])


def _size(kind: str, name: str, args: CommunicationArguments, facts: _Facts) -> int:
    """Bytes of one rank as COLLECTIVE_COLUMNS counts them; -1 where these arguments do not say."""
    width = _BYTES.get(facts.dtype.lower().removeprefix("c10::"), 0)
    given, received = _count(args.elements_in), _count(args.elements_out)
    if max(given, received) > 0 and width:
        if kind in _BY_OUTPUT:
            return (received if received > 0 else given * max(facts.group_size, 0)) * width or -1
        return (given if given > 0 else received) * width
    tensors = _of_symmetric(kind, name, _tensors(args)) if _SYMMETRIC.match(name) else _tensors(args)
    if not tensors:
        return 0 if kind == "barrier" and max(given, received) == 0 else -1
    if name.startswith("c10d::"):
        tensors = tensors[:1]  # output, input, ...
    elif ":" not in name:
        return -1
    facts.dtype = facts.dtype or tensors[0][1]
    total = sum(elements * _BYTES.get(kind_.lower().removeprefix("c10::"), 0) for elements, kind_ in tensors)
    if kind in _BY_OUTPUT and not name.startswith(("c10d::", "symm_mem::")):
        total *= max(facts.group_size, 0)
    return total if 0 < total < 2**62 else -1


def _of_symmetric(kind: str, name: str, tensors: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Of an operator's tensors the one whose size counts: buffers of other all-to-alls have room for more than is sent,
    and a copying one has its symmetric buffer first."""
    if kind == "all_gather":
        return tensors[-1:]
    if kind in ("all_reduce", "reduce_scatter") or name.endswith("nvshmem_all_to_all"):
        return tensors[1:2] if "copy" in name else tensors[:1]
    return []


def _tensors(args: CommunicationArguments) -> list[tuple[int, str]]:
    """Elements and type of each tensor among the inputs; lists of tensors do not say their type."""
    shapes, types = loose_json(args.dimensions), loose_json(args.types)
    if not isinstance(shapes, list) or not isinstance(types, list):
        return []
    found = []
    for shape, kind in zip(shapes, types, strict=False):
        known = isinstance(kind, str) and kind.lower().removeprefix("c10::") in _BYTES
        if known and isinstance(shape, list) and all(type(extent) is int and 0 <= extent < 2**48 for extent in shape):
            found.append((math.prod(shape[:64]), kind))
    return found


def _count(value: Any) -> int:
    return max(whole(value), -1)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


class _Around:
    """Finds the host's calls that a moment of a thread lies in."""

    def __init__(self, host_calls: Sequence[HostCall]) -> None:
        self._by_thread: dict[str, list[HostCall]] = defaultdict(list)
        self._by_id: dict[Any, list[tuple[str, CommunicationArguments]]] = defaultdict(list)
        for call in sorted(host_calls, key=lambda call: (call[2], -call[3])):
            self._by_thread[call[1]].append(call)
            if call[4].external_id is not None:
                self._by_id[call[4].external_id].append((call[0], call[4]))
        self._starts = {thread: [call[2] for call in calls] for thread, calls in self._by_thread.items()}

    def of(self, thread: str, moment: int) -> list[tuple[str, CommunicationArguments]]:
        """Calls on the thread around the moment, the innermost first; those that name their arguments before others."""
        last = bisect.bisect_right(self._starts.get(thread, []), moment)
        near = self._by_thread.get(thread, [])[max(0, last - _DEEPEST) : last]
        around = [(call[0], call[4]) for call in reversed(near) if call[3] >= moment]
        return sorted(around, key=lambda call: call[1].elements_in is None)

    def named(self, external_id: Any) -> list[tuple[str, CommunicationArguments]]:
        """Calls with an id of PyTorch's, which kernels carry where the launch is not in the trace."""
        return self._by_id.get(external_id, [])


def _launches(api: "pd.DataFrame", correlations: Any) -> dict[int, tuple[str, int]]:
    known = np.flatnonzero(np.isin(api["correlation_id"].to_numpy(), correlations[correlations >= 0]))
    threads = np.asarray(api["thread"].array.take(known), dtype=object).tolist()
    columns = (api["correlation_id"].to_numpy()[known].tolist(), threads, api["start"].to_numpy()[known].tolist())
    return {correlation: (thread, start) for correlation, thread, start in zip(*columns, strict=True)}


def _frame(rows: Sequence[tuple[dict[str, Any], _Facts]]) -> "pd.DataFrame":
    import pandas as pd

    from analysis.timeline import empty

    if not rows:
        return empty(COLLECTIVE_COLUMNS)
    rows = sorted(rows, key=lambda row: row[0]["start"])
    columns: dict[str, Any] = {}
    for name, kind in COLLECTIVE_COLUMNS.items():
        values = [row[name] if name in row else getattr(facts, name) for row, facts in rows]
        columns[name] = np.array(values, dtype=np.int64) if kind == "int64" else pd.array(values, dtype="str")
    return pd.DataFrame(columns, copy=False)
