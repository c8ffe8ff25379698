"""`bertbench measure` under torchrun with two ranks, and what `compare` makes of the run."""

import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.diagnose.profiles import open_profile
from analysis.load import load_run
from analysis.metrics.comparison.runs import compare_runs, describe
from analysis.metrics.throughput import combine
from bench.cli.dispatch import result_of
from records.files import read_record
from records.run import RunDirectory

SCRIPT = """
import json, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ends = []
for (x,) in DataLoader(TensorDataset(torch.randn(60, 4)), batch_size=3, num_workers=1):
    time.sleep(0.05)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    ends.append(time.perf_counter())
with open(f"own-{dist.get_rank()}.json", "w") as file:
    json.dump(ends, file)
dist.destroy_process_group()
"""

pytestmark = pytest.mark.slow  # two ranks under torchrun
WINDOW = ("--profile", "--start", "4", "--stop", "6")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("measured")
    (folder / "train.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("RANK", raising=False)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
        result = result_of(["measure", "--out", "run", *WINDOW, "--timeout-seconds", "500", "--", *torchrun])
    assert result.code == 0, result.document["reason"]
    return folder, result.document


def test_every_rank_has_its_steps_and_the_trial_their_number(measured: tuple[Path, dict[str, Any]]) -> None:
    folder, document = measured
    (directory,) = RunDirectory(folder / "run").trials()
    assert directory.read_trial().world_size == document["world_size"] == 2
    assert directory.path.name == directory.read_trial().trial_id == document["trial_id"]
    assert read_record(directory.path.parents[1] / "sweep.json")["trials"] == [document["trial_id"]]
    assert document["log"] == str(directory.log) and directory.log.exists(), "not where it was written"
    assert [len(directory.read_steps(rank)) for rank in directory.ranks()] == [20, 20]
    assert directory.read_ranks()[0]["ranks"] == [0, 1] and directory.read_ranks()[1]["backend"] == "gloo"
    assert document["samples_per_step"] == 6, "three on each rank"
    assert document["steps_per_second"] == pytest.approx(1000 / document["step_time_ms_mean"])
    assert document["mfu"] is None and document["unknown"]["mfu"]


def test_a_steps_time_is_that_of_the_scripts_clock(measured: tuple[Path, dict[str, Any]]) -> None:
    import json

    import numpy as np

    (directory,) = RunDirectory(measured[0] / "run").trials()
    for rank in (0, 1):
        own = np.diff(json.loads((measured[0] / f"own-{rank}.json").read_text())) * 1000
        found = [row["step_time_ms"] for row in directory.read_steps(rank)][1:]
        assert float(np.median(found)) == pytest.approx(float(np.median(own)), rel=0.05)


def test_the_given_steps_are_profiled_on_every_rank_and_not_measured(measured: tuple[Path, dict[str, Any]]) -> None:
    (directory,) = RunDirectory(measured[0] / "run").trials()
    profile = measured[1]["profile"]
    assert profile["files"] == ["profile/trace-rank0.json.gz", "profile/trace-rank1.json.gz"] and not profile["problem"]
    assert measured[1]["window_start"] >= 7 and measured[1]["window_stop"] == 20, (
        "the first is warm-up, on a busy machine more"
    )
    profiled = [row["step_time_ms"] for row in combine({rank: directory.read_steps(rank) for rank in (0, 1)})[4:6]]
    assert profile["profiled_step_time_ms"] == pytest.approx(sum(profiled) / 2, rel=1e-6)
    opened = open_profile(directory)
    assert not opened.source.problems
    assert [timeline.steps["step"].tolist() for timeline in opened.source.timelines] == [[4, 5], [4, 5]]


def test_compare_names_the_script(measured: tuple[Path, dict[str, Any]]) -> None:
    run = RunDirectory(measured[0] / "run")
    (row,) = compare_runs(run, run)["rows"]
    assert (row["implementation"], row["time_ratio"], row["throughput_ratio"]) == ("train.py", 1.0, 1.0)
    assert describe(load_run(run)[0].row) == "train.py on 2 cpu"
