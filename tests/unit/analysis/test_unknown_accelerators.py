"""Traces of accelerators that are not understood are refused by name, never told as runs on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import check_refusal, refused
from test_kineto_reader import event, write

from analysis.readers.kineto.reader import read
from analysis.sources import open_sources
from bench.cli.main import run

GPU = {"device": 0, "stream": 7, "correlation": 5}


def host(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """A step of 10 ms whose operators fill 9.89 of them: 98.9 % of a run on a CPU."""
    return [event("ProfilerStep#1", 0, 10_000, "user_annotation"), event("aten::mm", 0, 9_890), *more]


def times(category: str, count: int, **arguments: Any) -> list[dict[str, Any]]:
    return [event(f"{category} {n}", 10 * n, 8, category, pid=0, tid=3, args=arguments) for n in range(count)]


@pytest.mark.parametrize(
    ("events", "named"),
    [
        # libkineto/include/ActivityType.h: "MTIA ondevice CCP events", "host side MTIA runtime events".
        (
            [*times("mtia_ccp_events", 1234, stream=1, device=0), *times("mtia_runtime", 56)],
            ["MTIA activity", "mtia_ccp_events: 1,234 events", "mtia_runtime: 56 events"],
        ),
        (times("hpu_op", 3), ["HPU", "hpu_op: 3 events"]),
        (times("privateuse1_runtime", 2), ["PrivateUse1", "privateuse1_runtime: 2 events"]),
        (times("glow_runtime", 1), ["Glow", "glow_runtime: 1 event"]),
        (times("acme_kernel", 4), ["an accelerator that is not known", "acme_kernel: 4 events"]),
        # Its name says nothing, its events are on a stream of a device.
        (times("acme", 4, stream=2), ["an accelerator that is not known", "acme: 4 events"]),
    ],
)
def test_an_accelerator_that_is_not_understood_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[dict[str, Any]], named: list[str]
) -> None:
    path = write(tmp_path / "rank0.json", host(*events))
    for command in ("analyze", "allreduce", "perfetto"):
        given = [command, str(path), *(("-o", str(tmp_path / "out.json")) if command == "perfetto" else ())]
        assert run(given) == 2
        said = capsys.readouterr()
        # What is there, and what can be read instead; no share of a CPU run.
        check_refusal(said.err, "trace-unsupported", *named, "CUDA", "ROCm", "CPU")
        assert "98.9" not in said.out + said.err


def test_a_folder_whose_ranks_are_all_refused_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", host(*times("mtia_ccp_events", 7)))
    assert run(["analyze", str(tmp_path)]) == 2
    check_refusal(capsys.readouterr().err, "data-missing", "mtia_ccp_events: 7 events")


def test_of_several_traces_the_refused_one_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", host(*times("mtia_ccp_events", 7)))
    write(tmp_path / "rank1.json", host(*times("kernel", 3, **GPU)))
    found = open_sources(tmp_path)
    assert len(found.timelines) == 1 and len(found.timelines[0].kernels) == 3
    assert any("rank0.json" in text and "MTIA" in text for text in found.problems)


def test_events_of_an_unknown_category_beside_kernels_are_left_out_and_said(tmp_path: Path) -> None:
    events = host(*times("kernel", 3, **GPU), *times("acme_kernel", 12, **GPU), *times("notes", 2))
    found = read(write(tmp_path / "rank0.json", events))
    assert len(found.kernels) == 3
    (said,) = (text for text in found.problems if "not understood" in text)
    assert "acme_kernel: 12 events" in said and "notes: 2 events" in said


def test_why_there_is_no_communication_is_not_the_unknown_category(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rank0.json", host(*times("kernel", 3, **GPU), *times("acme_kernel", 12)))
    assert run(["allreduce", str(path), "--json"]) == 0
    (reason,) = (text for text in json.loads(capsys.readouterr().out)["problems"] if "no communication" in text)
    assert "acme" not in reason and "NVSHMEM" in reason


# All that Kineto writes of a run on a CPU and around the work of a GPU; "ac2g" and "fwdbwd" are arrows.
ORDINARY = (
    "python_function", "overhead", "Trace", "ac2g", "fwdbwd", "gpu_user_annotation", "cuda_sync", "cuda_event",
    "cpu_instant_event", "external_correlation", "",
)  # fmt: skip


def test_a_run_on_a_cpu_is_still_read_without_a_note(tmp_path: Path) -> None:
    found = read(write(tmp_path / "rank0.json", host(*(event("x", 1, 1, name) for name in ORDINARY))))
    assert len(found.operators) == 1 and not found.problems


def test_a_category_that_says_nothing_of_a_device_does_not_refuse_a_run_on_a_cpu(tmp_path: Path) -> None:
    found = read(write(tmp_path / "rank0.json", host(*times("notes", 2, text="a"))))
    assert len(found.operators) == 1 and any("notes: 2 events" in text for text in found.problems)


def test_kernels_of_an_xpu_are_read_with_the_calls_that_launched_them(tmp_path: Path) -> None:
    events = host(
        event("urEnqueueKernelLaunch", 100, 4, "xpu_runtime", args={"correlation": 9}),
        event("gemm_kernel", 120, 50, "kernel", pid=0, tid=1, args={"device": 0, "correlation": 9}),
    )
    found = read(write(tmp_path / "rank0.json", events, deviceProperties=[{"id": 0, "name": "Data Center GPU Max"}]))
    assert list(found.kernels["correlation_id"]) == [9] and list(found.api["correlation_id"]) == [9]
    assert not found.problems


def test_a_file_of_thousands_of_categories_names_a_few(tmp_path: Path) -> None:
    events = host(*(event("x", 1, 1, f"device {n} " + "y" * 500) for n in range(3000)))
    # 16 have a name of their own, 2,984 are counted together.
    with refused("trace-unsupported", "2,984 events") as caught:
        read(write(tmp_path / "rank0.json", events))
    assert len(str(caught.value)) < 1000
