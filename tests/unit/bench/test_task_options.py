"""The options of tasks on their way from the command line to trials, trainings and back to a command line."""

from dataclasses import replace
from typing import Any

import pytest
from support.refusals import refused
from support.row_task import NAME, made_rows, write_rows

from bench.cli.parser import parse
from bench.cli.throughput import ThroughputOptions
from bench.cli.tune import ThroughputOptions as SearchOptions
from bench.machine.devices import find_devices
from bench.search.throughput import command
from bench.sweep.options import TaskFlags
from bench.sweep.training import TrainOptions, plan_training
from bench.sweep.trials import Sweep, expand
from bert.tasks import TASKS, make_task
from bert.train.settings import TrainSettings
from records.trial import Trial


@pytest.fixture(autouse=True)
def rows_task(monkeypatch):
    monkeypatch.setitem(TASKS, NAME, "support.row_task:RowTask")


@pytest.fixture
def folder(tmp_path):
    return write_rows(tmp_path / "rows", made_rows(40), made_rows(11, seed=1))


def options(**changes: Any) -> TrainOptions:
    return TrainOptions(task=NAME, device="cpu", **changes)


def test_ids_of_trials_are_stable():
    assert Trial().trial_id == "pretrain-bertbench-ddp-base-bf16-s128-b8-a1-n1-r0-8349a206"
    assert Trial(task_options='{"head":"mul"}').trial_id != Trial().trial_id


def test_every_command_takes_them_beside_the_task_and_its_data():
    train = parse(TrainOptions, [NAME, "rows.npz", "--head", "mul", "--task", "cola"], "train")
    assert (train.task, train.file, train.task_flags.head, train.task_flags.benchmark_task) == (
        NAME, "rows.npz", "mul", "cola",
    )  # fmt: skip
    with refused("option-conflict", "a", "--data b"):
        parse(TrainOptions, [NAME, "a", "--data", "b"], "train")
    sweep = parse(ThroughputOptions, [NAME, "--head", "mul", "--sample-limit", "7"], "throughput").sweep
    assert (sweep.task_flags.head, sweep.task_flags.sample_limit) == ("mul", 7)
    tuned = parse(SearchOptions, [NAME, "--train-on-all"], "tune")
    assert tuned.workload.task_flags.train_on_all


def test_trials_hold_them_resolved_and_words_lead_back_to_them(folder):
    sweep = Sweep(task=NAME, data=str(folder), task_flags=TaskFlags(head="mul", sample_limit=30), devices=(1,))
    (trial,) = expand(sweep, find_devices("cpu"))
    assert trial.task_options == '{"head":"mul","labels":3,"sample_limit":30,"train_on_all":false}'
    assert trial.padding == "longest"
    assert trial.data_fingerprint.endswith("-30")
    trial = replace(trial, strategy="single", micro_batch_size=4)
    words = command(trial)
    assert words[3:7] == ["--head", "mul", "--sample-limit", "30"]
    (made,) = expand(replace(sweep, data=f"synthetic:{folder}"), find_devices("cpu"))
    assert made.task_options == '{"head":"mul","labels":3,"sample_limit":30,"train_on_all":false}'
    assert make_task(trial.task, trial.task_options).labels == 3


def test_a_training_has_the_defaults_of_its_task_and_evaluates_after_each_epoch(folder):
    plan = plan_training(options(file=str(folder), global_batch_size=8), find_devices("cpu"))
    settings = plan.settings
    assert (settings.preset, settings.seq_len, settings.steps, settings.eval_every) == ("tiny", 24, 5, 5)
    assert settings.task_options == '{"head":"concat","labels":3,"train_on_all":false}'
    assert TrainSettings.from_json(settings.to_json()) == settings
    never = options(file=str(folder), global_batch_size=8, eval_every=0)
    assert plan_training(never, find_devices("cpu")).settings.eval_every == 0
