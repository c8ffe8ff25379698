"""The first 20 losses of every task: preset tiny, fp32, one thread.

On one machine they are equal in every bit. Another processor adds up in another order, so they are compared to 1e-5.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frozen import check

TRAININGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pretrain": ("pretrain", "pretrain", {}),
    "squad": ("squad", "squad", {}),
    "glue cola": ("glue", "glue", {"task": "cola"}),
    "glue stsb": ("glue", "glue", {"task": "stsb"}),
    "gap concat": ("gap", "gap", {"head": "concat"}),
    "gap mul": ("gap", "gap", {"head": "mul"}),
    "gap segment": ("gap", "gap", {"head": "segment"}),
    "classify": ("classify", "csv", {}),
}
"""By name: the task, its data, and its options."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TRAININGS)
def test_losses(name: str, own: dict[str, tuple[Path, dict[str, str]]], tmp_path: Path) -> None:
    from support.training_runs import Recorder, run, settings

    from bert.tasks import given_options, resolve_options, task_data

    task, data, given = TRAININGS[name]
    options = given_options(task, given)
    source = task_data(task).inspect(str(own[data][0]), None, options)
    wanted = settings(
        source.source, task=task, task_options=resolve_options(task, options, source), seq_len=source.seq_len,
        max_predictions=source.max_predictions or 1, vocab_size=source.vocab_size, micro_batch_size=8, steps=20,
        save_every=1000, seed=42, optimizer="lamb" if task == "pretrain" else "adamw",
    )  # fmt: skip
    recorder = Recorder()
    run(wanted, tmp_path, recorder)
    losses = [event.loss for event in recorder.progress]
    assert len(losses) == 20
    check("losses", name, losses, rtol=1e-5)
