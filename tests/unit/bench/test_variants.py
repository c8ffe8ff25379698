"""The engine behind comparisons and searches: what it runs, what is refused, and the largest batch that it finds."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import result, text
from support.refusals import check_refusal, refused

from bench.cli import throughput
from bench.cli.compare_strategies import by_reason
from bench.cli.main import run as command
from bench.implementations.ours import BertbenchImplementation
from bench.machine.devices import Devices
from bench.plan import sweep
from bench.plan.comparison import Variant, _profile_trial, combinations, remarks, with_same_batches
from bench.plan.training import TrainOptions
from bench.plan.variants import (
    PROOF_STEPS,
    MaxBatch,
    PlannedVariant,
    check_comparable,
    explore,
    grid,
    in_turn,
    largest_batch,
    plan_variant,
)
from bert.model.config import preset, shape_from_words, shape_in_words
from bert.speed.registry import check_precision
from common.errors import Code
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.training import TrainRun
from records.trial import Trial

CPU = Devices("cpu", (), 4)
GIVEN = {"preset": "tiny", "data": "synthetic", "seq_len": 32, "steps": 6, "precision": "fp32", "global_batch_size": 8}
AXES: dict[str, Any] = {"strategy": ("auto",), "devices": (1, 2)}


def planned(out: Path, *chosen: Variant, **changes: Any) -> list[PlannedVariant]:
    base = TrainOptions(task="pretrain", **{**GIVEN, **changes})
    pair = chosen or (Variant("single", 1), Variant("ddp", 2))
    return [plan_variant(base.having(each.values, out=out / each.name), each.values, CPU) for each in pair]


def trained(item: PlannedVariant, **changes: Any) -> None:
    """Leave an attempt in the folder of a variant."""
    settings = item.plan.settings
    fields: dict[str, Any] = {"data": settings.data, "device": "cpu", **changes}
    training = tuple(sorted({**settings.to_json(), **fields.pop("training", {})}.items()))
    trial = Trial(kind="train", preset=settings.preset, training=training, **fields)
    directory = item.run.run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())


def possible(**axes: Any) -> list[str]:
    return [variant.name for variant in combinations({**AXES, **axes}) if not variant.impossible]


def test_auto_is_single_on_one_device_and_ddp_on_several() -> None:
    assert combinations(AXES) == [Variant("single", 1), Variant("ddp", 2)]
    assert possible(strategy=("auto", "ddp")) == ["single-1", "ddp-2", "ddp-1"]


def test_every_axis_is_combined_and_what_cannot_run_says_why() -> None:
    axes = {"implementation": ("bertbench", "hf-trainer"), "precision": ("fp32", "bf16"), **AXES}
    names = [variant.name for variant in combinations(axes)]
    assert names[:4] == ["single-1-fp32", "ddp-2-fp32", "single-1-bf16", "ddp-2-bf16"]
    assert names[4:] == [f"hf-trainer-{name}" for name in names[:4]]
    found = combinations({"strategy": ("single", "ddp"), "devices": (1, 2)})
    assert [variant.name for variant in found if variant.impossible] == ["single-2"]
    assert "single and ddp" in Variant("fsdp", 2, implementation="hf-trainer").impossible


def test_sets_of_levers_are_variants_of_our_own_implementation(tmp_path: Path) -> None:
    axes = {"implementation": ("bertbench", "hf-trainer"), "levers": ("auto", "none", "unpad+chunks"),
            "strategy": ("auto",), "devices": (1,)}  # fmt: skip
    chosen = [variant for variant in combinations(axes) if not variant.impossible]
    assert [variant.name for variant in chosen] == [
        "single-1", "single-1-no-levers", "single-1-unpad+chunks", "hf-trainer-single-1",
    ]  # fmt: skip
    settings = [item.plan.settings.levers for item in planned(tmp_path, *chosen[:3])]
    assert settings == ["auto", "none", "unpad+chunks"]


def test_a_choice_is_sent_what_was_found_and_concludes_or_is_stopped_between_two() -> None:
    def doubling(limit: int) -> Any:
        size = 1
        while (yield size) < limit:
            size *= 2
        return size

    asked: list[int] = []

    def measure(size: int) -> int:
        asked.append(size)
        return size * size

    assert explore(doubling(50), measure) == 8 and asked == [1, 2, 4, 8]
    assert explore(in_turn(grid({"a": (1, 2), "b": ("x",)})), str) == 2
    assert explore(doubling(50), measure, lambda: len(asked) == 6) is None and asked[4:] == [1, 2]


def test_a_folder_of_another_implementation_is_not_gone_on_with(tmp_path: Path) -> None:
    pair = planned(tmp_path)
    trained(pair[0], implementation="hf-trainer")
    with refused("settings-changed", pair[0].run.path, "hf-trainer", "bertbench"):
        check_comparable(pair, CPU)


def test_what_makes_losses_of_hugging_face_differ_is_said(tmp_path: Path) -> None:
    chosen = Variant("single", 1), Variant("single", 1, implementation="hf-trainer")
    said = " ".join(remarks(planned(tmp_path, *chosen, dropout=0.1), CPU))
    assert "checkpoints" in said and "LAMB" in said and "draw dropout (0.1)" in said


@pytest.mark.parametrize("devices", [(2,), (2, 2), ()])
def test_one_variant_is_no_comparison(devices: tuple[int, ...]) -> None:
    with refused("option-missing", "--devices 1 2"):
        combinations({"strategy": ("auto",), "devices": devices})


def test_variants_have_one_global_batch_and_folders_of_their_own(tmp_path: Path) -> None:
    one, two = planned(tmp_path, micro_batch_size=2)
    assert (one.plan.settings.grad_accum_steps, two.plan.settings.grad_accum_steps) == (4, 2)
    assert (one.run.path, two.run.path) == (tmp_path / "single-1", tmp_path / "ddp-2")
    check_comparable([one, two], CPU)


def test_other_global_batches_are_refused(tmp_path: Path) -> None:
    pair = planned(tmp_path, micro_batch_size=2, grad_accum_steps=2, global_batch_size=None)
    with refused("batch-size-mismatch", "single-1 4", "ddp-2 8", "--global-batch-size"):
        check_comparable(pair, CPU)


def test_the_same_training_goes_on_in_its_folder(tmp_path: Path) -> None:
    pair = planned(tmp_path)
    trained(pair[0])
    trained(pair[1], training={"log_every": 77})
    check_comparable(pair, CPU)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"learning_rate": 0.5}}, ["learning_rate 0.5"]),
        ({"training": {"seed": 7, "steps": 9}}, ["steps 9", 6, "seed 7", 42]),
        ({"data": "/other"}, ["/other", "synthetic"]),
        ({"device": "cuda"}, ["cuda", "cpu"]),
        ({"threads_per_rank": 1}, ["threads 1"]),
    ],
)
def test_a_folder_with_another_training_is_refused(tmp_path: Path, change: dict[str, Any], words: list[object]) -> None:
    pair = planned(tmp_path)
    trained(pair[1], **change)
    with refused("settings-changed", *words, "ddp-2", "--out"):
        check_comparable(pair, CPU)


def test_data_of_another_content_are_refused_also_where_they_lie_alike(tmp_path: Path) -> None:
    pair = planned(tmp_path)
    source = dataclasses.replace(pair[1].plan.source, fingerprint="new")
    pair[1] = dataclasses.replace(pair[1], plan=dataclasses.replace(pair[1].plan, source=source))
    trained(pair[1], data_fingerprint="old")
    with refused("settings-changed", pair[1].run.path, "old", "new"):
        check_comparable(pair, CPU)


def test_a_single_training_is_no_folder_for_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").touch()
    with refused("folder-occupied", tmp_path):
        check_comparable(planned(tmp_path), CPU)


def test_what_is_shared_and_what_makes_losses_differ_is_said(tmp_path: Path) -> None:
    shared, made_up, dropout = remarks(planned(tmp_path), CPU)
    assert "4 CPU cores" in shared and "4 in single-1, 2 in ddp-2" in shared
    assert "synthetic data" in made_up and "--dropout 0" in dropout
    assert len(remarks(planned(tmp_path, dropout=0.0), CPU)) == 2


def test_the_profile_is_of_the_model_and_batches_of_the_training(tmp_path: Path) -> None:
    (item,) = planned(tmp_path, Variant("ddp", 2), micro_batch_size=2)
    trial = _profile_trial(item, 3, CPU)
    assert (trial.kind, trial.profiler, trial.strategy, trial.world_size) == ("profile", "torch", "ddp", 2)
    assert (trial.micro_batch_size, trial.grad_accum_steps, trial.seq_len) == (2, 2, 32)
    assert (trial.start_iteration, trial.stop_iteration) == (2, 5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_several_ranks_have_the_batches_of_one_where_no_optimizations_are_named(tmp_path: Path, precision: str) -> None:
    chosen = (
        Variant("single", 1), Variant("ddp", 2), Variant("ddp", 2, levers="unpad+balance"),
        Variant("ddp", 2, implementation="hf-trainer"),
    )  # fmt: skip
    given = planned(tmp_path, *chosen, precision=precision)
    one, two, named, other = (with_same_batches(item, CPU) for item in given)
    assert (one, named, other) == (given[0], given[2], given[3])
    names = set(two.plan.settings.levers.split("+"))
    assert "unpad" in names and "balance" not in names
    check_precision(two.plan.settings.levers, precision)
    trial = _profile_trial(two, 3, CPU)
    assert trial.levers == two.plan.settings.levers and two.values == given[1].values
    BertbenchImplementation().check(trial)
    for was in (given[1], two):  # a folder of an earlier version has the text auto
        out = tmp_path / was.plan.settings.levers
        again = dataclasses.replace(two, run=TrainRun(out / "ddp-2"))
        trained(dataclasses.replace(was, run=again.run))
        check_comparable([again], CPU)


def test_a_shape_that_is_no_preset_reaches_the_ranks() -> None:
    from bert.model.config import model_config

    words = shape_in_words(preset("tiny").replace(num_layers=3))
    trial = Trial(preset="3x128", shape=words, seq_len=32)
    assert model_config(Trial.from_json(trial.to_json())).num_layers == 3
    assert shape_from_words(trial.shape).num_layers == 3
    assert Trial(preset="tiny").trial_id == Trial(preset="tiny", shape="").trial_id != trial.trial_id


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        ((), "option-missing", "bertbench compare-strategies pretrain"),
        (("pretain",), "option-choice", "'pretrain'"),
        (("pretrain", "--devices", "1", "2"), "option-missing", "--data"),
        (("pretrain", "--data", "synthetic", "--devices", "0", "2"), "option-value", "--devices 0 2"),
        (("pretrain", "--data", "synthetic", "--strategy", "dpd"), "option-choice", "'dpd'"),
        (("pretrain", "--data", "synthetic", "--profile-steps", "-1"), "option-value", "--profile-steps -1"),
        (("pretrain", "--data", "synthetic", "--devices", "1", "4096", "--device", "cpu"), "device-missing", "4096"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    words: tuple[str, ...], code: Code, fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command(["compare-strategies", *words, *(["--out", str(out)] if words else [])]) == 2
    check_refusal(capsys.readouterr().err, code, fact)
    assert not out.exists()


@pytest.mark.parametrize("words", [["--strategy=fspd"], ["--strategy", "fspd"], ["--implementation=hf_trainer"]])
def test_the_singular_of_a_list_means_the_list_however_its_value_is_given(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["compare-strategies", "pretrain", "--devices", "1", *words]) == 2
    check_refusal(capsys.readouterr().err, "option-choice", words[-1].rpartition("=")[2])


class Machine:
    """Fits `capacity` sequences at first and `proven` over many steps."""

    def __init__(self, capacity: int, proven: int | None = None, fault: tuple[int, str] | None = None) -> None:
        self.capacity, self.proven, self.fault = capacity, capacity if proven is None else proven, fault
        self.trials: list[Trial] = []

    def run(self, trial: Trial) -> dict[str, Any]:
        self.trials.append(trial)
        if self.fault and trial.micro_batch_size == self.fault[0]:
            return {"status": self.fault[1], "reason": "told to"}
        assert trial.stop_iteration is not None
        room = self.proven if trial.stop_iteration >= PROOF_STEPS else self.capacity
        return {"status": "ok" if trial.micro_batch_size <= room else "oom", "reason": "full"}


def searched(trial: Trial, machine: Machine, limit: int, step: int = 1) -> MaxBatch:
    found = explore(largest_batch(trial, limit, step), machine.run)
    assert found is not None
    return found


@given(capacity=st.integers(1, 300), start=st.integers(1, 64))
def test_the_search_finds_the_exact_limit_and_shows_both_sides(capacity: int, start: int) -> None:
    machine = Machine(capacity)
    found = searched(Trial(micro_batch_size=start), machine, 1024)
    assert found.micro_batch_size == capacity
    assert found.fails_at == capacity + 1
    assert found.proved and (capacity + 1, "oom") in found.tried
    assert {trial.kind for trial in machine.trials} == {"probe"}, "they are kept apart from measurements"
    assert machine.trials[-1].stop_iteration == PROOF_STEPS and machine.trials[-1].micro_batch_size == capacity


@given(capacity=st.integers(1, 300), start=st.integers(1, 64), step=st.integers(2, 40))
def test_a_search_by_steps_ends_within_a_step_and_shows_both_sides(capacity: int, start: int, step: int) -> None:
    machine = Machine(capacity)
    found = searched(Trial(micro_batch_size=start), machine, 1024, step)
    assert found.fails_at is not None and found.micro_batch_size <= capacity < found.fails_at
    assert found.fails_at - found.micro_batch_size <= step
    sizes = [size for size, _ in found.tried]
    assert len(sizes) - len(set(sizes)) <= 1, "only the proof runs a size again"
    assert found.proved and found.micro_batch_size > 0, "0 would say that not even 1 fits"


def test_a_search_by_steps_saves_trials() -> None:
    machines = Machine(137), Machine(137)
    by_one = searched(Trial(micro_batch_size=64), machines[0], 4096)
    by_32 = searched(Trial(micro_batch_size=64), machines[1], 4096, 32)
    assert (by_one.micro_batch_size, by_32.micro_batch_size, by_32.fails_at) == (137, 128, 160)
    assert len(by_one.tried) - len(by_32.tried) == 5


def test_a_search_by_steps_goes_down_by_steps_where_the_proof_fails() -> None:
    found = searched(Trial(micro_batch_size=8), Machine(20, proven=11), 1024, 8)
    assert (found.micro_batch_size, found.fails_at) == (8, 16)


def test_the_limit_ends_the_search_and_is_stated() -> None:
    found = searched(Trial(micro_batch_size=8), Machine(10_000), 100)
    assert found.micro_batch_size == 100 and found.fails_at is None and "limit of 100" in found.failure


def test_a_size_that_fits_three_steps_but_not_twenty_is_not_the_answer() -> None:
    found = searched(Trial(micro_batch_size=1), Machine(20, proven=18), 1024)
    assert (found.micro_batch_size, found.fails_at) == (18, 19)


def test_nothing_fits() -> None:
    found = searched(Trial(micro_batch_size=4), Machine(0), 64)
    assert (found.micro_batch_size, found.fails_at) == (0, 1)


@pytest.mark.parametrize("status", ["crashed", "timeout", "refused"])
def test_another_failure_is_not_taken_for_out_of_memory(status: str) -> None:
    machine = Machine(100, fault=(16, status))
    found = searched(Trial(micro_batch_size=4), machine, 64)
    assert found.micro_batch_size == 8 and found.failure == f"{status}: told to"
    assert not found.proved, "what lies above is not known"
    assert machine.trials[-1].stop_iteration == PROOF_STEPS, "8 itself is shown to run"


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The micro batches that ran; more than 3 run out of memory."""
    ran: list[int] = []

    def run(trial: Trial, directory: TrialDirectory, *rest: object) -> dict[str, Any]:
        ran.append(trial.micro_batch_size)
        found = {"trial_id": trial.trial_id, "status": "ok" if trial.micro_batch_size <= 3 else "oom", "reason": ""}
        directory.path.mkdir(parents=True)
        write_record(directory.trial_json, trial.to_json())
        write_record(directory.result_json, found)
        return found

    monkeypatch.setattr(sweep, "run_trial", run)
    return ran


def largest_of(out: Path, *more: str) -> Any:
    words = ("--device", "cpu", "--devices", "1", "--precisions", "fp32", "--seq-lens", "32", "--batch-sizes", "2")
    return result("throughput", "pretrain", *words, "--max-batch-search", "--out", str(out), *more)


def test_searches_that_share_a_folder_keep_each_others_largest_batches(tmp_path: Path, fits: list[int]) -> None:
    for more in (("--preset", "tiny"), ("--preset", "mini"), ("--preset", "tiny", "--activation-checkpointing"),
                 ("--preset", "tiny"), ("--preset", "tiny", "--memory-limit-gib", "1")):  # fmt: skip
        found = largest_of(tmp_path, *more)
        assert found.document["max_batch"][0]["micro_batch_size"] == 3 and len(found.document["max_batch"]) == 1
        assert ("by single checkpointing" in text(found.blocks)) == ("--activation-checkpointing" in more)
    rows, problems = RunDirectory(tmp_path).read_max_batches()
    assert [(row["preset"], row["activation_checkpointing"], row["memory_limit_gib"]) for row in rows] == [
        ("mini", False, None), ("tiny", True, None), ("tiny", False, None), ("tiny", False, 1.0),
    ]  # fmt: skip
    assert problems == []


def test_a_search_is_resumed_whatever_memory_is_free_by_then(
    tmp_path: Path, fits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, free in enumerate((4, 3)):
        monkeypatch.setattr(throughput, "free_memory_share", lambda ranks, free=free: free * 2**30)
        largest_of(tmp_path, "--preset", "tiny")
        assert fits == ([2, 4, 3, 3] if number == 0 else []), "its trials are finished"
        fits.clear()
    largest_of(tmp_path, "--preset", "mini")
    assert fits == [2, 4, 3, 3]


def test_a_variant_that_cannot_run_here_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item, started = planned(tmp_path, Variant("single", 1))[0], list[Any]()
    monkeypatch.setattr("bench.plan.variants.train_once", lambda *given: started.append(given))
    assert item.train(CPU, lambda *_: None) and len(started) == 1
    write_record(item.run.state_json, {"status": "refused", "reason": "strategy dp needs a GPU"})
    assert item.refused and not item.train(CPU, lambda *_: None) and len(started) == 1


def test_names_with_equal_reasons_are_one_part_of_one_line() -> None:
    assert by_reason([("dp-1", "needs a GPU"), ("hvd", "is missing"), ("dp-2", "needs a GPU")]) == (
        "dp-1, dp-2: needs a GPU; hvd: is missing"
    )
    assert by_reason([]) == ""
