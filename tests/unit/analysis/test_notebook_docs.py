"""The examples of docs/how-to/notebooks.md run as they stand there, on traces made for them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.profiles import SAMPLES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "notebooks.md"
BLOCKS = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def trace(rank: int) -> str:
    """Two steps of 1 ms: computation 100 to 500 us of each, an all-reduce from 400 to 600 + 10 x rank us."""
    events: list[dict[str, Any]] = []

    def add(name: str, category: str, start: int, length: int, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 1}
        events.append({**event, "args": args})

    for step in range(2):
        begin = 1000 * step
        add(f"ProfilerStep#{step}", "user_annotation", begin, 1000)
        add("bertbench:forward", "user_annotation", begin + 10, 300)
        add("aten::mm", "cpu_op", begin + 20, 100)
        add("cudaLaunchKernel", "cuda_runtime", begin + 30, 5, correlation=2 * step + 1)
        add("sgemm", "kernel", begin + 100, 400, device=rank, stream=7, correlation=2 * step + 1)
        reduction = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 2}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        add(name, "kernel", begin + 400, 200 + 10 * rank, device=rank, stream=20, correlation=2 * step + 2, **reduction)
    return json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "traces").mkdir()
    for rank in range(2):
        (tmp_path / "traces" / f"rank{rank}.json").write_text(trace(rank))
    SAMPLES["ncu"](tmp_path / "counters.csv")
    SAMPLES["nvidia-smi"](tmp_path / "gpus.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_run_and_give_what_they_promise(folder: Path) -> None:
    blocks = BLOCKS.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 9
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"notebooks.md, example {number + 1}", "exec"), names)
    assert [timeline.rank for timeline in names["source"].timelines] == [0, 1]
    # From 500 to 600 us of two steps nothing computes on rank 0.
    assert names["total_ns"](names["exposed"]) == 200_000
    assert len(names["frame"]) == len(names["by_rank"]) == 2 and len(names["steps"]) == 2
    assert len(names["power"]) == 20 and (folder / "out.json.gz").exists()
