"""A large trace that is read for a window: what is kept of it says the same as the whole trace."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import shared_files
from support.kineto_events import event, write

from analysis.diagnose.explain import explain, in_window
from analysis.readers.kineto import reader
from analysis.sources import Source, open_sources
from analysis.window_choice import parse_window
from common.errors import InputError, StorageError

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
TRACES = shared_files.TRACES / "kineto/hta"


def launched(number: int, called: float, start: float, length: float, name: str = "sgemm", **more: Any) -> list[Any]:
    own = {"device": 0, "stream": 7 + number % 2, "correlation": number, "grid": [8, 1, 1], "block": [64, 1, 1]}
    return [
        event("cudaLaunchKernel", called, 4, "cuda_runtime", pid=1, tid=1, args={"correlation": number}),
        event(name, start, length, "kernel", pid=0, tid=7, args=own | more),
    ]


def trace(path: Path, steps: int = 6) -> Path:
    """Steps of 1 ms with a module in a range around all of them, a backward pass on its own thread, an all-reduce, a
    copy; the GPU runs 600 us behind; the last step is empty; one kernel waits 3 ms and runs for two steps."""
    found = [event("the whole run", 0, 1000 * steps, "user_annotation", pid=1, tid=1)]
    found += launched(9001, 20, 3100, 1500, "elementwise_kernel")
    found += launched(0, 5, 6, 10)  # without a correlation id
    found.append(
        event("early_kernel", 1, 30, "kernel", pid=0, tid=7, args={"device": 0, "stream": 7, "correlation": 8888})
    )
    for step in range(steps):
        at, number = 1000 * step, 100 * step
        found.append(event(f"ProfilerStep#{step + 10}", at, 990, "user_annotation", pid=1, tid=1))
        found.append(event(f"nn.Module: Layer_{step % 2}", at + 50, 300, "python_function", pid=1, tid=1))
        for one in range(10):
            begin, node = at + 60 + 28 * one, 1000 + number + one
            inputs = {"Input Dims": [[8, 64], [64, 64]], "Input type": ["float", "float"], "Sequence number": node}
            found.append(event("aten::linear", begin, 20, pid=1, tid=1, args=inputs))
            found.append(event("aten::mm", begin + 2, 12, pid=1, tid=1, args=inputs))
            found += launched(number + 1 + one, begin + 3, begin + 600, 15 + one)
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            back = {"Sequence number": node, "Fwd thread id": 1}
            found.append(event(name, at + 500 + 30 * one, 25, pid=1, tid=2, args=back))
            found += launched(number + 31 + one, at + 505 + 30 * one, at + 1100 + 30 * one, 20, "elementwise_kernel")
            found[-2]["tid"] = 2
        found.append(event("bertbench:optimizer", at + 850, 100, "user_annotation", pid=1, tid=1))
        group = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Process Group Name": "0"}
        found += launched(number + 71, at + 860, at + 1420, 60, NCCL, **group, **{"Group size": 2})
        found += launched(number + 72, at + 900, at + 1490, 7, "Memcpy HtoD (Pageable -> Device)")
        found[-1] |= {"cat": "gpu_memcpy"}
    found.append(event("ProfilerStep#99", 1000 * steps, 3, "user_annotation", pid=1, tid=1))
    return write(path, found, deviceProperties=[{"id": 0, "name": "NVIDIA H100", "numSms": 132}])


def answers(source: Source, window: str) -> dict[str, Any]:
    """All that is said of the window."""
    found = explain(in_window(source, window))
    return {one.name: (one.sentence, one.table, [dataclasses.asdict(advice) for advice in one.advice]) for one in found}


def both(path: Path, window: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Source]:
    whole = open_sources(path)
    with monkeypatch.context() as patch:
        patch.setattr(reader, "SPILL_BYTES", 1000)
        return whole, open_sources(path, choice=parse_window(window))


def assert_equal_answers(whole: Source, kept: Source, window: str) -> None:
    assert kept.problems == whole.problems
    expected, found = answers(whole, window), answers(kept, window)
    assert list(found) == list(expected)
    for name, (sentence, table, advice) in expected.items():
        assert found[name][0] == sentence, name
        pd.testing.assert_frame_equal(found[name][1], table, check_exact=True, check_categorical=False)
        assert [one | {"saves": None} for one in found[name][2]] == [one | {"saves": None} for one in advice]


WINDOWS = [
    "step:13", "step:12..13", "step:10", "step:15", "range:bertbench:optimizer", "range:*optim*",
    "range:aten::mm", "range:ProfilerStep#12", "3100us..3200us", "2ms..2.9ms", "3.5ms..3.9ms", "0us..5us", "5.9ms..9ms",
    "range:the whole run",
]  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_kept_says_what_the_whole_trace_says(
    window: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, kept = both(trace(tmp_path / "trace.json"), window, monkeypatch)
    assert_equal_answers(whole, kept, window)
    if window not in ("range:the whole run", "range:*optim*"):
        assert len(kept.timelines[0].operators) < len(whole.timelines[0].operators)


GROUP = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Process Group Name": "0"}
COLLECTIVES = {  # each beside computation outside the window, 2..3 ms
    "of a CPU ends after it": [
        event("gloo:all_reduce", 2500, 2000, "user_annotation", pid=1, tid=3),
        *(event("aten::mm", at, 40, pid=1, tid=1) for at in range(2000, 6000, 100)),
    ],
    "of an unknown call ends after it": [
        launched(900, 0, 2500, 2000, NCCL, **GROUP)[1],
        *(one for at in range(0, 6000, 100) for one in launched(1 + at, at, at + 10, 40)),
    ],
    "begins before it by the GPU's clock": [
        *launched(900, 2010, 1500, 2000, NCCL, **GROUP),
        *(one for at in range(0, 6000, 100) for one in launched(1 + at, at, at + 10, 40)),
    ],
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_hides_a_collective_is_kept_outside_of_the_window_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [event("aten::add", 0, 1, pid=1, tid=1), event("aten::add", 9000, 1, pid=1, tid=1)]
    whole, kept = both(write(tmp_path / "trace.json", [*ends, *COLLECTIVES[name]]), "2ms..3ms", monkeypatch)
    assert_equal_answers(whole, kept, "2ms..3ms")
    assert answers(whole, "2ms..3ms")["buckets"][1]["exposed_ms"].tolist() == [2 - 20 * 0.04]


def test_memory_grows_with_the_window_and_not_with_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for steps in (20, 60):
        _, kept = both(trace(tmp_path / f"{steps}.json", steps), "step:14..15", monkeypatch)
        rows.append([len(getattr(kept.timelines[0], name)) for name in ("operators", "kernels", "api", "host")])
    growth = [after - before for before, after in zip(*rows, strict=True)]
    assert max(growth) <= 4 * 40  # of each step one launch, its work and what ran around it; all would be 21 to 31


def test_work_that_was_launched_long_before_the_window_keeps_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, kept = both(trace(tmp_path / "trace.json"), "step:13", monkeypatch)
    assert 9001 in kept.timelines[0].api["correlation_id"].tolist()
    assert "the whole run" in kept.timelines[0].ranges["name"].tolist()


@pytest.mark.parametrize("window", ["step:77", "range:nothing", "90ms..91ms"])
def test_a_window_that_is_not_there_is_refused_with_the_same_words(
    window: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for source in both(trace(tmp_path / "trace.json"), window, monkeypatch):
        with pytest.raises(InputError) as caught:
            in_window(source, window)
        said.append((caught.value.code, str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.public
@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("timeline_analysis__sampled_rank-0.json.gz", "step:551"),
        ("timeline_analysis__sampled_rank-0.json.gz", "range:*back*"),
        ("timeline_analysis__sampled_rank-0.json.gz", "274648us..335472us"),
        ("nccl_parser_config__nccl_data.json.gz", "range:*back*"),
        ("cpu_only__rank-34.old_b8cce2cd.json.gz", "step:554"),
        ("cpu_only__rank-34.old_b8cce2cd.json.gz", "384844us..577267us"),
        ("rank_unavailable__rank_not_found.json.gz", "range:*back*"),
        ("trace_compare__base__base.json.gz", "range:nccl:all_reduce"),
    ],
)
def test_public_traces_say_the_same(name: str, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, kept = both(TRACES / name, window, monkeypatch)
    assert_equal_answers(whole, kept, window)


def test_a_full_disk_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "trace.json")
    monkeypatch.setattr(reader, "SPILL_BYTES", 1000)

    class Full:
        def seek(self, _: int) -> None: ...

        def write(self, _: bytes) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(StorageError, match="TMPDIR") as caught:
        open_sources(path, choice=parse_window("step:12"))
    assert caught.value.code == "disk-full"


def test_a_missing_folder_for_temporary_files_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace(tmp_path / "trace.json")
    monkeypatch.setattr(reader, "SPILL_BYTES", 1000)

    def missing(**_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", missing)
    with pytest.raises(StorageError, match="TMPDIR") as caught:
        open_sources(path, choice=parse_window("step:12"))
    assert caught.value.code == "write-failed"


def test_a_trace_that_does_not_fit_names_its_steps_and_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace(tmp_path / "trace.json")
    monkeypatch.setattr("analysis.readers.columns._ALWAYS_BYTES", 1000)
    monkeypatch.setattr("analysis.readers.columns.available_bytes", lambda: 10)
    with pytest.raises(InputError, match="steps 10 to 99") as caught:
        open_sources(path)
    assert caught.value.code == "file-limit"
    assert f"bertbench analyze {path} --window step:13" in str(caught.value)
