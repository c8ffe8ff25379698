"""GPU time by place in the model: worked by hand, by brute force on a public trace, by the profiler's own arrows."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.timelines import call, event, kernel, write

from analysis.diagnose.explain import comparison_findings
from analysis.metrics.comparison.traces import compare_traces, trace_diff
from analysis.metrics.kernels.modules import BETWEEN, OUTSIDE, class_rows, module_rows, node_makers
from analysis.readers.kineto.reader import read
from analysis.timeline import EVALUATES


def launch(number: int, moment: float, start: float, length: float, thread: int = 1, what: str = "Launch") -> list[Any]:
    api = call(moment, 1, number, f"cuda{what}") | {"tid": thread}
    return [api, kernel(f"kernel{number}", start, length, correlation=number)]


def numbered(name: str, start: float, length: float, number: int, owner: int = 0, thread: int = 1) -> dict[str, Any]:
    return event(name, start, length, args={"Fwd thread id": owner, "Sequence number": number}) | {"tid": thread}


def module(name: str, start: float, length: float) -> dict[str, Any]:
    return event(f"nn.Module: {name}", start, length, "python_function")


def step() -> list[Any]:
    """Two layers; their backward pass on a thread of autograd; an optimizer, a CUDA graph and a lone kernel."""
    return [
        module("Net_0", 0, 100), module("Linear_0", 10, 5), module("Block_0", 30, 60), module("Linear_1", 40, 20),
        numbered("aten::linear", 10, 5, 4), numbered("aten::addmm", 11, 3, 5), *launch(1, 12, 1000, 10),
        numbered("aten::addmm", 41, 8, 6), *launch(2, 42, 1010, 20), *launch(3, 70, 1030, 3),
        numbered("aten::mse_loss", 110, 10, 7), *launch(4, 112, 1033, 5),
        numbered(f"{EVALUATES}MseLossBackward0", 200, 10, 7, 1, 2), *launch(5, 205, 1040, 7, 2),
        numbered(f"{EVALUATES}AddmmBackward0", 220, 30, 6, 1, 2), *launch(6, 225, 1050, 40, 2),
        numbered(f"{EVALUATES}AddmmBackward0", 260, 30, 5, 1, 2), *launch(7, 265, 1100, 80, 2),
        event(f"{EVALUATES}torch::autograd::AccumulateGrad", 300, 9, args={}) | {"tid": 2}, *launch(8, 301, 1200, 2, 2),
        event("Optimizer.step#SGD.step", 400, 50, "user_annotation"), event("aten::_foreach_add_", 410, 20),
        *launch(9, 420, 1300, 100),
        module("Graphed_0", 500, 50), *launch(10, 510, 1400, 1000, what="GraphLaunch"),
        *launch(10, 510, 2500, 500)[1:],
        kernel("nowhere", 3000, 9, correlation=0),
    ]  # fmt: skip


def test_each_kernel_is_of_the_innermost_module_and_backward_kernels_of_the_forward_module(tmp_path: Path) -> None:
    rows = module_rows([read(write(tmp_path / "trace.json", step()))])
    found = {
        row.path.replace(BETWEEN, "/"): (row.own_ms * 1e3, row.total_ms * 1e3, row.backward_ms * 1e3, row.calls)
        for row in rows.itertuples()
    }
    assert {path: tuple(round(value) for value in values) for path, values in found.items()} == {
        "Net_0": (0, 153, 120, 1),
        "Net_0/Linear_0": (90, 90, 80, 1),  # called in 5 us: short modules are read too
        "Net_0/Block_0": (3, 63, 40, 1),
        "Net_0/Block_0/Linear_1": (60, 60, 40, 1),
        "Graphed_0": (1500, 1500, 0, 1),
        # The loss 12, of which 7 are its backward pass; AccumulateGrad 2, the optimizer 100 and the lone kernel 9.
        OUTSIDE: (123, 123, 7, 0),
    }
    assert list(found)[:4] == ["Net_0", "Net_0/Linear_0", "Net_0/Block_0", "Net_0/Block_0/Linear_1"]
    classes = class_rows(rows).set_index("name")
    assert classes.loc["Linear", "own_ms"] == pytest.approx(0.150) and classes.loc["Linear", "instances"] == 2
    assert classes.loc["Linear", "own_share"] == pytest.approx(150 / 1776)


def test_the_backward_pass_is_tied_as_by_the_arrows_of_the_profiler(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
        for _ in range(2):
            net(torch.randn(8, 16)).square().mean().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    document = json.loads(path.read_text())
    base = int(document.get("baseTimeNanoseconds", 0))
    arrows: dict[int, dict[str, int]] = {}
    for one in document["traceEvents"]:
        if one.get("cat") == "fwdbwd":
            arrows.setdefault(one["id"], {})[one["ph"]] = round(float(one["ts"]) * 1e3) + base
    timeline = read(path)
    evaluations, makers = node_makers(timeline.operators, {})
    expected = sorted((one["f"], one["s"]) for one in arrows.values())
    found = sorted(zip(evaluations["start"].tolist(), makers[:, 1].tolist(), strict=True))
    assert len(expected) >= 12 and [made for _, made in found] == [made for _, made in expected]
    starts = [start for start, _ in found]
    for (start, _), (node, _), following in zip(found, expected, [*starts[1:], 2**62], strict=True):
        assert start <= node < following  # an arrow ends at the node, within its evaluation
    rows = module_rows([timeline])
    for name in ("Linear_0", "LayerNorm_0", "GELU_0"):
        (row,) = [one for one in rows.itertuples() if one.name == name]
        assert 0 < row.backward_ms < row.total_ms and row.path.startswith("Sequential_0") and row.calls == 2


def test_two_traces_differ_by_place_and_the_changes_add_up(tmp_path: Path) -> None:
    slow = {"kernel6": 140, "kernel9": 70}
    slower = [
        one | {"dur": slow[one["name"]], "args": {**one["args"], "stream": 8}} if one["name"] in slow else one
        for one in step()
    ]
    slower += [module("New_0", 600, 9), *launch(11, 601, 3500, 5)]
    sides = [[read(write(tmp_path / f"{name}.json", events))] for name, events in (("a", step()), ("b", slower))]
    rows = trace_diff(*sides, "path").set_index("path")
    layer = BETWEEN.join(("Net_0", "Block_0", "Linear_1"))
    assert rows.loc[layer, ["delta_ms", "total_delta_ms"]].tolist() == pytest.approx([0.1, 0.1])
    assert rows.loc["Net_0", ["delta_ms", "total_delta_ms"]].tolist() == pytest.approx([0, 0.1])
    assert rows.index[0] == layer and rows.loc["New_0", "change"] == "added"
    assert rows["delta_ms"].sum() == pytest.approx(0.1 - 0.03 + 0.005)
    assert "changed_places" in {one.name for one in comparison_findings(compare_traces(*sides))}
