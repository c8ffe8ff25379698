"""What to call after `bertbench train`: the same again, phase 2, a conversion, a prediction."""

import shlex
from typing import TYPE_CHECKING

from bench.implementations import OURS
from bench.plan.automatic import AUTO
from bench.run.trainer import Plan
from bert.tasks import check_task_options, task_data
from bert.tasks.data import Trained
from common.errors import InputError
from common.flags import flag
from records.training import TrainRun

if TYPE_CHECKING:
    from bench.cli.train_options import TrainOptions


def next_command(options: "TrainOptions", argv: list[str], run: TrainRun, plan: Plan, finished: bool) -> str:
    """Return what to call next: the same again, phase 2 after phase 1, a conversion after phase 2; a prediction, or the
    report where nothing is there to predict."""
    if not finished:
        return shlex.join(["bertbench", "train", *argv])
    if plan.phase == 1:
        out = run.path.with_name(f"{run.path.name}-phase2")
        words = [
            "--phase",
            "2",
            "--data",
            _data_of_phase_2(options.data or options.file),
            "--init",
            str(run.path),
            "--out",
            str(out),
        ]
        return shlex.join(["bertbench", "train", "pretrain", *_kept_options(options), *words])
    state = run.read_state() or {}
    checkpoint = state.get("checkpoint")
    source = run.checkpoints / checkpoint if checkpoint else run.checkpoints
    if plan.phase is None:
        best = (state.get("best") or {}).get("checkpoint")
        source = run.checkpoints / best if best else source
    settings = plan.settings
    known = check_task_options(settings.task, settings.task_options)
    trained = Trained(source, run.path, settings.data, settings.eval_data, known)
    found = task_data(settings.task).next_command(trained)
    return shlex.join(found or ["bertbench", "report", str(run.path)])


def _kept_options(options: "TrainOptions") -> list[str]:
    """What was given for phase 1 and holds in phase 2 as well; lengths of run and warm-up are its own.

    A rate that was not given is that of the phase, which is LAMB's for large batches; one that was given holds on.
    """
    names = (
        "preset",
        "global_batch_size",
        "micro_batch_size",
        "optimizer",
        "learning_rate",
        "schedule",
        "weight_decay",
        "dropout",
        "seed",
    )
    words = [(flag(name), getattr(options, name)) for name in names]
    words += [
        ("--strategy", None if options.strategy == AUTO else options.strategy),
        ("--zero-stage", options.zero_stage),
    ]
    words += [("--implementation", None if options.implementation == OURS else options.implementation)]
    words += [("--devices", options.devices), ("--threads", options.threads)]
    words += [("--precision", None if options.precision == AUTO else options.precision)]
    return [word for name, value in words if value is not None for word in (name, str(value))]


def _data_of_phase_2(data: str | None) -> str:
    """The same folder where it holds samples of 512 tokens, too."""
    try:
        return (
            str(data)
            if task_data("pretrain").inspect(str(data), 512).seq_len in (None, 512)
            else "FOLDER_OF_512_TOKENS"
        )
    except InputError:
        return "FOLDER_OF_512_TOKENS"
