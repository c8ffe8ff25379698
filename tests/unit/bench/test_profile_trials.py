"""Which profiles are kept, and which are made again."""

from pathlib import Path

import pytest

from analysis.metrics.name_coverage import NameCoverage
from analysis.profiles import ProfileSummary
from analysis.records import RunDirectory, Trial, write_record
from bench import profiling
from bench.cli import profile
from bench.profiling import unprofiled


def trial(profiler: str) -> Trial:
    return Trial(kind="profile", profiler=profiler, start_iteration=1, stop_iteration=3)


@pytest.mark.parametrize(
    ("profiler", "problem", "kept"), [("torch", "", True), ("torch", "it was cut short", False), ("nvtx", "", False)]
)
def test_what_is_useless_or_leaves_no_files_runs_again(tmp_path: Path, profiler: str, problem: str, kept: bool) -> None:
    item = trial(profiler)
    directory = RunDirectory(tmp_path).trial(item.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, item.to_json())
    write_record(directory.result_json, {"status": "ok", "profile": {"problem": problem, "files": []}})
    profiling._forget_useless_profile(directory, item)
    assert directory.result_json.exists() is kept


def test_the_unprofiled_twin_is_the_same_run_and_no_throughput_result() -> None:
    item = trial("nsys")
    twin = unprofiled(item)
    assert (twin.kind, twin.profiler, twin.profiler_options) == ("probe", None, ())
    assert (twin.start_iteration, twin.stop_iteration, twin.preset) == (1, 3, item.preset)
    assert twin.trial_id != item.trial_id


def test_options_of_a_profiler_make_another_trial_and_none_keep_the_old_id() -> None:
    plain = trial("torch")
    assert plain.trial_id != Trial(**{**plain_fields(plain), "profiler_options": ("shapes",)}).trial_id
    assert Trial.from_json(plain.to_json()) == plain


@pytest.mark.parametrize(("ratio", "doubted"), [(1.3, False), (0.95, False), (0.5, True)])
def test_a_profile_quicker_than_the_run_without_it_is_doubted(
    ratio: float, doubted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = {"step_time_ratio": ratio, "unprofiled_step_time_ms": 10.0}
    result = {"step_time_ms": 10 * ratio, "profile": cost}
    item = profiling.Profiled(trial=trial("torch"), result=result, files=(), problem="")
    profile._show(item, ProfileSummary(coverage=NameCoverage(names=0, other_share=None)))
    said = capsys.readouterr().out
    assert f"10.00 ms without: x {ratio:.2f}" in said
    assert ("run again on a quiet machine" in said) is doubted


def plain_fields(item: Trial) -> dict[str, object]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}
