"""Processes per node, from options and from files, and the choice of the least busy GPUs."""

import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.refusals import refused

from bench.launch.layout import least_busy, read_layout
from bench.machine.devices import Devices, Gpu
from common.errors import Code


@pytest.mark.parametrize(
    ("here", "others", "node_rank", "counts"),
    [
        (None, (), None, (4,)),
        (1, ("2",), None, (1, 2)),
        (2, ("1",), 1, (1, 2)),
        (3, ("1", "2", "4"), 2, (1, 2, 3, 4)),
        (None, ("1",), 1, (1, 4)),
    ],
)
def test_every_node_comes_to_the_same_counts(
    here: int | None, others: tuple[str, ...], node_rank: int | None, counts: tuple[int, ...]
) -> None:
    assert read_layout(here, others, node_rank, default_here=4) == (counts, node_rank or 0)


@pytest.mark.parametrize(
    ("here", "others", "node_rank", "facts"),
    [
        (0, (), None, ("0 processes",)),
        (1, ("-2",), None, ("-2 processes",)),
        (1, ("2", "hosts.json"), None, ("--other-gpus 2 hosts.json", "JSON")),
        (1, ("2",), 2, ("--node-rank 2", "0 to 1")),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    here: int | None, others: tuple[str, ...], node_rank: int | None, facts: tuple[object, ...]
) -> None:
    with refused("option-value", *facts):
        read_layout(here, others, node_rank, 1)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a file of hosts on a node that is node-b; return the option that names it."""
    monkeypatch.setattr("bench.launch.layout.names_of_this_node", lambda: {"localhost", "node-b", "10.0.0.2"})

    def write(content: Any) -> tuple[str, ...]:
        path = tmp_path / "hosts.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8-sig")
        return (str(path),)

    return write


@pytest.mark.parametrize("name", ["NODE-B", "10.0.0.2", "localhost"])
def test_a_node_finds_itself_in_a_file_under_any_of_its_names(table: Any, name: str) -> None:
    assert read_layout(None, table({"node-a": 4, name: 2, "node-c": 1}), None, 8) == ((4, 2, 1), 1)


def test_a_node_that_is_not_in_the_file_adds_all_its_gpus_and_options_come_before_it(table: Any) -> None:
    others = table({"node-a": 4, "node-bb": 1})
    assert read_layout(None, others, None, 8) == ((8, 4, 1), 0)
    assert read_layout(3, others, 1, 8) == ((4, 3, 1), 1)
    for content, code in (("not JSON", "file-damaged"), ([1, 2], "file-format"), ({"node-a": 0}, "option-value")):
        with refused(cast(Code, code), "hosts.json"):
            read_layout(None, table(content), None, 1)


GIB = 2**30
# Free memory in bytes, percent busy; None where NVML fails.
LOADS: dict[str, tuple[int, int] | None] = {
    "GPU-0": (79 * GIB + 5, 90),
    "GPU-1": (10 * GIB, 0),
    "GPU-2": (79 * GIB, 0),
    "GPU-3": None,
    "GPU-4": (79 * GIB + 700, 90),
}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    nvml = types.ModuleType("pynvml")

    def load(handle: str) -> tuple[int, int]:
        known = LOADS[handle]
        if known is None:
            raise RuntimeError("GPU is lost")
        return known

    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(free=load(handle)[0]),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=load(handle)[1]),
    }
    for name, function in functions.items():
        monkeypatch.setattr(nvml, name, function, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = tuple(Gpu("H200", str(number), f"GPU-{number}", 80 * GIB) for number in range(5))
    return Devices("cuda", gpus, 8)


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(1, ["2"]), (2, ["0", "2"]), (3, ["0", "2", "4"]), (5, ["0", "1", "2", "3", "4"])],
)
def test_free_memory_decides_then_utilization_then_the_number(devices: Devices, count: int, chosen: list[str]) -> None:
    used = least_busy(devices, count)
    assert used.environment(count)["CUDA_VISIBLE_DEVICES"] == ",".join(chosen)
