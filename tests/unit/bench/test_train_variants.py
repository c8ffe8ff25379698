"""`bertbench train --vary, --seeds, --until` before anything trains: what is planned, refused and recorded."""

import shutil
from pathlib import Path

import pytest
from support.commands import result
from support.datasets import gap_features
from support.fake_run import write_events
from support.refusals import refused
from support.training_runs import SEQ_LEN, shards

from bench.cli.parser import parse
from bench.cli.progress import TrainProgress
from bench.cli.train_variants import by_reason, variants_of
from bench.implementations.ours import BertbenchImplementation
from bench.machine.devices import Devices
from bench.run.processes import StopRequest
from bench.sweep.training import TrainOptions
from bench.sweep.trainings import (
    EVALUATIONS,
    PlannedTraining,
    TrainingsPlan,
    plan_trainings,
    variant_name,
)
from bert.tasks import make_task
from common.errors import Code
from records.files import write_record
from records.training import Trainings, TrainRun
from records.trial import Trial

CPU = Devices("cpu", (), 4)
SMALL = ("--preset", "tiny", "--data", "synthetic", "--seq-len", 32, "--steps", 6, "--precision", "fp32",
         "--global-batch-size", 8)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("shards"))


def planned(out: Path, *words: object, task: str = "pretrain") -> TrainingsPlan:
    options = parse(TrainOptions, [task, *map(str, words)], "bertbench train")
    return plan_trainings(options, *variants_of(options), Trainings(out), CPU)


def pair(out: Path, *words: object) -> list[PlannedTraining]:
    return list(planned(out, *SMALL, "--vary", "devices=1,2", *words).trainings)


def test_every_combination_is_trained_in_a_folder_of_its_own_with_every_seed(tmp_path: Path) -> None:
    vary = ("--vary", "strategy=single,ddp", "--vary", "devices=1,2", "--seeds", 2, "--seed", 7)
    plan = planned(tmp_path, *SMALL, *vary)
    assert [(one.run.path.name, one.plan.settings.seed) for one in plan.trainings] == [
        ("single-devices-1-seed-7", 7), ("single-devices-1-seed-8", 8), ("ddp-devices-1-seed-7", 7),
        ("ddp-devices-1-seed-8", 8), ("ddp-devices-2-seed-7", 7), ("ddp-devices-2-seed-8", 8),
    ]  # fmt: skip
    assert list(plan.skipped) == ["single-devices-2"]
    assert [one.run.path.name for one in planned(tmp_path, *SMALL, "--seeds", 2).trainings] == ["seed-42", "seed-43"]
    values = {"init": "weights/mini", "learning_rate": 1e-3, "step": "plain"}
    assert variant_name(values) == "weights_mini-learning_rate-0.001-plain"


def test_what_cannot_be_combined_says_why(tmp_path: Path) -> None:
    vary = ("--vary", "implementation=bertbench,hf-trainer", "step=fast,plain", "strategy=ddp,fsdp")
    plan = planned(tmp_path, *SMALL, "--devices", 2, *vary)
    assert [one.variant for one in plan.trainings] == [
        "bertbench-fast-ddp", "bertbench-fast-fsdp", "bertbench-plain-ddp", "bertbench-plain-fsdp",
        "hf-trainer-fast-ddp",
    ]  # fmt: skip
    assert "single or ddp" in plan.skipped["hf-trainer-fast-fsdp"]
    assert "--step" in plan.skipped["hf-trainer-plain-ddp"]
    assert by_reason({"dp-1": "x", "hvd": "y", "dp-2": "x"}) == "dp-1, dp-2: x; hvd: y"
    write_record(tmp_path / "one" / "train.json", {})
    with refused("folder-occupied", tmp_path / "one"):
        planned(tmp_path / "one", *SMALL, "--seeds", 2)
    with refused("option-missing", "single has one device", "--vary"):
        planned(tmp_path, *SMALL, "--devices", 2, "--vary", "strategy=single,ddp")


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (("--vary", "devices=1,2", "data/mine"), "option-value", "--data"),
        (("--vary", "strategy=ddp,dpd", *SMALL), "option-choice", '"dpd"'),
        (("--vary", "seq_len=32,64", "seq_len=32,128", *SMALL), "option-value", "seq_len"),
        (("--vary", "data=a,b", *SMALL), "option-value", "data=a,b"),
        (("--vary", "head=mul,concat", *SMALL), "option-not-applicable", "head"),
        (("--vary", "devices=1,4096", *SMALL, "--device", "cpu"), "device-missing", "4096"),
        (("--until", "accuracy=0.5"), "option-value", "accuracy=0.5"),
        (("--until", "mlm_loss=4", *SMALL), "option-not-applicable", "synthetic"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    words: tuple[object, ...], code: Code, fact: str, tmp_path: Path
) -> None:
    with refused(code, fact):
        result("train", "pretrain", *words, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_heads_are_an_option_like_others(tmp_path: Path) -> None:
    features = gap_features(tmp_path / "gap")
    words = ("--vary", "head=mul,concat", "--preset", "tiny", "--data", features, "--sample-limit", 9)
    plan = planned(tmp_path / "out", *words, task="gap")
    assert [one.variant for one in plan.trainings] == ["mul", "concat"]
    first, second = (make_task("gap", one.plan.settings.task_options).values for one in plan.trainings)
    assert (first["head"], second["head"], first["sample_limit"]) == ("mul", "concat", 9)
    document, _ = plan.write()
    assert document["varied"] == {"head": ["mul", "concat"]} and document["data"]["samples"]


def test_variants_have_one_global_batch_and_folders_of_their_own(tmp_path: Path) -> None:
    one, two = pair(tmp_path, "--micro-batch-size", 2)
    assert (one.plan.settings.grad_accum_steps, two.plan.settings.grad_accum_steps) == (4, 2)
    assert (one.run.path, two.run.path) == (tmp_path / "devices-1", tmp_path / "devices-2")
    words = [word for word in SMALL if word not in ("--global-batch-size", 8)]
    with refused("batch-size-mismatch", "devices-1 4", "devices-2 8", "--global-batch-size"):
        planned(tmp_path, *words, "--vary", "devices=1,2", "--micro-batch-size", 2, "--grad-accum-steps", 2)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--log-every", 77), []),
        (("--seeds", 3), []),
        (("--steps", 9), ["steps 6", 9]),
        (("--threads", 1), ["threads None", 1]),
        (("--implementation", "hf-trainer"), ["hf-trainer", "bertbench"]),
        (("--data", "synthetic:uniform"), ["data synthetic", "synthetic:uniform"]),
    ],
)
def test_a_folder_with_other_trainings_is_refused(
    tmp_path: Path, words: tuple[object, ...], facts: list[object]
) -> None:
    place = Trainings(tmp_path)
    planned(tmp_path, *SMALL, "--vary", "devices=1,2").write()
    if not facts:
        assert pair(tmp_path, *words)
        return
    with refused("settings-changed", *facts, place.path, "--out"):
        pair(tmp_path, *words)


def test_a_training_that_has_not_begun_is_not_complete(tmp_path: Path) -> None:
    plan = planned(tmp_path, *SMALL, "--vary", "devices=1,2")
    assert not plan.complete(plan.trainings[0])
    write_record(plan.trainings[0].run.state_json, {"status": "refused", "reason": "strategy dp needs a GPU"})
    assert plan.complete(plan.trainings[0]), "it is not tried again"


def test_a_variant_on_several_devices_is_profiled_as_it_is_trained(tmp_path: Path) -> None:
    words = ("--vary", "step=fast,plain", "--devices", 2, "--micro-batch-size", 2)
    plan = planned(tmp_path, *SMALL, *words)
    two, _ = plan.trainings
    trial = plan.profile_trials(3)[two.variant]
    assert (trial.kind, trial.profiler, trial.strategy, trial.world_size) == ("profile", "torch", "ddp", 2)
    assert (trial.micro_batch_size, trial.grad_accum_steps, trial.seq_len) == (2, 2, 32)
    assert (trial.start_iteration, trial.stop_iteration, trial.step) == (2, 5, "fast")
    BertbenchImplementation().check(trial)


UNTIL = ("--until", "mlm_loss=4", "--seq-len", SEQ_LEN, "--preset", "tiny", "--global-batch-size", 8)


def test_a_training_to_a_target_is_evaluated_on_real_held_out_shards(folder: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path, *UNTIL, "--data", folder, "--steps", 120)
    settings = plan.trainings[0].plan.settings
    assert (settings.steps, settings.eval_every, plan.target) == (120, 3, 4.0) and EVALUATIONS >= 120 / 3
    some = planned(tmp_path, *UNTIL, "--data", folder, "--eval-samples", 8)
    documents = [one.write()[0] for one in (plan, some)]
    assert [one["data"]["held_out_samples"] for one in documents] == [20, 8]
    assert str(tmp_path) not in str(documents[0]) and str(folder) not in str(documents[0])
    assert documents[0]["target"] == {"score": "mlm_loss", "value": 4.0} and documents[0]["data"]["samples"] == 88
    without = shutil.copytree(folder, tmp_path / "shards")
    next(without.glob("*test*")).unlink()
    with refused("data-missing", without):
        planned(tmp_path / "out", *UNTIL, "--data", without)


@pytest.mark.parametrize(("losses", "reached"), [((7.0, None, 6.6), False), ((7.0, 6.5), True), ((6.4, 7.0), True)])
def test_a_training_is_asked_to_stop_once_an_evaluation_is_at_or_below_the_target(
    losses: tuple[float | None, ...], reached: bool, tmp_path: Path
) -> None:
    directory = TrainRun(tmp_path).run.trial("a")
    directory.path.mkdir(parents=True)
    with StopRequest() as stop:
        progress = TrainProgress(stop, until=("mlm_loss", 6.5))
        progress.look(Trial(), directory)
        assert not progress.stop_wanted()
        evaluated = [
            {"event": "evaluated", "applied_steps": number, "samples": 3, "mlm_loss": loss}
            for number, loss in enumerate(losses)
        ]
        write_events(directory, *evaluated)
        progress.end()
        assert progress.stop_wanted() is reached
