"""Optimizations that have no effect: refused by name, left out of the default, and recorded with the reason."""

import dataclasses
from pathlib import Path

import pytest
import torch
from support import training_runs
from support.fake_run import ENVIRONMENT, rank_record, step_rows, write_trial
from support.refusals import refused
from support.training_runs import Recorder, run, settings

from analysis.load import load_run
from analysis.render.pages import facts
from bench.implementations.ours import BertbenchImplementation
from bert.speed import native, registry
from bert.speed.registry import (
    LEVERS,
    Setup,
    check_effect,
    default_levers,
    effective,
    recorded_levers,
    resolve_levers,
    without_effect,
)
from common.errors import MissingToolError
from records.run import RunDirectory
from records.trial import Trial

CPU, GPU = Setup("cpu", "bf16"), Setup("cuda", "bf16")


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "has_avx512_bf16", lambda: True)


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize(
    ("names", "setup", "said"),
    [
        ("chunks", GPU, {"chunks": ("CPU", "cuda")}),
        ("bf16-attention", GPU, {"bf16-attention": ("CPU", "cuda")}),
        ("bf16-attention+chunks", Setup("cpu", "fp32"), {"bf16-attention": ("bf16", "fp32")}),
        ("bf16-weights+fp8", Setup("cpu", "fp16"), {"bf16-weights": ("bf16", "fp16"), "fp8": ("bf16", "fp16")}),
        ("bf16-weights+fp8", Setup("cpu", "bf16", "fsdp"), {"bf16-weights": ("fsdp",), "fp8": ("fsdp", "single")}),
        ("bf16-weights+fp8", Setup("cpu", "bf16", "ddp"), {}),
        ("bf16-weights+compile", CPU, {"bf16-weights": ("compile",)}),
        ("fused-optimizer", Setup("cuda", "fp32", "fsdp"), {"fused-optimizer": ("fsdp", "ddp")}),
        ("fused-optimizer", Setup("cuda", "fp32", "ddp"), {}),
        ("balance", Setup("cpu", "bf16", "ddp"), {"balance": ("unpad",)}),
        ("balance+unpad", Setup("cpu", "bf16", "ddp"), {}),
        ("fused-optimizer", CPU, {"fused-optimizer": ("GPU",)}),
        ("bf16-gradients", Setup("cuda", "bf16", "fsdp"), {"bf16-gradients": ("ddp", "fsdp")}),
        ("bf16-gradients", Setup("cpu", "fp32", "ddp"), {}),
        ("fused-elementwise+unpad", Setup("cuda", "fp32", "deepspeed"), {}),
    ],
)
def test_what_has_no_effect_is_refused_by_name(names: str, setup: Setup, said: dict[str, tuple[str, ...]]) -> None:
    found = without_effect(names.split("+"), setup)
    assert found.keys() == said.keys()
    assert all(fact in found[name] for name, facts in said.items() for fact in facts)
    on, left_out = effective(frozenset(names.split("+")), setup)
    assert on == set(names.split("+")) - said.keys() and left_out == found
    if not said:
        check_effect(names, setup)
        return
    with refused("unsupported-combination", names, *said, *(fact for facts in said.values() for fact in facts)):
        check_effect(names, setup)


def test_a_processor_without_the_instructions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.has_avx512_bf16() == torch.cpu._is_avx512_bf16_supported()
    monkeypatch.setattr(registry, "has_avx512_bf16", lambda: False)
    assert "AVX512-BF16" in without_effect(["bf16-attention"], CPU)["bf16-attention"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, usable in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=capability: found)
        assert ("fp8" not in without_effect(["fp8"], GPU)) == usable
        assert not without_effect(["fused-elementwise", "fused-optimizer"], GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert set(without_effect(["fused-elementwise", "fused-optimizer"], GPU)) == {
        "fused-elementwise",
        "fused-optimizer",
    }
    assert "fp8" not in without_effect(["fp8"], CPU), "a CPU emulates it"


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("text", ["auto", "none", ""])
@pytest.mark.parametrize("setup", [GPU, Setup("cpu", "fp32", "fsdp")])
def test_the_default_is_never_refused(text: str, setup: Setup) -> None:
    check_effect(text, setup)


def test_the_default_without_a_compiler_is_recorded_by_names_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU without bf16 instructions `auto` is then a set of names of which several have no effect in float32."""

    def without() -> None:
        raise MissingToolError("tool-missing", "C compiler not found")

    monkeypatch.setattr(registry, "compiled", without)
    monkeypatch.setattr(registry, "is_wanted", lambda: True)
    monkeypatch.setattr(registry, "has_avx512_bf16", lambda: False)
    text = recorded_levers("auto", "cpu")
    assert "bf16-attention" in text and "fused-elementwise" not in text
    check_effect(text, Setup("cpu", "fp32"))
    with refused("unsupported-combination", "bf16-attention"):
        check_effect("bf16-attention+unpad", Setup("cpu", "fp32"))


@pytest.mark.usefixtures("instructions")
def test_every_optimization_has_an_effect_somewhere_and_the_default_where_it_is_one() -> None:
    for name, lever in LEVERS.items():
        found = [Setup(device, "bf16", strategy) for device in ("cpu", "cuda") for strategy in ("single", "ddp")]
        assert any(not without_effect({name, "unpad"}, setup) for setup in found), name
        assert all(not without_effect({name, "unpad"}, Setup(device, "bf16", "ddp")) for device in lever.on), name


def test_one_process_leaves_out_what_is_for_several_whether_it_is_named_or_not() -> None:
    for name in ("balance", "bf16-gradients"):
        on, left_out = effective(frozenset({name, "unpad"}), CPU)
        assert on == {"unpad"} and "single" in left_out[name]
        check_effect(f"{name}+unpad", CPU)


def test_a_trial_is_refused_or_leaves_out_what_has_no_effect() -> None:
    trial = Trial(preset="tiny", precision="fp32", strategy="single")
    ours = BertbenchImplementation()
    with refused("unsupported-combination", "bf16-weights", "bf16", "fp32"):
        ours.check(dataclasses.replace(trial, levers="bf16-weights+unpad"))
    ours.check(trial)
    on, left_out = effective(default_levers("cpu"), Setup.of(trial, "cpu"))
    assert "unpad" in on and "bf16-weights" not in on and "bf16" in left_out["bf16-weights"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_torch_compiles_needs_a_compiler(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (native.cpp_missing, native.triton_missing):
        function.cache_clear()
    try:
        monkeypatch.setenv("CXX", "no-such-compiler")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with refused("tool-missing", "compile", "no-such-compiler" if device == "cpu" else "Triton", "--levers"):
            resolve_levers("compile", device)
        if device == "cpu":
            native.cpp_missing.cache_clear()
            monkeypatch.setattr("shutil.which", lambda name: name)
            monkeypatch.setattr(native.sysconfig, "get_paths", lambda: {"include": "/no/such/folder"})
            with refused("tool-missing", "compile", "Python.h", "python3-dev"):
                resolve_levers("compile", device)
    finally:
        for function in (native.cpp_missing, native.triton_missing):
            function.cache_clear()


@pytest.mark.usefixtures("one_thread")
def test_a_run_begun_with_what_is_now_refused_goes_on_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = training_runs.shards(tmp_path / "data")
    wanted = settings(data, levers="bf16-weights+unpad", steps=4, save_every=2)
    with refused("unsupported-combination", "bf16-weights", "bf16"):
        run(wanted, tmp_path / "run")
    with monkeypatch.context() as before:
        before.setattr("bert.train.run.check_effect", lambda *_: None)
        run(wanted, tmp_path / "run", Recorder(stop_after=2))
    resumed = Recorder()
    assert run(wanted, tmp_path / "run", resumed).finished and list(resumed.losses) == [2, 3]
    assert "bf16-weights has no effect" in resumed.warnings
    (optimized,) = resumed.of("Optimized")
    assert optimized.levers == "unpad" and list(optimized.left_out) == ["bf16-weights"]
    other = dataclasses.replace(wanted, levers="fp8+unpad", steps=6)
    with refused("unsupported-combination", "fp8"):
        run(other, tmp_path / "run")


def test_the_report_says_what_was_left_out(tmp_path: Path) -> None:
    run_directory = RunDirectory(tmp_path)
    chosen = {"levers": "chunks+unpad", "levers_left_out": {"bf16-weights": "needs bf16, not fp32"}}
    trial = Trial(preset="mini", micro_batch_size=8)
    for number, more in enumerate((chosen, chosen, {})):
        record = {**rank_record(), **more}
        write_trial(
            run_directory, dataclasses.replace(trial, round=number), {0: step_rows([100.0] * 9, 8)},
            environment=ENVIRONMENT, ranks={0: record},
        )  # fmt: skip
    trials = load_run(run_directory)
    assert [one.row["levers_on"] for one in trials].count(None) == 1
    details = facts(trials)
    assert [text for name, text in details if name == "optimizations left out"] == [
        "bf16-weights: needs bf16, not fp32"
    ]
    rows = [text for name, text in details if name == "optimizations"]
    assert len(rows) == 1 and rows[0].startswith("chunks+unpad")


def test_copies_are_left_out_by_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Setup] = []

    def noted(names: frozenset[str], setup: Setup) -> tuple[frozenset[str], dict[str, str]]:
        asked.append(setup)
        return frozenset(), {}

    monkeypatch.setattr(registry, "effective", noted)
    registry.use_weight_copies(
        torch.nn.Linear(2, 2), frozenset({"fp8"}), precision="bf16", strategy="ddp", grad_accum_steps=2,
        optimizer="lamb",
    )  # fmt: skip
    assert asked == [Setup("cpu", "bf16", "ddp")]
