"""The hook of `bertbench measure`, in processes of its own, against facts that the scripts know themselves."""

import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import script_loads
import torch

from bench.hook import on_path
from bench.hook.loads import Loads, count_batch
from bench.hook.on_path.sitecustomize import NOTES, VARIABLE
from bench.hook.recorder import BY_PASSES, PER_STEP, Recorder
from records.files import SCHEMA_VERSION
from records.run import TrialDirectory
from records.schema import STEP_COLUMNS

# One process makes everything that PyTorch is needed for: importing it is most of a test's time.
SCRIPT = """
import json, os, sys, time
import torch
from torch.utils.data import DataLoader

class Masks(torch.utils.data.Dataset):
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, i):
        mask = torch.tensor([1] * (1 + i % 6) + [0] * (5 - i % 6))
        return {"input_ids": torch.ones(6, dtype=torch.long), "attention_mask": mask}

class Outer(torch.optim.SGD):
    def step(self, closure=None):
        inner.step()
        return super().step(closure)

weight = torch.nn.Parameter(torch.ones(3))
inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
first, second = Outer([weight], lr=0.25), torch.optim.AdamW([weight], lr=0.1)
train, evaluation = Masks(20), Masks(12)
ends = []
for batch in DataLoader(train, batch_size=4):
    time.sleep(0.05)
    weight.grad = torch.ones(3)
    first.step()
    ends.append(time.perf_counter())
    for _ in range(3):
        second.step()
    if len(ends) == 2:
        list(DataLoader(evaluation, batch_size=3))
scaler = torch.amp.GradScaler("cpu")
scaler.scale(weight.sum()).backward()
weight.grad = torch.full((3,), float("inf"))
scaler.step(first)
first.step(lambda: weight.sum())
child = os.fork()
if child == 0:
    weight.grad = torch.ones(3)
    first.step()
    os._exit(0)
os.waitpid(child, 0)
print(json.dumps(ends))
sys.stdout.flush()
os._exit(0)
"""


def hooked(folder: Path, *words: str, path: Path | None = None, **more: object) -> str:
    """Run Python with the hook; return its output."""
    settings = {"folder": str(folder), "columns": list(STEP_COLUMNS), "schema_version": SCHEMA_VERSION, **more}
    places = os.pathsep.join(str(place) for place in (Path(on_path.__file__).parent, path) if place)
    variables = {**os.environ, VARIABLE: json.dumps(settings), "PYTHONPATH": places}
    done = subprocess.run([sys.executable, *words], env=variables, stdout=-1, text=True, timeout=600, check=True)
    assert not {"problem", "unseen"} & {note.name for note in (folder / NOTES).iterdir()}
    return done.stdout


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrialDirectory, list[float]]:
    folder = tmp_path_factory.mktemp("trial")
    return TrialDirectory(folder), json.loads(hooked(folder, "-c", SCRIPT))


def test_steps_are_those_of_the_first_optimizer_alone(stepped: tuple[TrialDirectory, list[float]]) -> None:
    directory, ends = stepped
    rows = directory.read_steps(0)
    assert [row["step"] for row in rows] == list(range(len(ends) + 2)), "and one skipped, one with a closure"
    record = directory.read_ranks()[0]
    assert (record["steps"], record["steps_skipped"], record["other_optimizer_steps"]) == (7, 1, 15)
    assert record["optimizer"] == "Outer" and record["ranks"] == [0] and record["peak_memory_bytes"] > 2**20
    assert {row["learning_rate"] for row in rows} == {0.25}
    assert [row["optimizer_ms"] is None for row in rows] == [False] * 6 + [True], "a closure is not the update"
    assert "optimizer_ms" in record["unknown"]


def test_step_times_are_those_of_the_scripts_clock(stepped: tuple[TrialDirectory, list[float]]) -> None:
    directory, ends = stepped
    own = [1000 * (end - begin) for begin, end in itertools.pairwise(ends)]
    found = [row["step_time_ms"] for row in directory.read_steps(0)]
    apart = [abs(one / other - 1) for one, other in zip(found[1 : len(ends)], own, strict=True)]
    assert statistics.median(apart) < 0.05, "on a busy machine a process may wait between the two clocks"


def test_counts_are_those_of_the_loader_that_feeds_the_step(stepped: tuple[TrialDirectory, list[float]]) -> None:
    rows = stepped[0].read_steps(0)
    assert [row["samples"] for row in rows] == [4, 4, 4, 4, 4, 0, 0], "12 samples of an evaluation are none of training"
    kept = [1 + i % 6 for i in range(20)]
    assert [row["real_tokens"] for row in rows[:5]] == [sum(kept[i : i + 4]) for i in range(0, 20, 4)]
    assert {row["padded_tokens"] for row in rows[:5]} == {24}
    assert all(0 < row["data_wait_ms"] < row["step_time_ms"] for row in rows[:2])


def test_a_process_without_torch_leaves_only_a_note_and_runs_the_next_sitecustomize(tmp_path: Path) -> None:
    other = tmp_path / "site"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins\nbuiltins.seen = 'next'\n")
    assert hooked(tmp_path, "-c", "print(seen)", path=other).strip() == "next"
    assert [path.name for path in (tmp_path / NOTES).iterdir()] == ["python"]
    assert TrialDirectory(tmp_path).ranks() == []


ENDLESS = """
import time, torch
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.5)
try:
    while True:
        weight.grad = torch.ones(3)
        optimizer.step()
        time.sleep(0.01)
finally:
    print("cleaned up")
"""


def test_a_script_that_is_asked_to_stop_ends_after_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stop").touch()
    monkeypatch.setenv(PER_STEP, "[8, 100, 100]")
    assert hooked(tmp_path, "-c", ENDLESS, stop=str(tmp_path / "stop")) == "cleaned up\n"
    counts = [[row[name] for name in ("samples", "real_tokens")] for row in TrialDirectory(tmp_path).read_steps(0)]
    assert counts[0] == [8, 100], "what its user gives, without a loader"
    assert TrialDirectory(tmp_path).read_ranks()[0]["steps"] == len(TrialDirectory(tmp_path).read_steps(0)) > 0


# Its own clocks around the phases; the second half steps by a closure, as Lightning does.
PHASES = """
import json, sys, time
import torch
from torch.utils.data import DataLoader

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        time.sleep(0.02)
        return value * 2
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.03)
        with torch.enable_grad():
            torch.ones((), requires_grad=True).mul(2).backward()  # as checkpointing does: a part of the outer pass
        return gradient

class Update(torch.optim.SGD):
    def step(self, closure=None):
        loss = closure() if closure else None
        begin = time.perf_counter()
        time.sleep(0.01)
        own["optimizer"].append(time.perf_counter() - begin)
        return loss

own = {"forward": [], "backward": [], "optimizer": []}
weight = torch.nn.Parameter(torch.ones(3))
optimizer = Update([weight], lr=0.1)

def passes():
    begin = time.perf_counter()
    loss = Slow.apply(weight).sum()
    middle = time.perf_counter()
    loss.backward()
    own["forward"].append(middle - begin)
    own["backward"].append(time.perf_counter() - middle)
    return loss

for number, batch in enumerate(DataLoader(torch.ones(40, 1), batch_size=4)):
    if number % 2:
        optimizer.step(passes)
    else:
        passes()
        time.sleep(0.005)
        optimizer.step()
    list(DataLoader(torch.ones(2, 1)))
    time.sleep(0.02)
    torch.save(weight, sys.argv[1])
print(json.dumps(own))
"""


def test_the_phases_of_a_step_are_those_of_the_scripts_clocks(tmp_path: Path) -> None:
    (tmp_path / "phases.py").write_text(PHASES)
    own = json.loads(hooked(tmp_path, str(tmp_path / "phases.py"), str(tmp_path / "saved")))
    rows, record = TrialDirectory(tmp_path).read_steps(0), TrialDirectory(tmp_path).read_ranks()[0]
    assert [row["samples"] for row in rows] == [4] * 10
    for phase, times in own.items():
        apart = [row[f"{phase}_ms"] - 1000 * time for row, time in zip(rows, times, strict=True)]
        assert -0.1 < statistics.median(apart) < 2, phase
    assert record["unknown"].keys().isdisjoint({"forward_ms", "backward_ms", "optimizer_ms"})
    assert record["aside"]["checkpoints"]["count"] == 10
    assert record["libraries"]["torch"] == torch.__version__ and record["script"] == str(tmp_path / "phases.py")


class Event:
    """An event of a GPU that is 1 ms behind at each further one."""

    made = 0

    def __init__(self, **options: bool) -> None:
        Event.made += 1
        self.at = float(Event.made)

    def record(self, stream: object) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


def test_phases_on_a_gpu_are_those_between_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"trace": None, "loads": SimpleNamespace(Loads=Loads)}
    settings = {"folder": tmp_path, "columns": STEP_COLUMNS, "schema_version": SCHEMA_VERSION}
    recorder = Recorder(settings, lambda name, text="": pytest.fail(f"{name} {text}"), modules.get)
    for name, value in (("Event", Event), ("current_stream", lambda device: None)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**20)
    monkeypatch.setattr(os, "_exit", os._exit)  # what a claim sets is undone
    gpu = SimpleNamespace(type="cuda")
    optimizer = type("AdamW", (SimpleNamespace,), {})(
        param_groups=[{"params": [SimpleNamespace(device=gpu)], "lr": 0.1}]
    )
    recorder.has_optimizer = True
    for _ in range(4):
        loads = recorder.loads
        recorder.waited(time.perf_counter_ns(), loads.waited_ns, loads.returned, Loads(), [torch.ones(3)])
        for begins in (True, False):
            recorder.backward(begins)
        recorder.begin_update()
        recorder.end_step(optimizer)
    recorder.finish()
    rows = TrialDirectory(tmp_path).read_steps(0)
    assert [row["samples"] for row in rows] == [3] * 4
    # Events: end of the wait, begin and end of the pass, begin and end of the update, end of the step.
    assert [[row[f"{name}_ms"] for name in ("forward", "backward", "optimizer")] for row in rows[1:]] == [[1.0] * 3] * 3
    assert [row["step_time_ms"] for row in rows[2:]] == [6.0] * 2


HAND_WRITTEN = """
import torch
from torch.utils.data import DataLoader
weight = torch.ones(3, requires_grad=True)
for epoch in range(2):
    for batch in DataLoader(torch.ones(14, 1), batch_size=4):
        for part in batch.chunk(2):
            (weight.sum() * part.sum()).backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
    list(DataLoader(torch.ones(6, 1), batch_size=3))
"""


def test_without_an_optimizer_of_torch_a_step_is_the_passes_between_two_batches(tmp_path: Path) -> None:
    hooked(tmp_path, "-c", HAND_WRITTEN)
    rows, record = TrialDirectory(tmp_path).read_steps(0), TrialDirectory(tmp_path).read_ranks()[0]
    assert [row["samples"] for row in rows] == [4, 4, 4, 2] * 2
    assert record["optimizer"] == BY_PASSES and "optimizer_ms" in record["unknown"]
    assert all(0 < row["forward_ms"] + row["backward_ms"] < row["step_time_ms"] for row in rows)


# Accelerate as far as the hook knows it; the real one is in tests/slow.
ACCELERATE = """
class DataLoaderShard:
    def __init__(self, loader, skip_batches):
        self.loader, self.skip_batches = loader, skip_batches
    def __iter__(self):
        batches = iter(self.loader)
        number, current = 0, next(batches)
        while current is not None:
            following = next(batches, None)
            if number >= self.skip_batches:
                yield current
            number, current = number + 1, following
"""
READS_AHEAD = """
import json
import torch
from torch.utils.data import DataLoader, TensorDataset
from accelerate.data_loader import DataLoaderShard

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.5)
given, data = [], TensorDataset(torch.ones(22, 1))
for number, (x,) in enumerate(DataLoaderShard(DataLoader(data, batch_size=4), 1)):
    if number % 2 == 0:
        given.append(0)
    given[-1] += len(x)
    list(DataLoader(data, batch_size=3))
    if number % 2 == 1 or len(x) < 4:
        optimizer.step()
print(json.dumps(given))
"""


def test_a_batch_that_accelerate_reads_ahead_counts_in_the_step_that_it_feeds(tmp_path: Path) -> None:
    place = tmp_path / "site" / "accelerate"
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    (place / "data_loader.py").write_text(ACCELERATE)
    given = json.loads(hooked(tmp_path, "-c", READS_AHEAD, path=tmp_path / "site"))
    assert given == [8, 8, 2], "one of six batches is skipped, and the last has two samples"
    rows = TrialDirectory(tmp_path).read_steps(0)
    assert [row["samples"] for row in rows] == given, "not those read ahead, nor an evaluation's"


MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])


@dataclasses.dataclass
class Fields:
    label: Any
    input_ids: Any
    attention_mask: Any


class Graphs:
    """As a batch of PyTorch Geometric is: the nodes of all graphs in one tensor."""

    num_graphs = 3

    def to_dict(self) -> dict[str, Any]:
        return {"x": torch.zeros(17, 4), "ptr": torch.tensor([0, 5, 9, 17])}


PAIRS = {"query_input_ids": MASK, "query_attention_mask": MASK, "text_input_ids": MASK, "text_attention_mask": MASK}


@pytest.mark.parametrize(
    ("batch", "counts"),
    [
        (torch.zeros(5, 2), (5, None, None)),
        ([torch.zeros(5, 2), torch.zeros(5)], (5, None, None)),
        ({"x": [torch.zeros(3)], "y": 1}, (3, None, None)),
        ({"labels": torch.zeros(9), "input_ids": MASK, "attention_mask": MASK}, (2, 3, 6)),
        (({"input_ids": MASK}, torch.zeros(2)), (2, None, 6)),
        (Fields(torch.zeros(9), MASK, MASK), (2, 3, 6)),
        (SimpleNamespace(num_graphs=2, to_dict=dict), (2, None, None)),
        (Graphs(), (3, None, None)),
        (PAIRS, (2, 6, 12)),
        ({**PAIRS, "text_attention_mask": None}, (2, None, 12)),
        ({"input_ids": MASK, "attention_mask": MASK, "decoder_input_ids": torch.ones(2, 9)}, (2, 3, 6)),
        ("text", (None, None, None)),
        (torch.tensor(1.0), (None, None, None)),
    ],
)
def test_counts_of_a_batch(batch: Any, counts: tuple[int | None, ...]) -> None:
    assert count_batch(batch) == counts


SAMPLES = {
    "evaluation_of_the_training_set_by_another_loader": [4] * 5,
    "evaluation_of_the_training_set_by_the_same_loader": [4] * 5,
    "a_batch_taken_before_each_epoch": [4] * 10,
    "a_new_iterator_for_each_step": [4] * 5,
    "a_second_loader_that_is_read_now_and_then": [4] * 5,
    "accumulation_over_the_end_of_an_epoch": [8] * 5,
    "accumulation_with_workers_that_persist": [8] * 5,
    "a_loader_that_is_slow_to_begin_and_to_end": [4] * 10,
    "workers_that_are_slow_to_begin": [4] * 10,
    "evaluation_by_a_slow_loader": [4] * 5,
}


def test_a_step_counts_the_batches_that_it_trains_on_and_the_wait_for_all(tmp_path: Path) -> None:
    hooked(tmp_path, script_loads.__file__)
    steps = {loop.__name__: TrialDirectory(tmp_path).read_steps(rank) for rank, loop in enumerate(script_loads.LOOPS)}
    assert {loop: [row["samples"] for row in rows] for loop, rows in steps.items()} == SAMPLES
    waits = {loop: [row["data_wait_ms"] for row in rows] for loop, rows in steps.items()}
    slow = waits["a_loader_that_is_slow_to_begin_and_to_end"]
    assert slow[0] >= 200 and slow[5] >= 400, "its beginning; its end and the next beginning"
    workers = waits["workers_that_are_slow_to_begin"]
    assert workers[0] >= 200 and workers[5] >= 200
    evaluation = waits["evaluation_by_a_slow_loader"]
    assert evaluation[0] < 400 <= evaluation[3]
    assert all(
        row["data_wait_ms"] < row["step_time_ms"]
        for loop in list(SAMPLES)[-3:]
        for row in steps[loop]
        if row["step_time_ms"] is not None
    )
