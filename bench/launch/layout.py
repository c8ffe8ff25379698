"""Which node runs how many processes, and on which of its GPUs."""

import dataclasses
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from bench.machine.devices import Devices, Gpu, ask, nvml
from common.errors import InputError, UsageError
from common.reading import read_json

_HOSTS = dict[str, Annotated[int, msgspec.Meta(ge=1)]]


def in_words(counts: Sequence[int]) -> str:
    """Return '1 + 2 = 3 processes on 2 nodes' for the processes of each node."""
    total = f"{sum(counts)} process{'es' * (sum(counts) > 1)} on {len(counts)} node{'s' * (len(counts) > 1)}"
    return f"{' + '.join(map(str, counts))} = {total}" if len(counts) > 1 else total


def read_layout(
    here: int | None, others: Sequence[str], node_rank: int | None, default_here: int
) -> tuple[tuple[int, ...], int]:
    """Return the processes of each node in the order of their ranks, and the rank of this node.

    `others` are the processes of each other node in this order, or one JSON file of host -> processes. None is what the
    file says, else `default_here` processes and rank 0.
    """
    place = 0
    if len(others) == 1 and not others[0].lstrip("-").isdigit():
        hosts = _read_hosts(Path(others[0]))
        local = next((host for host in hosts if host.lower() in names_of_this_node()), None)
        if local is not None:
            place, default_here = list(hosts).index(local), hosts.pop(local)
        counts = list(hosts.values())
    else:
        try:
            counts = [int(word) for word in others]
        except ValueError as error:
            problem = f"--other-gpus {' '.join(others)}: give a number for each other node, or one JSON file of hosts"
            raise UsageError("option-value", problem) from error
    rank = place if node_rank is None else node_rank
    if not 0 <= rank <= len(counts):
        problem = f"--node-rank {rank} with {len(counts)} other nodes (--other-gpus): give 0 to {len(counts)}"
        raise UsageError("option-value", problem)
    counts.insert(rank, default_here if here is None else here)
    if min(counts) < 1:
        raise UsageError("option-value", f"{min(counts)} processes on a node: give at least 1, or leave the node out")
    return tuple(counts), rank


def _read_hosts(path: Path) -> dict[str, int]:
    remedy = 'give hosts and their processes, such as {"node-a": 4, "node-b": 2}'
    try:
        return msgspec.convert(read_json(path, remedy), _HOSTS)
    except msgspec.ValidationError as error:
        raise InputError("option-value", f"{path}: {error}: {remedy}") from error


def names_of_this_node() -> set[str]:
    """Return the names and addresses of this node, in lower case."""
    name = socket.gethostname()
    return {word.lower() for word in ("localhost", name, name.partition(".")[0], socket.getfqdn(), *interfaces())}


def interfaces() -> dict[str, str]:
    """Return the network interface of each address of this node."""
    import psutil

    return {one.address.partition("%")[0]: name for name, ones in psutil.net_if_addrs().items() for one in ones}


def least_busy(devices: Devices, count: int) -> Devices:
    """Return the devices with only the `count` least busy GPUs, in their original order.

    The order is free memory in whole GiB, then lower utilization, then lower number; GPUs of unknown load come last.
    """
    if count > len(devices.gpus):
        problem = f"{count} GPUs on a node that has {len(devices.gpus)}: correct this number on every node"
        raise UsageError("device-missing", problem)
    loads = [_load(gpu) for gpu in devices.gpus]
    chosen = sorted(sorted(range(len(loads)), key=loads.__getitem__)[:count])
    return dataclasses.replace(devices, gpus=tuple(devices.gpus[number] for number in chosen))


def _load(gpu: Gpu) -> tuple[int, int]:
    """Return what sorts GPUs from idle to busy."""
    handle = ask(lambda: nvml().nvmlDeviceGetHandleByUUID(gpu.uuid))
    free = ask(lambda: int(nvml().nvmlDeviceGetMemoryInfo(handle).free))
    percent = ask(lambda: int(nvml().nvmlDeviceGetUtilizationRates(handle).gpu))
    return (1 if free is None else -(free >> 30), 101 if percent is None else percent)
