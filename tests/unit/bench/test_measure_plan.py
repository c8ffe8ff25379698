"""`bertbench measure` around commands that do not train: what is refused, and how each end is told."""

import sys
from pathlib import Path

import pytest
from support.refusals import refused

from analysis.diagnose.answer import script_answer
from analysis.diagnose.run import cautions_of_scripts
from analysis.load import load_run, summarize_trial
from analysis.metrics.comparison.runs import compare_runs
from analysis.metrics.throughput import summarize
from bench.cli.dispatch import result_of
from bench.cli.result import Result
from bench.run.script import profile_of, why_incomplete
from bench.sweep.script import name_of, plan_script
from common.errors import Code
from records.files import RowWriter, write_record
from records.run import RunDirectory, TrialDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


def measured(out: Path, *command: str, options: tuple[str, ...] = ()) -> Result:
    return result_of(["measure", "--out", str(out), *options, "--", *command])


def test_ends_without_a_step_are_told_apart_and_each_call_adds_a_round(tmp_path: Path) -> None:
    ends = {
        "import json": ("refused", 3, 0, "did not import PyTorch"),
        "import sys; print('why it fails'); sys.exit(5)": ("crashed", 5, 5, "exit code 5"),
        "import os; os.kill(os.getpid(), 9)": ("crashed", 137, 137, "SIGKILL"),
    }
    for program, (status, code, own, said) in ends.items():
        result = measured(tmp_path, sys.executable, "-c", program)
        assert (result.document["status"], result.code, result.document["exit_code"]) == (status, code, own)
        assert said in result.document["reason"]
    assert "why it fails" in (tmp_path / "results.csv").read_text(), "the end of the log"
    again = measured(tmp_path, sys.executable, "-c", "import json")
    assert again.document["round"] == 1
    assert len(RunDirectory(tmp_path).trials()) == 4
    assert not list(tmp_path.glob("trials/*/hook")), "notes are no records"


def test_other_trials_of_the_folder_stay_as_they_are(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    sweep, damaged = run.trial(Trial().trial_id), run.trial("damaged")
    for directory in (sweep, damaged):
        directory.path.mkdir(parents=True)
    write_record(sweep.trial_json, Trial().to_json())
    damaged.trial_json.write_text("{")
    assert measured(tmp_path, "true").document["status"] == "refused"
    assert sweep.read_result() is None, "an unfinished trial of a sweep is resumed"
    assert damaged.trial_json.read_text() == "{" and not damaged.result_json.exists()
    for folder in tmp_path.glob("trials/measure-*"):
        (folder / "result.json").write_text("{")
    assert measured(tmp_path, "true").document["round"] == 1


def test_a_program_without_the_hook_is_told_and_a_hang_ends_at_the_limit(tmp_path: Path) -> None:
    result = measured(tmp_path, "true")
    assert result.document["status"] == "refused" and "PYTHONPATH" in result.document["reason"]
    result = measured(tmp_path, "sleep", "300", options=("--timeout-seconds", "1"))
    assert (result.code, result.document["status"]) == (3, "timeout")


PROFILED = ["--start", "0", "--stop", "2", "--profile"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["measure", "--", "no-such-program"], "tool-missing"),
        (["measure", "--", __file__], "option-value"),
        (["measure"], "option-missing"),
        (["measure", "--out", "run", "--profile", "--", "true"], "option-missing"),
        (["measure", "--out", "run", *PROFILED, "--", "true"], "option-value"),
        (["measure", "--out", "run", "--start", "10", "--", "true"], "option-missing"),
        (["measure", "--outt", "x", "--", "true"], "option-unknown"),
    ],
)
def test_what_cannot_be_started_is_refused(
    words: list[str], code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(code):
        result_of(words)


def test_the_steps_outside_of_a_profile_are_measured() -> None:
    trial = Trial(
        kind="measure", command=("train",), precision="", profiler="torch", start_iteration=3, stop_iteration=5
    )
    times = [9.0, 2.0, 2.0, 7.0, 7.0, 5.0, 2.5, 2.5, 2.5, 2.5]
    steps = {0: [{"step": number, "step_time_ms": time, "start_ns": None} for number, time in enumerate(times)]}
    result = summarize(trial, steps, {0: {"steps": 10}}, {})
    assert (result["window_start"], result["window_stop"], result["step_time_ms"]) == (6, 10, 2.5)
    early = summarize(trial, {0: steps[0][:7]}, {}, {})
    assert (early["window_stop"], early["step_time_ms"]) == (3, 2.0), "before the profile there are more"


def stepped(
    trial: Trial, folder: Path, made: int, step_ms: float = 2.0, script: str = "aa", data_ms: float = 0.0
) -> TrialDirectory:
    """The records of a script that made so many steps of 4 samples."""
    directory = RunDirectory(folder).trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    with RowWriter(directory.steps_csv(0), STEP_COLUMNS) as writer:
        for number in range(made):
            row = {
                "step": number,
                "step_time_ms": step_ms,
                "samples": 4,
                "start_ns": int(step_ms * 1e9) + number,
                "data_wait_ms": data_ms,
            }
            writer.write({**dict.fromkeys(STEP_COLUMNS), **row})
    write_record(directory.rank_json(0), {"rank": 0, "steps": made})
    write_record(directory.trial_json, trial.to_json())
    write_record(directory.env_json, {"script_sha256": script, "device_name": "CPU"})
    write_record(directory.result_json, {"trial_id": trial.trial_id, "status": "ok", "reason": ""})
    return directory


def script(**fields: object) -> Trial:
    return Trial(kind="measure", command=("train",), precision="", **fields)  # type: ignore[arg-type]


def test_a_window_behind_the_scripts_end_is_no_measurement_and_one_that_is_cut_says_so(tmp_path: Path) -> None:
    behind = script(start_iteration=100, stop_iteration=200)
    why = why_incomplete(behind, stepped(behind, tmp_path, 60))
    assert "60 steps" in why and "--start" in why
    cut = script(start_iteration=50, stop_iteration=200)
    directory = stepped(cut, tmp_path, 60)
    assert why_incomplete(cut, directory) == ""
    found = {one["code"]: one for one in summarize_trial(cut, directory)["cautions"]}
    assert "60 steps: 10 of" in found["window_cut"]["message"] and "--stop" in found["window_cut"]["remedy"]
    whole = script(start_iteration=50, stop_iteration=55)
    cautions = summarize_trial(whole, stepped(whole, tmp_path, 60))["cautions"]
    assert {one["code"]: one["remedy"] for one in cautions} == {"too_few_steps": "raise --stop"}
    profiled = script(start_iteration=100, stop_iteration=200, profiler="torch")
    directory = stepped(profiled, tmp_path, 60)
    assert why_incomplete(profiled, directory) == "", "its steps are those outside of the window"
    directory.profile.mkdir()
    assert "60 steps" in profile_of(profiled, directory, 2.0)["problem"]


def test_the_whole_run_stands_beside_the_window(tmp_path: Path) -> None:
    directory = stepped(script(implementation="t.py"), tmp_path, 0)
    times = [2.0 if number % 10 else 40.0 for number in range(1, 41)]
    with RowWriter(directory.steps_csv(0), STEP_COLUMNS) as writer:
        for number, time_ms in enumerate(times):
            row = {"step": number, "step_time_ms": time_ms, "samples": 4, "start_ns": number, "data_wait_ms": 0.2}
            row |= {"forward_ms": 0.5, "backward_ms": 1.0, "optimizer_ms": 0.1, "real_tokens": 4, "padded_tokens": 10}
            writer.write({**dict.fromkeys(STEP_COLUMNS), **row})
    aside, framework = {"evaluation": {"count": 4, "seconds": 0.08}}, {"train_samples_per_second": 650.0}
    write_record(directory.rank_json(0), {"rank": 0, "aside": aside, "framework": framework})
    (trial,) = load_run(RunDirectory(tmp_path))
    whole = trial.row["whole_run"]
    assert (whole["long_steps"], whole["long_every"], whole["longest_ms"]) == (4, 10, 40.0)
    assert whole["samples_per_second"] == pytest.approx(160 / 0.232) and whole["long_share"] == pytest.approx(160 / 232)
    padding, step, run, trainer = script_answer([trial]).sentences
    assert padding.startswith("60.0 % of all positions are padding")
    assert "data wait 10.0 %, forward 25.0 %, backward 50.0 %, optimizer 5.0 %, rest 10.0 %" in step
    assert "690 samples/s" in run and "69.0 % of its time in 4 long steps (every 10th" in run
    assert "evaluation 0.0800 s" in run and "train_samples_per_second 650" in trainer


def test_a_machine_that_slows_down_is_no_warm_up() -> None:
    times = [50.0, *[2.0] * 20, *[3.0] * 60]
    steps = {0: [{"step": number, "step_time_ms": time, "start_ns": None} for number, time in enumerate(times)]}
    assert summarize(script(), steps, {}, {})["steps_warmup"] == 1
    assert summarize(Trial(), steps, {}, {})["steps_warmup"] == 21, "in a trial of our own it is: clocks settle"


def test_rounds_of_an_edited_script_are_one_measurement_that_says_so(tmp_path: Path) -> None:
    for number, (step_ms, content) in enumerate([(2.0, "aa"), (4.0, "aa"), (3.0, "bb")]):
        stepped(script(implementation="t.py", round=number), tmp_path, 30, step_ms, content)
    run = RunDirectory(tmp_path)
    trials = load_run(run)
    (row,) = compare_runs(run, run)["rows"]
    assert row["step_time_ms_a"] == 3.0
    assert "3.00 ms per step" in script_answer(trials).headline and "3 rounds" in script_answer(trials).headline
    for command in ("report", "analyze"):
        (answer,) = result_of([command, str(tmp_path), "--json"]).document["answers"]
        assert "3.00 ms per step" in answer["headline"]
    (found,) = cautions_of_scripts(trials)
    assert found.code == "script_changed" and "aa, bb" in found.message
    assert cautions_of_scripts(trials[:2]) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "-u", "dir/train.py", "--data", "other.py"), "train.py"),
        (("torchrun", "--nproc-per-node", "2", "train.py"), "train.py"),
        (("python", "-m", "package.train"), "package.train"),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"), "train.py"),
        (("/usr/bin/run", "-m", "fast"), "run"),
        (("bash", "-e", "jobs/train.sh"), "train.sh"),
    ],
)
def test_a_command_has_the_name_of_its_script(command: tuple[str, ...], name: str) -> None:
    assert name_of(command) == name


def test_a_trial_holds_no_secret_and_survives_its_file(tmp_path: Path) -> None:
    token = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zB9dF1hJ2k"
    trial = plan_script(RunDirectory(tmp_path), ("python", "train.py", f"--token={token}"))
    assert token not in str(trial.to_json())
    assert Trial.from_json(trial.to_json()) == trial
    assert trial.trial_id.startswith("measure-train.py-n1-r0-")
