"""CUDA_VISIBLE_DEVICES in all its forms."""

import pytest
from support.refusals import refused

from bench.machine.devices import Devices, Gpu, find_devices, select_gpus

PRESENT = [
    Gpu("H200", "0", "GPU-aaaa1111-0000", 10, 0),
    Gpu("H200", "1", "GPU-bbbb2222-0000", 10, 1),
]


@pytest.mark.parametrize(
    ("wanted", "uuids"),
    [
        ("1,0", ["GPU-bbbb2222-0000", "GPU-aaaa1111-0000"]),
        (" 0 ", ["GPU-aaaa1111-0000"]),
        ("GPU-bbbb", ["GPU-bbbb2222-0000"]),
        ("gpu-aaaa1111-0000", ["GPU-aaaa1111-0000"]),
        ("MIG-cccc3333-0000", ["MIG-cccc3333-0000"]),
        ("", []),
    ],
)
def test_numbers_uuids_and_mig_names_are_found_in_the_order_given(wanted: str, uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in select_gpus(wanted, PRESENT)] == uuids


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("7", "7"), ("GPU-", "GPU-"), ("0,0", "0"), ("0,GPU-aaaa1111-0000", "GPU-aaaa1111-0000"), ("banana", "banana")],
)
def test_names_that_mean_nothing_are_refused_instead_of_dropped(wanted: str, name: str) -> None:
    with refused("option-value", "CUDA_VISIBLE_DEVICES", repr(name)):
        select_gpus(wanted, PRESENT)


def test_a_child_sees_exactly_its_devices_under_the_names_the_user_gave() -> None:
    devices = Devices("cuda", tuple(select_gpus("GPU-bbbb,0", PRESENT)), 8)
    assert devices.environment(1)["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb"
    assert devices.environment(2) == {"CUDA_VISIBLE_DEVICES": "GPU-bbbb,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with refused("device-missing", 3, "--devices 2"):
        devices.environment(3)


def test_world_sizes_double_up_to_every_gpu() -> None:
    assert Devices("cuda", (PRESENT[0],) * 6, 8).default_world_sizes() == (1, 2, 4, 6)
    assert Devices("cpu", (), 8).default_world_sizes() == (1,)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_mean_the_cpu_and_the_note_says_so(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    devices = find_devices()
    assert devices.kind == "cpu" and "hides every GPU" in devices.note
    with refused("device-missing", "--device cuda", "bertbench doctor"):
        find_devices("cuda")
