"""From a sweep to its trials."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.datasets import SQUAD_TOKENS, squad_splits
from support.refusals import refused

from analysis.wording import implementation, strategy
from bench.machine.devices import Devices
from bench.sweep.training import TrainOptions, plan_training
from bench.sweep.trials import Sweep, expand
from bert.tasks.squad.features import open_features
from bert.train.settings import TrainSettings
from common.errors import Code

CPU = Devices("cpu", (), 4)


BOTH = ("bertbench", "hf")


def test_every_combination_is_one_trial_with_an_id_of_its_own() -> None:
    sweep = Sweep(batch_sizes=(4, 8), devices=(1, 2), precisions=("fp32", "bf16"), implementations=BOTH, rounds=1)
    trials = expand(sweep, CPU)
    assert len(trials) == len({trial.trial_id for trial in trials}) == 16
    assert {trial.world_size: trial.strategy for trial in trials} == {1: "single", 2: "ddp"}
    (trial,) = expand(Sweep(strategies=("dp",), devices=(2,)), CPU)
    assert (trial.world_size, trial.devices_per_rank, trial.ranks, trial.global_batch_size) == (2, 2, 1, 16)


def test_competitors_take_turns_in_rounds_that_decide() -> None:
    trials = expand(Sweep(implementations=BOTH, batch_sizes=(4, 8)), CPU)
    assert [trial.round for trial in trials] == [0] * 4 + [1] * 4 + [2] * 4
    assert [trial.implementation for trial in trials[0:2]] == ["bertbench", "hf"]
    assert [trial.implementation for trial in trials[4:6]] == ["hf", "bertbench"]
    assert trials[0].micro_batch_size == trials[1].micro_batch_size, "they stand next to each other"
    assert len(expand(Sweep(step=("fast", "plain")), CPU)) == 2 * 3
    assert len(expand(Sweep(implementations=BOTH, rounds=1), CPU)) == len(expand(Sweep(batch_sizes=(4, 8)), CPU)) == 2


def test_each_step_is_a_competitor_of_our_own_model_alone() -> None:
    sweep = Sweep(implementations=BOTH, step=("fast", "plain"), rounds=1)
    trials = expand(sweep, CPU)
    assert [(trial.implementation, trial.step) for trial in trials] == [
        ("bertbench", "fast"), ("bertbench", "plain"), ("hf", "fast"),
    ]  # fmt: skip
    labels = [implementation(trial.row()) for trial in trials]
    assert labels == ["bertbench", "bertbench plain", "hf"]


def test_the_rules_of_an_automatic_window_do_not_count_where_one_is_given() -> None:
    plain, changed = Sweep(start=1, stop=4), Sweep(start=1, stop=4, max_seconds=5.0, min_steps=3)
    assert [t.trial_id for t in expand(plain, CPU)] == [t.trial_id for t in expand(changed, CPU)]
    assert expand(Sweep(), CPU)[0].trial_id != expand(Sweep(max_seconds=5.0), CPU)[0].trial_id


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        ({"implementations": ("bert",)}, "option-choice", ["'bert'"]),
        ({"devices": (8,)}, "device-missing", [8, "--devices 4"]),
        ({"zero_stages": (1,)}, "option-not-applicable", ["--zero-stages", "--strategies deepspeed"]),
        ({"zero_stages": (9,), "strategies": ("deepspeed",)}, "option-choice", ["--zero-stage 9"]),
        ({"threads": 9}, "option-value", ["--threads 9", 4]),
        ({"seq_lens": (1024,)}, "option-value", ["--seq-lens 1024", "base", 512]),
        ({"start": 5, "stop": 5}, "option-value", ["--stop 5"]),
        ({"seq_lens": (3,)}, "option-value", ["--seq-len 3", "pretrain"]),
        ({"batch_sizes": (3,), "devices": (1, 2), "scaling": "strong"}, "batch-size-mismatch", ["strong", 3, 2]),
        ({"bucket_mib": 5, "strategies": ("fsdp",), "devices": (2,)}, "option-not-applicable", ["--bucket-mib", "ddp"]),
        ({"task": "pretrain", "padding": "fixed"}, "option-not-applicable", ["--padding fixed", "pretrain"]),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(
    options: dict[str, object], code: Code, facts: list[object]
) -> None:
    with refused(code, *facts):
        expand(Sweep(**options), CPU)  # type: ignore[arg-type]


def test_each_zero_stage_is_a_trial_of_deepspeed_alone(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": "auto"}}')
    sweep = Sweep(strategies=("ddp", "deepspeed"), zero_stages=(1, 3), deepspeed_config=file, devices=(2,))
    trials = expand(sweep, CPU)
    labels = [strategy(trial.row()) for trial in trials]
    assert len({trial.trial_id for trial in trials}) == 3
    assert labels[0] == "ddp" and labels[1].startswith("deepspeed zero_stage=1 config=") and "zero_stage=3" in labels[2]


def test_a_training_takes_from_a_deepspeed_file_what_no_option_gives(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 2, "optimizer": {"params": {"lr": 0.001}}}')
    given = TrainOptions(
        task="pretrain", phase=1, data="synthetic", steps=3, precision="fp32", global_batch_size=8,
        strategy="deepspeed", devices=2, deepspeed_config=file, zero_stage=0,
    )  # fmt: skip
    settings = plan_training(given, CPU).settings
    assert (settings.micro_batch_size, settings.grad_accum_steps, settings.learning_rate) == (2, 2, 1e-3)
    without = replace(given, global_batch_size=None)
    assert plan_training(without, CPU).settings.global_batch_size == 65536
    file.write_text('{"train_micro_batch_size_per_gpu": 532}')
    settings = plan_training(without, CPU).settings
    assert (settings.micro_batch_size, settings.grad_accum_steps, settings.global_batch_size) == (532, 1, 1064)
    with refused("batch-size-mismatch", "--global-batch-size 8", "--micro-batch-size 532"):
        plan_training(given, CPU)
    assert '"zero_stage":0' in settings.strategy_options
    assert TrainSettings.from_json(settings.to_json()) == settings
    other = plan_training(replace(given, learning_rate=2e-3, micro_batch_size=4), CPU).settings
    assert (other.micro_batch_size, other.learning_rate) == (4, 2e-3), "the worker refuses it, with both values"
    with refused("option-not-applicable", "--strategy ddp", "--strategy deepspeed"):
        plan_training(replace(given, strategy="auto"), CPU)


def test_the_way_of_padding_makes_another_trial() -> None:
    ids = {expand(Sweep(task="squad", padding=padding), CPU)[0].trial_id for padding in ("auto", "longest", "fixed")}
    assert len(ids) == 2
    (trial,), (pretraining,) = expand(Sweep(task="squad"), CPU), expand(Sweep(), CPU)
    assert (trial.seq_len, trial.padding, trial.max_predictions) == (384, "longest", 0)
    assert (pretraining.seq_len, pretraining.padding, pretraining.max_predictions) == (128, "", 20)


def test_features_and_their_twin_of_made_up_windows_are_named_by_their_content(tmp_path: Path) -> None:
    path = squad_splits(tmp_path / "a")["training"]
    sweep = Sweep(task="squad", data=str(path.parent), seq_lens=(SQUAD_TOKENS,))
    (real,), (made_up,) = expand(sweep, CPU), expand(replace(sweep, data=f"synthetic:{path.parent}"), CPU)
    assert (real.data, real.seq_len) == (str(path.parent), SQUAD_TOKENS)
    assert real.vocab_size == open_features(path, "training").settings.vocab_size
    assert made_up.data == f"synthetic:{path.parent}" and made_up.data_fingerprint.startswith("lengths-")
    copies = [squad_splits(tmp_path / name, times=times)["training"] for name, times in (("b", 1), ("c", 2))]
    (elsewhere,), (other,) = (expand(replace(sweep, data=str(copy)), CPU) for copy in copies)
    assert elsewhere.trial_id == real.trial_id != other.trial_id
    with refused("data-mismatch", "--seq-lens 384", path.parent, f"--seq-lens {SQUAD_TOKENS}", "--max-seq-length 384"):
        expand(replace(sweep, seq_lens=()), CPU)


def test_planning_loads_no_torch(tmp_path: Path) -> None:
    path = squad_splits(tmp_path)["training"]
    code = (
        "import sys\nfrom bench.machine.devices import Devices\nfrom bench.sweep.trials import Sweep, expand\n"
        f"for data in ('synthetic', {str(path)!r}, 'synthetic:{path}'):\n"
        f"    expand(Sweep(task='squad', data=data, seq_lens=({SQUAD_TOKENS},)), Devices('cpu', (), 1))\n"
        "sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
