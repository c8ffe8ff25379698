"""What gpu-acceptance asks of the figures of its steps: hand-made ones, and what real recordings of GPUs give."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ncu_csv
from support.acceptance_checks import MOST_ROWS, complaint, figures, only_oom_that_may_be
from support.acceptance_report import markdown
from support.acceptance_script import acceptance
from support.acceptance_steps import Step

from analysis.diagnose.explain import explain
from analysis.diagnose.profiles import ProfileSummary, plain
from analysis.metrics.kernels.core_utilization import rows as core_rows
from analysis.metrics.kernels.roofline import UNKNOWN
from analysis.metrics.kernels.tables import name_coverage
from analysis.metrics.kernels.utilization import compute_utilization_rows
from analysis.sources import open_sources

TRACES = Path(__file__).resolve().parents[3].parent / "shared" / "traces"
ROW = {
    "implementation": "bertbench", "levers": "unpad", "preset": "large", "precision": "bf16", "seq_len": 512,
    "micro_batch_size": 32, "status": "ok", "reason": "", "samples_per_second": 400.0, "step_time_ms": 80.0, "mfu": 0.4,
    "peak_memory_bytes": 2**34, "joules_per_sample": 1.5, "unknown": {},
}  # fmt: skip
SEARCH = {
    "preset": "large", "precision": "fp32", "seq_len": 512, "micro_batch_size": 128, "proved": True, "fails_at": 160,
    "failure": "oom: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "tried": [[64, "ok"], [128, "ok"], [256, "oom"], [192, "oom"], [160, "oom"], [128, "ok"]],
}  # fmt: skip

CORRECT = {
    "passed": ["lamb"], "failed": [], "skipped": [], "checks": [
        {"name": "lamb", "outcome": "passed", "why": "", "error": 1e-6, "limit": 1e-3, "of": "a", "compared": 4},
    ],
}  # fmt: skip


def profile_of(path: Path, problems: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return what `profile --json` prints of a recording."""
    source = open_sources(path)
    summary = ProfileSummary(
        findings=tuple(explain(source, None, {})),
        compute=tuple(compute_utilization_rows({}, source.timelines, "")),
        core=tuple(row for counters in source.counters for row in core_rows({16: counters})),
        coverage=name_coverage(source.timelines, source.counters),
        problems=source.problems if problems is None else problems,
    )
    profile = {"trial_id": "t", "status": "ok", "reason": "", "problem": "", "files": [], **plain(summary)}
    found = {"run": "r", "profiles": [profile], "tables": []}
    return dict(json.loads(json.dumps(found)))


def counted(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "ncu.csv"
    file.write_text(ncu_csv.details())
    return profile_of(file, ())  # that one kernel lacks a value is what the file is for


def test_a_wrong_number_is_named_with_its_error() -> None:
    assert complaint("correctness", CORRECT) == ""
    assert complaint("correctness", {**CORRECT, "passed": []}) == "no test has run"
    wrong = [{"name": "adamw", "outcome": "failed", "why": "parameter 0 is off by 0.2, more than 1e-06"}]
    found = complaint("correctness", {**CORRECT, "failed": ["adamw"], "checks": wrong})
    assert "adamw" in found and "off by 0.2" in found


def test_throughput_needs_speed_use_memory_and_energy_of_every_trial() -> None:
    assert complaint("throughput x", {"rows": [ROW]}) == ""
    for column in ("samples_per_second", "mfu", "peak_memory_bytes", "joules_per_sample"):
        lacking = {**ROW, column: None, "unknown": {column: "NVML: Driver Not Loaded"}}
        said = complaint("throughput x", {"rows": [ROW, lacking]})
        assert said == f"bertbench unpad 512: no {column}: NVML: Driver Not Loaded"
        assert column in complaint("throughput x", {"rows": [{**ROW, column: 0.0}]}), "zero is no measurement"
    bad = {**ROW, "status": "refused", "reason": "fp8: this GPU has none"}
    assert complaint("throughput x", {"rows": [bad]}) == "bertbench unpad 512: refused: fp8: this GPU has none"
    assert complaint("throughput x", {"rows": []}) and complaint("throughput x", {})


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({"implementation": "hf", "micro_batch_size": 128}, True),
        ({"implementation": "hf-compiled", "micro_batch_size": 128}, True),
        ({"implementation": "bertbench", "micro_batch_size": 128}, False),
        ({"implementation": "hf", "micro_batch_size": 64}, False),
        ({"implementation": "hf", "micro_batch_size": 128, "seq_len": 128}, False),
        ({"implementation": "hf", "micro_batch_size": 128, "status": "crashed"}, False),
    ],
)
def test_that_hugging_face_does_not_fit_at_batch_128_is_a_result(
    change: dict[str, Any], accepted: bool, tmp_path: Path
) -> None:
    row = {**ROW, "levers": "", "status": "oom", "reason": "CUDA out of memory", "samples_per_second": None, **change}
    found = {"rows": [ROW, row]}
    assert (complaint("throughput x", found) == "") is accepted
    assert only_oom_that_may_be("throughput x", found) is accepted
    # The command itself ends with 3 where a trial is not ok.
    code = f"import sys; sys.stdout.write({json.dumps(found)!r}); sys.exit(3)"
    step = Step("throughput x", [sys.executable, "-c", code, "--json"], 30, 0)
    done = acceptance().run_step(step, 30, tmp_path)
    assert (done["outcome"] == "ok") is accepted and done["exit_code"] == 3
    assert not only_oom_that_may_be("throughput x", {"rows": [row]}), "nothing was measured then"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fails_at": None, "failure": "the limit of 4096 was reached without running out of memory"}, "the limit"),
        ({"fails_at": 160, "failure": "crashed: rank 0 died"}, "no trial ran out of memory"),
        ({"tried": [[64, "ok"], [128, "ok"]]}, "no trial ran out of memory"),
        ({"failure": "oom: rank 0 was killed by the kernel for lack of host memory"}, "refused allocation"),
        ({"micro_batch_size": 0}, "no batch ran"),
        ({"proved": False}, "not proved"),
    ],
)
def test_the_search_must_have_met_a_real_lack_of_memory(change: dict[str, Any], said: str) -> None:
    assert complaint("max batch", {"max_batch": [SEARCH]}) == ""
    assert said in complaint("max batch", {"max_batch": [{**SEARCH, **change}]})
    assert complaint("max batch", {"max_batch": []}) == "nothing was searched for"


def test_counters_need_core_use_and_a_roofline(tmp_path: Path) -> None:
    whole = counted(tmp_path)
    assert complaint("profile ncu", whole) == ""
    unknown = copy.deepcopy(whole)
    for row in unknown["profiles"][0]["findings"]["roofline_by_family"]["rows"]:
        row["bound"] = UNKNOWN
    assert complaint("profile ncu", unknown) == "no kind of work could be placed under the roofline"
    for table in ("core_utilization", "core_utilization_by_family", "roofline", "roofline_by_family"):
        less = copy.deepcopy(whole)
        less["profiles"][0]["findings"][table]["rows"] = []
        assert complaint("profile ncu", less) == f"no row of {table}"
        del less["profiles"][0]["findings"][table]
        assert complaint("profile ncu", less) == f"no row of {table}"
    less = copy.deepcopy(whole)
    less["profiles"][0]["core_utilization"][0] |= {"tensor_percent": None, "fma_percent": None}
    assert "neither tensor cores nor FMA" in complaint("profile ncu", less)
    less["profiles"][0]["core_utilization"] = []
    assert complaint("profile ncu", less) == "no row of core utilization"
    assert complaint("profile ncu", {"run": "r", "profiles": []}) == "there is no profile"


@pytest.mark.parametrize("tool", ["ncu", "torch", "nsys"])
def test_names_without_a_family_fail_a_profile_and_are_named(tmp_path: Path, tool: str) -> None:
    whole = counted(tmp_path)
    profile = whole["profiles"][0]
    profile["compute_utilization"] = [
        {"counted": "GPU kernels", "compute_utilization": 0.9, "sm_weighted_utilization": 0.8}
    ]
    profile["findings"]["kernel_families"] = {"rows": [{"family": "GEMM"}]}
    profile["kernel_names"] = {"names": 9, "other_share": 0.0199, "other": [], "reason": ""}
    assert complaint(f"profile {tool}", whole) == ""
    profile["kernel_names"] |= {"other_share": 0.02, "other": [{"name": "mystery<int>", "share": 0.02}]}
    assert complaint(f"profile {tool}", whole) == (
        "2.0 % of the kernels' time has no family, more than 2 %: mystery<int> (2.0 %)"
    )
    profile["kernel_names"] |= {"other_share": None, "reason": "the kernels have no times"}
    assert "the kernels have no times" in complaint(f"profile {tool}", whole)
    profile["problems"] = ["cut short"]
    assert "cut short" in complaint(f"profile {tool}", whole) and "cut short" in complaint("profile nvtx emit", whole)


@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/traces is not here")
@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ("torch", "kineto/tracelens/h100__gaunernst_bert-small-uncased__1016001.json.gz"),
        ("nsys", "nsys/result_2_7B_nvtx.sqlite.gz"),
        ("nsys", "nsys/tests__power_iteration__baseline.sqlite.gz"),
    ],
)
def test_real_recordings_of_gpus_have_all_that_is_asked(tool: str, file: str) -> None:
    assert complaint(f"profile {tool}", profile_of(TRACES / file, ())) == ""


@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/traces is not here")
def test_a_real_recording_of_unknown_kernels_or_of_a_cpu_is_refused() -> None:
    found = profile_of(TRACES / "nsys/pipit__tests__data__saxpy-mpi-cuda_nsys_perlmutter0.sqlite.gz", ())
    assert "saxpy" in complaint("profile nsys", found) and "100.0 %" in complaint("profile nsys", found)
    found = profile_of(TRACES / "kineto/hta/cpu_only__rank-34.old_b8cce2cd.json.gz", ())
    assert complaint("profile torch", found).startswith("no GPU kernels")
    # Real counters, of sections that hold no pipes.
    found = profile_of(TRACES / "ncu/attention_5-9__bert_torch_nsight.csv.gz")
    assert complaint("profile ncu", found).startswith("neither tensor cores nor FMA were counted")


def test_the_record_keeps_the_tables_that_are_looked_at_and_not_more_rows_than_that(tmp_path: Path) -> None:
    whole = counted(tmp_path)
    tables = whole["profiles"][0]["findings"]
    tables["roofline"]["rows"] *= 100
    kept = figures("profile ncu", whole)["profiles"][0]
    assert len(kept["findings"]["roofline"]["rows"]) == MOST_ROWS
    assert kept["findings"]["roofline"]["rows_in_all"] == len(tables["roofline"]["rows"])
    assert "kernels" in tables and "kernels" not in kept["findings"] and "ranges" not in kept
    assert kept["kernel_names"] == whole["profiles"][0]["kernel_names"]
    assert figures("throughput x", {"rows": [ROW]}) == {"rows": [ROW]}


def test_the_page_has_every_figure_that_is_asked_for(tmp_path: Path) -> None:
    def step(name: str, found: Any, outcome: str = "ok") -> dict[str, Any]:
        row = {"name": name, "outcome": outcome, "seconds": 3.0, "why": "", "figures": figures(name, found)}
        return {**row, "command": ["-m", "bench.cli.main", "a b"]}

    ratio = {
        "implementation": "bertbench", "preset": "large", "seq_len": 512, "throughput_ratio": 2.5, "reference": "hf",
        "decided": "cannot decide",
    }  # fmt: skip
    light = {"floor_ms": 50.0, "step_time_ms": 80.0, "waterfall": [{"name": "matrix | products", "ms": 40.0}]}
    record = {
        "command": "make gpu-acceptance", "began": "2026-11-22T10:00:00+00:00", "ended": "", "seconds": 500.0,
        "versions": {"python": "3", "torch": "2.13", "cuda": "13.0", "gpus": ["NVIDIA H200, 580"], "commit": "abc"},
        "throughput": [ROW],
        "steps": [
            step("throughput large 512", {"rows": [ROW], "ratios": [ratio]}),
            step("max batch", {"max_batch": [SEARCH]}),
            step("correctness", CORRECT),
            step("speed-of-light", light),
            step("profile ncu", counted(tmp_path)),
            step("tests", None, "left out"),
        ],
    }  # fmt: skip
    page = markdown(record)
    for words in (
        "NVIDIA H200", "5 parts are ok; left out: tests.", "max batch: python -m bench.cli.main 'a b'",
        "| lamb | passed | 1e-6 | 0.001 | a |  |", "| bertbench unpad | large 512 | bf16 | 32 | 400.0 |",
        "40.0 %", "16.00 GiB | 1.500 |", "2.50 x hf", "| large fp32 512 | 128 | yes | 160 | oom: OutOfMemoryError",
        "floor 50.00 ms, step 80.00 ms", "matrix \\| products", "| ncu | 4 | 10.5 % | 1.7 % | 31.5 % |",
        "## ncu: Roofline by kind of work", "## Kernels without a family",
    ):  # fmt: skip
        assert words in page, words
    assert "\n\n\n" not in page
    assert all(len(line.split("|")) > 2 for line in page.splitlines() if line.startswith("|"))
