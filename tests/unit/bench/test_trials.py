"""From a sweep to its trials."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.refusals import refused
from support.squad_windows import VOCAB, squad_windows, write_windows

from analysis.wording import implementation, strategy
from bench.machine.devices import Devices, Gpu
from bench.run.resources import allocator_environment, check_allocator
from bench.sweep.training import TrainOptions, plan_training
from bench.sweep.trials import Sweep, expand
from bert.tasks import task_data
from bert.train.settings import TrainSettings
from common.errors import Code
from records.trial import Trial

CPU = Devices("cpu", (), 4)


def test_every_combination_is_one_trial_with_an_id_of_its_own() -> None:
    both = ("bertbench", "hf")
    sweep = Sweep(batch_sizes=(4, 8), devices=(1, 2), precisions=("fp32", "bf16"), implementations=both, rounds=1)
    trials = expand(sweep, CPU)
    assert len(trials) == len({trial.trial_id for trial in trials}) == 16


def test_ids_do_not_change_between_calls() -> None:
    sweep = Sweep(batch_sizes=(4, 8))
    assert [t.trial_id for t in expand(sweep, CPU)] == [t.trial_id for t in expand(sweep, CPU)]


def test_competitors_take_turns_and_none_is_always_first() -> None:
    trials = expand(Sweep(implementations=("bertbench", "hf"), rounds=3, batch_sizes=(4, 8)), CPU)
    assert [trial.round for trial in trials] == [0] * 4 + [1] * 4 + [2] * 4
    assert [trial.implementation for trial in trials[0:2]] == ["bertbench", "hf"]
    assert [trial.implementation for trial in trials[4:6]] == ["hf", "bertbench"]
    assert trials[0].micro_batch_size == trials[1].micro_batch_size, "they stand next to each other"


def test_what_competes_is_measured_often_enough_to_decide() -> None:
    assert len(expand(Sweep(implementations=("bertbench", "hf")), CPU)) == 2 * 3
    assert len(expand(Sweep(levers=("auto", "none")), CPU)) == 2 * 3
    assert len(expand(Sweep(implementations=("bertbench", "hf"), rounds=1), CPU)) == 2
    assert len(expand(Sweep(batch_sizes=(4, 8)), CPU)) == 2


def test_each_set_of_levers_is_a_competitor_of_our_own_model_alone() -> None:
    sweep = Sweep(
        implementations=("bertbench", "hf"), levers=("auto", "none", "unpad+chunks", "chunks+unpad"), rounds=1
    )
    trials = expand(sweep, CPU)
    assert [(trial.implementation, trial.levers) for trial in trials] == [
        ("bertbench", ""), ("bertbench", "none"), ("bertbench", "chunks+unpad"), ("hf", ""),
    ]  # fmt: skip
    assert expand(Sweep(), CPU)[0].trial_id == trials[0].trial_id
    labels = [implementation(trial.row()) for trial in trials]
    assert labels == ["bertbench", "bertbench without optimizations", "bertbench chunks+unpad", "hf"]
    with refused("option-choice", "'warp'"):
        Sweep(levers=("warp",))
    with refused("option-not-applicable", "--levers none", "hf", "--implementations bertbench"):
        Sweep(levers=("none",), implementations=("hf",))


def test_each_allocator_is_a_trial_of_every_implementation_and_stands_beside_the_strategy() -> None:
    trials = expand(Sweep(implementations=("bertbench", "hf"), allocators=("default", "keep"), rounds=1), CPU)
    assert [(trial.implementation, trial.allocator) for trial in trials] == [
        ("bertbench", ""), ("hf", ""), ("bertbench", "keep"), ("hf", "keep"),
    ]  # fmt: skip
    assert strategy(trials[2].row()) == "single memory=keep"
    assert allocator_environment("", "cpu") == {} and allocator_environment("keep", "cpu")["MALLOC_MMAP_MAX_"] == "0"
    with refused("option-choice", "'kept'", "default, keep, huge-pages, expandable-segments"):
        Sweep(allocators=("kept",))


def test_expandable_segments_are_for_gpu_memory_and_refused_on_a_cpu() -> None:
    sweep = Sweep(allocators=("default", "expandable-segments"), devices=(1,))
    gpu = Devices("cuda", (Gpu("NVIDIA H200", "0", "GPU-0", 141 << 30),), 16)
    assert [trial.allocator for trial in expand(sweep, gpu)] == ["", "expandable-segments"]
    assert len({trial.trial_id for trial in expand(sweep, gpu)}) == 2
    assert strategy(expand(sweep, gpu)[1].row()) == "single memory=expandable-segments"
    with refused("option-not-applicable", "--allocators expandable-segments", "CPU"):
        expand(sweep, CPU)


def test_torch_accepts_the_setting_of_expandable_segments() -> None:
    """The allocator's parser runs in a CPU build, too."""
    code = "import torch; torch.zeros(1); print(torch._C._accelerator_getAllocatorSettings())"
    given = {"PYTORCH_ALLOC_CONF": "backend:native"}  # what the user has set must not win
    environment = {**os.environ, **given, **allocator_environment("expandable-segments", "cuda")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "expandable_segments:True", done.stderr


def test_a_trial_whose_memory_has_no_expandable_segment_is_no_trial_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(device="cuda", allocator="expandable-segments")
    segments: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    check_allocator(trial)
    segments[:] = [{"is_expandable": False}, {"is_expandable": True}]
    check_allocator(trial)
    segments[:] = [{"is_expandable": False}, {"is_expandable": False}]
    with refused("device-unsupported", "expandable-segments"):
        check_allocator(trial)
    check_allocator(Trial(device="cuda"))


def test_auto_strategy_is_single_alone_and_ddp_together() -> None:
    assert [trial.strategy for trial in expand(Sweep(devices=(1, 2)), CPU)] == ["single", "ddp"]


def test_more_devices_than_there_are_is_refused_with_the_number_there_is() -> None:
    with refused("device-missing", 8, "--devices 4"):
        expand(Sweep(devices=(8,)), CPU)


def test_the_rules_of_an_automatic_window_do_not_count_where_one_is_given() -> None:
    plain, changed = Sweep(start=1, stop=4), Sweep(start=1, stop=4, max_seconds=5.0, min_steps=3)
    assert [t.trial_id for t in expand(plain, CPU)] == [t.trial_id for t in expand(changed, CPU)]
    assert expand(Sweep(), CPU)[0].trial_id != expand(Sweep(max_seconds=5.0), CPU)[0].trial_id


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        ({"presets": ("huge",)}, "option-choice", ["'huge'"]),
        ({"implementations": ("bert",)}, "option-choice", ["'bert'"]),
        ({"precisions": ("fp8",)}, "option-choice", ["'fp8'"]),
        ({"rounds": 0}, "option-value", ["--rounds 0", 1]),
        ({"devices": (0,)}, "option-value", ["--devices 0", 1]),
        ({"memory_limit_gib": 0.0}, "option-value", ["--memory-limit-gib 0.0"]),
        ({"threads": 9}, "option-value", ["--threads 9", 4]),
        ({"threads": 0}, "option-value", ["--threads 0", 4]),
        ({"memory_limit_gib": float("nan")}, "option-value", ["--memory-limit-gib nan"]),
        ({"precision_target": 0.0}, "option-value", ["--precision-target 0.0", 1]),
        ({"min_steps": 20, "max_steps": 5}, "option-conflict", ["--min-steps 20", "--max-steps 5"]),
        ({"seq_lens": (1024,)}, "option-value", ["--seq-lens 1024", "base", 512]),
        ({"start": 3}, "option-missing", ["--start", "--stop"]),
        ({"start": 5, "stop": 5}, "option-conflict", ["--start 5", "--stop 5"]),
        ({"grad_accum": (1, 0)}, "option-value", ["--grad-accum 1 0", 1]),
        ({"min_steps": 0}, "option-value", ["--min-steps 0", 1]),
        ({"max_seconds": 0.0}, "option-value", ["--max-seconds 0"]),
        ({"max_seconds": float("inf")}, "option-value", ["--max-seconds inf"]),
        ({"seed": -1}, "option-value", ["--seed -1"]),
        ({"devices": (2, 4), "strategies": ("single",)}, "option-conflict", ["--devices 2 4", "--strategies ddp"]),
        ({"dropout": 1.0}, "option-value", ["--dropout 1", 0]),
        ({"seq_lens": (3,)}, "option-value", ["--seq-len 3", "pretrain"]),
        ({"batch_sizes": (0,)}, "option-value", ["--batch-sizes 0", 1]),
        ({"data": "synthetic:banana"}, "option-choice", ["'banana'"]),
        ({"data": "/no/such/folder"}, "path-missing", ["/no/such/folder"]),
        ({"task": "squad", "padding": "short"}, "option-choice", ["'short'"]),
        ({"task": "pretrain", "padding": "fixed"}, "option-not-applicable", ["--padding fixed", "pretrain"]),
        ({"task": "squad", "seq_lens": (513,)}, "option-value", ["--seq-lens 513", "base", 512]),
        ({"task": "squad", "seq_lens": (4,)}, "option-value", ["--seq-len 4", "squad", 5]),
        ({"task": "squad", "data": "synthetic:banana"}, "option-choice", ["'banana'"]),
        ({"task": "squid"}, "option-choice", ["'squid'"]),
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
    with refused("option-not-applicable", "--zero-stages", "--strategies deepspeed"):
        Sweep(zero_stages=(1,))
    with refused("option-choice", "--zero-stage 9"):
        Sweep(strategies=("deepspeed",), zero_stages=(9,))
    with refused("path-missing", tmp_path / "absent"):
        Sweep(strategies=("deepspeed",), deepspeed_config=tmp_path / "absent")


def test_one_process_drives_the_devices_of_dp() -> None:
    (trial,) = expand(Sweep(strategies=("dp",), devices=(2,)), CPU)
    assert (trial.world_size, trial.devices_per_rank, trial.ranks, trial.global_batch_size) == (2, 2, 1, 16)


@pytest.mark.parametrize("absent", [("strategy_options", "devices_per_rank"), ("padding",), ("task_options", "levers")])
def test_trials_from_before_there_were_these_fields_keep_their_ids(absent: tuple[str, ...]) -> None:
    old = {name: value for name, value in Trial().to_json().items() if name not in absent}
    again = Trial.from_json(old)
    assert again == Trial() and again.trial_id == old["trial_id"] and again.ranks == again.world_size


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
    with refused("option-not-applicable", "--strategy ddp", "--deepspeed-config, --zero-stage", "--strategy deepspeed"):
        plan_training(replace(given, strategy="auto"), CPU)


def test_defaults_are_windows_of_384_tokens_padded_to_the_longest_of_a_batch() -> None:
    (trial,) = expand(Sweep(task="squad"), CPU)
    assert (trial.task, trial.seq_len, trial.padding, trial.max_predictions) == ("squad", 384, "longest", 0)
    assert (trial.data, trial.data_fingerprint, trial.vocab_size) == ("synthetic", "", 30522)
    (pretraining,) = expand(Sweep(), CPU)
    assert (pretraining.seq_len, pretraining.padding, pretraining.max_predictions) == (128, "", 20)


def test_the_way_of_padding_makes_another_trial() -> None:
    ids = {expand(Sweep(task="squad", padding=padding), CPU)[0].trial_id for padding in ("auto", "longest", "fixed")}
    assert len(ids) == 2


def test_features_and_their_twin_of_made_up_windows_are_named_by_their_content(tmp_path: Path) -> None:
    path = write_windows(tmp_path / "features", squad_windows(12))
    sweep = Sweep(task="squad", data=str(path.parent), seq_lens=(64,))
    (real,), (made_up,) = expand(sweep, CPU), expand(replace(sweep, data=f"synthetic:{path.parent}"), CPU)
    assert (real.data, real.vocab_size, real.seq_len) == (str(path.parent), VOCAB, 64)
    assert made_up.data == f"synthetic:{path.parent}" and made_up.data_fingerprint.startswith("lengths-")
    (elsewhere,) = expand(replace(sweep, data=str(write_windows(tmp_path / "copy", squad_windows(12)))), CPU)
    (other,) = expand(replace(sweep, data=str(write_windows(tmp_path / "other", squad_windows(13)))), CPU)
    assert elsewhere.trial_id == real.trial_id != other.trial_id


def test_features_of_another_length_are_refused_with_both_ways_out(tmp_path: Path) -> None:
    path = write_windows(tmp_path, squad_windows(12))
    with refused("data-mismatch", "--seq-lens 384", path, "--seq-lens 64", "--max-seq-length 384"):
        expand(Sweep(task="squad", data=str(path)), CPU)
    assert task_data("squad").inspect(str(path), None).seq_len == 64


@pytest.mark.parametrize("data", ["{}/none", "{}", "synthetic:{}/none"])
def test_missing_features_are_refused_with_the_command_that_makes_them(data: str, tmp_path: Path) -> None:
    with refused("data-unprepared", "bertbench data squad --input"):
        expand(Sweep(task="squad", data=data.format(tmp_path)), CPU)


def test_planning_loads_no_torch(tmp_path: Path) -> None:
    path = write_windows(tmp_path, squad_windows(12))
    code = (
        "import sys\nfrom bench.machine.devices import Devices\nfrom bench.sweep.trials import Sweep, expand\n"
        f"for data in ('synthetic', {str(path)!r}, 'synthetic:{path}'):\n"
        "    expand(Sweep(task='squad', data=data, seq_lens=(64,)), Devices('cpu', (), 1))\n"
        "sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
