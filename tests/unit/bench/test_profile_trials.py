"""Which profiles are kept, and which are made again."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import document, text
from support.refusals import refused

from analysis import views
from analysis.diagnose.profiles import OpenedProfile
from analysis.open import Source
from analysis.views import View
from bench.cli import profile
from bench.cli.profile import ProfileOptions
from bench.profilers import load_profiler
from bench.sweep import sweep
from bench.sweep.sweep import unprofiled
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial


def trial(profiler: str) -> Trial:
    return Trial(kind="profile", profiler=profiler, start_iteration=1, stop_iteration=3)


def test_the_unprofiled_twin_is_the_same_run_and_no_throughput_result() -> None:
    item = trial("nsys")
    twin = unprofiled(item)
    assert (twin.kind, twin.profiler, twin.profiler_options) == ("probe", None, ())
    assert (twin.start_iteration, twin.stop_iteration, twin.preset) == (1, 3, item.preset)
    assert twin.trial_id != item.trial_id


@pytest.mark.parametrize(("tool", "device"), [("nsys", "cpu"), ("ncu", "cuda")])
def test_a_missing_tool_is_refused_before_the_run(
    tool: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("tool-missing", tool, "Nsight"):
        load_profiler(tool).check(dataclasses.replace(trial(tool), device=device))


@pytest.mark.parametrize(("ratio", "doubted"), [(1.3, False), (0.95, False), (0.5, True)])
def test_a_profile_quicker_than_the_run_without_it_is_doubted(ratio: float, doubted: bool, tmp_path: Path) -> None:
    cost = {"files": [], "problem": "", "step_time_ratio": ratio, "unprofiled_step_time_ms": 10.0}
    result = {"trial_id": "x", "status": "ok", "reason": "", "step_time_ms": 10 * ratio, "profile": cost}
    row = {"micro_batch_size": 8, "rank": 0, "compute_utilization": 0.97, "step_time_ratio": ratio}
    view = View(document={"compute_utilization": [row], "core_utilization": []}, blocks=[])
    shown = text(
        profile._result(ProfileOptions(), RunDirectory(tmp_path), [trial("torch")], [result], [view], []).blocks
    )
    assert "97.0 %" in shown and f"{ratio:.2f}" in shown
    assert ("another --out" in shown) is doubted


@pytest.mark.parametrize(("problem", "runs"), [("", 2), ("it was cut short", 3)])
def test_a_finished_profile_is_not_measured_again_unless_it_is_useless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str, runs: int
) -> None:
    ran: list[str] = []

    def run_trial(item: Trial, directory: TrialDirectory, *rest: object) -> dict[str, object]:
        ran.append(item.kind)
        directory.profile.mkdir(parents=True, exist_ok=True)
        write_record(directory.trial_json, item.to_json())
        (directory.profile / "rank-0.txt").write_text(str(len(ran)))
        result = {"status": "ok", "reason": "", "trial_id": item.trial_id, "step_time_ms": 10.0 + len(ran)}
        write_record(directory.result_json, result)
        return result

    monkeypatch.setattr(sweep, "run_trial", run_trial)
    collected = SimpleNamespace(check=lambda trial: None, collect=lambda trial, folder: [folder / "rank-0.txt"])
    read = OpenedProfile(source=Source(path=tmp_path)), {"compute": [], "core": []}
    monkeypatch.setattr(views, "summarize", lambda directory: read)
    monkeypatch.setattr(profile, "load_profiler", lambda *rest: collected)
    monkeypatch.setattr("bench.sweep.sweep.load_profiler", lambda *rest: collected)
    words = ["pretrain", "--preset", "tiny", "--device", "cpu", "--devices", "1", "--precisions", "fp32"]
    words += ["--start", "3", "--stop", "6", "--profiler", "torch", "--out", str(tmp_path / "run")]
    (first,) = document("profile", *words)["profiles"]
    assert (len(ran), first["unprofiled_step_time_ms"], first["step_time_ms"]) == (2, 11.0, 12.0)
    place = RunDirectory(tmp_path / "run").trial(first["trial_id"])
    result = place.read_result()
    assert result is not None
    write_record(place.result_json, {**result, "profile": {**result["profile"], "problem": problem}})
    (found,) = document("profile", *words)["profiles"]
    assert (len(ran), found["unprofiled_step_time_ms"], found["step_time_ms"]) == (runs, 11.0, 10.0 + runs)
    assert Path(found["files"][0]).read_text() == str(runs)
