"""What to do first: ranked, each cause once, nothing that the trial has, gains that independent counting allows."""

import dataclasses
import html
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.commands import document, parses, result, text
from support.fake_run import step_rows, write_sweep, write_trial
from support.timelines import event, timeline, write

from analysis.counters import KernelCounters
from analysis.diagnose.advice import LEAST, MOST, Advice, Context, ranked, throughput_command
from analysis.diagnose.answer import complete_answers, points
from analysis.diagnose.cores import findings as core_findings
from analysis.diagnose.explain import explain, to_do
from analysis.load import load_run
from analysis.open import Source
from analysis.timeline import Timeline

US = 1_000
ROW: dict[str, Any] = {
    "task": "pretrain", "preset": "tiny", "implementation": "bertbench", "step": "fast", "micro_batch_size": 8,
    "seq_len": 128, "precision": "fp32", "world_size": 1, "device": "cpu", "data": "synthetic", "kind": "profile",
    "start_iteration": 2, "stop_iteration": 9,
}  # fmt: skip


def advice(cause: str, saves: float | None, firm: bool = False) -> Advice:
    return Advice(cause=cause, seen=cause, remedy="try", saves=saves, unknown="" if saves else "?", firm=firm)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ([("batch", None), ("data", 0.1), ("host", 0.4)], ["host", "data", "batch"]),
        ([("host", 0.9), ("machine", None)], ["machine", "host"]),  # a disturbed machine comes before every gain
        ([(cause, 0.2) for cause in "abcdeabcde"], ["a", "b", "c", "d"]),
        ([("host", LEAST / 2)], []),
        ([("host", 0.6), ("host", 0.2, True)], ["host"]),
        ([("host", 0.6), ("host", 0.0, True)], []),  # a measured gain replaces an estimate, a gain of nothing too
    ],
)
def test_each_cause_once_the_largest_gain_first(given: list[Any], shown: list[str]) -> None:
    found = ranked([advice(*one) for one in given])
    assert [one.cause for one in found] == shown and len(found) <= MOST
    assert all(one.saves == 0.2 for one in found if (one.cause, 0.2, True) in given)


@pytest.mark.parametrize(
    "changes", [{}, {"precisions": "bf16"}, {"batch_sizes": 64}, {"grad_accum": 4}, {"step": "fast"}]
)
def test_commands_parse(changes: dict[str, Any], tmp_path: Path) -> None:
    row = {**ROW, "preset": "large", "step": "plain", "threads_per_rank": 2}
    parses(throughput_command(row, str(tmp_path / "a run"), **changes))
    gap = {**row, "task": "gap", "task_options": '{"head": "span", "train_on_all": true}'}
    assert throughput_command(gap, "run", **changes).startswith("bertbench throughput gap --head span --train-on-all ")
    zero = {**row, "strategy": "deepspeed", "strategy_options": '{"zero_stage": 1}', "world_size": 2}
    assert "--zero-stages 1" in throughput_command(zero, "run", **changes)
    for one in (gap, zero, {**row, "task": "classify", "task_options": '{"labels": 2}'}):
        parses(throughput_command(one, "run", **changes))


def fp32_gemms(kind: str) -> list[Timeline]:
    """Five sixths of a step of 600 us are fp32 GEMMs, on a GPU or as operators of a CPU."""
    steps = [(0, 0, 600 * US)]
    if kind == "GPU":
        return [timeline(steps=steps, kernels=[("ampere_sgemm_128x64_tn", 7, 0, 500 * US)])]
    one = timeline(steps=steps, operators=[("aten::mm", 0, 500 * US)])
    return [dataclasses.replace(one, operators=one.operators.assign(precision="fp32"))]


@pytest.mark.parametrize("kind", ["GPU", "CPU"])
def test_bf16_is_advised_for_fp32_and_never_for_a_bf16_trial(kind: str) -> None:
    for precision, advised in (("fp32", True), ("bf16", False)):
        context = Context(row={**ROW, "precision": precision}, run="runs/a", native_bf16=True)
        source = Source(path=Path("trace"), timelines=tuple(fp32_gemms(kind)))
        findings = explain(source, context=context)
        found = {one.cause: one for one in to_do(source, findings, context)}
        assert ("precision" in found) == advised
        if advised:
            assert found["precision"].saves == pytest.approx(5 / 6)
            assert "--precisions bf16" in found["precision"].command
            parses(found["precision"].command)


def test_a_busy_machine_is_named_before_operators_are_to_be_made_faster() -> None:
    """Nothing but operators: what others took of the CPU is in their time."""
    source = Source(path=Path("trace"), timelines=(timeline(operators=[("aten::mm", 0, 500 * US)]),))
    taken = "other processes used 43 % of the CPUs while this trial was measured"
    for context in (Context(), Context(row=ROW, run="runs/a", disturbed=taken)):
        findings = {one.name: one for one in explain(source, context=context)}
        advised = to_do(source, list(findings.values()), context)
        assert [one.cause for one in advised[:1]] == (["machine"] if context.disturbed else [])
        if advised:
            assert advised[0].command.endswith("--out runs/a-again")
            parses(advised[0].command)


@pytest.mark.parametrize(
    ("usual", "other", "scale"), [("fp32", "bf16", 0.5), ("bf16", "fp32", 0.7), ("fp32", "bf16", 2.0)]
)
def test_a_precision_that_was_faster_in_the_run_is_advised_and_a_slower_one_never(
    usual: str, other: str, scale: float, tmp_path: Path
) -> None:
    """The gain is what the run measured; what a profile estimates about precision does not count beside it."""
    batches: dict[str, Any] = {"implementations": ("bertbench",), "worlds": (1,), "count": 15}
    write_sweep(tmp_path, precision=usual, batches=(4, 8), **batches)
    trials = list(load_run(write_sweep(tmp_path, precision=other, batches=(8,), scale=scale, **batches)))
    trial = next(one for one in trials if one.trial.precision == usual and one.trial.micro_batch_size == 8)
    profile = dataclasses.replace(trial.trial, kind="profile", profiler="torch")
    row = {**trial.row, "samples_per_second": None}
    trials.append(dataclasses.replace(trial, trial=profile, row=row))
    found = points(trials)
    rates = {p: max(one.samples_per_second for one in found if one.row["precision"] == p) for p in (usual, other)}
    guess = {profile.trial_id: [advice("precision", 0.9)]}
    first = complete_answers(trials, found, [], str(tmp_path), guess)[0]
    assert first.numbers["samples_per_second"] == rates[usual]
    chosen = [one for one in first.advice if one.cause == "precision"]
    assert len(chosen) == (scale < 1)
    for one in chosen:
        assert one.saves == pytest.approx(1 - rates[usual] / rates[other]) and f"--precisions {other}" in one.command
        parses(one.command)


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, True),
        ({"slower": 1.2}, True),
        ({"slower": 1.3}, False),
        ({"slower": 0.7}, False),
        ({"cautions": [{"code": "not_explained", "message": "parts", "remedy": "again"}]}, False),
        ({"cautions": [{"code": "loaded", "message": "other work", "remedy": "again"}]}, False),
        ({"cautions": [{"code": "drifted", "message": "drift", "remedy": "again"}]}, False),
        ({"floor": 1.1}, False),
    ],
)
def test_a_speed_of_light_that_does_not_describe_the_step_is_not_used(
    changes: dict[str, Any], used: bool, tmp_path: Path
) -> None:
    """Then no share of the floor comes from it; a second, sound measurement is used instead."""
    (first, *_) = load_run(write_sweep(tmp_path, implementations=("bertbench",), batches=(8,), worlds=(1,), count=15))
    step = first.row["step_time_ms"]
    sound = {**first.row, "of_floor": 0.5, "floor_ms": 0.5 * step}
    row = {**sound, "step_time_ms": changes.get("slower", 1.0) * step, "cautions": changes.get("cautions", [])}
    row |= {"floor_ms": changes.get("floor", 0.5) * step, "of_floor": changes.get("floor", 0.5)}
    parts = dataclasses.replace(first.trial, kind="components")
    made = [first, dataclasses.replace(first, row=row, trial=parts)]
    (said,) = complete_answers(made, points(made[:1]), [], "a run")
    assert (said.numbers["of_floor"] is not None) == used
    made.append(dataclasses.replace(first, row=sound, trial=parts))
    (said,) = complete_answers(made, points(made[:1]), [], "a run")
    assert said.numbers["of_floor"] == 0.5


@pytest.mark.more
@pytest.mark.usefixtures("pictures_of_one_pixel")
def test_page_terminal_and_json_say_the_same_first(tmp_path: Path) -> None:
    """Also of a run with a profile."""
    run = write_sweep(tmp_path, implementations=("hf-compiled", "hf"), batches=(8,), worlds=(1,), count=15)
    trial = next(one.trial for one in load_run(run) if one.trial.implementation == "hf-compiled")
    profile = dataclasses.replace(trial, kind="profile", profiler="torch", start_iteration=3, stop_iteration=6)
    write_trial(run, profile, {0: step_rows([90.0] * 6, 8)})
    folder = run.trial(profile.trial_id).profile
    folder.mkdir()
    work = [event("aten::copy_", 0, 500), event("aten::mm", 500, 100)]
    write(folder / "trace-rank0.json.gz", [event("ProfilerStep#3", 0, 1000, "user_annotation"), *work])
    reported, analyzed = (document(name, str(run.path))["answers"] for name in ("report", "analyze"))
    assert reported == analyzed
    shown = "".join(text(result("report", str(run.path)).blocks).split())
    page = html.unescape((run.report / "report.html").read_text(encoding="utf-8"))
    first = reported[0]["do_first"]
    assert first["cause"] == "fusion" and first["command"] in page and "".join(first["command"].split()) in shown
    assert reported[0]["headline"] in page


def test_counters_advise_by_what_the_busiest_unit_leaves() -> None:
    """Three quarters of the time at 20 % of a peak and a quarter at 40 %, both bound by latency: 0.6 + 0.15."""
    percent = "{}__throughput.avg.pct_of_peak_sustained_elapsed".format
    kernels = {"process": 1, "name": ["gemm", "gelu"], "duration_ns": [3e6, 1e6], "cycles": [3e6, 1e6]}
    kernels |= {percent("sm"): [20.0, 10.0], percent("l1tex"): [10.0, 40.0], percent("lts"): 5.0, percent("dram"): 5.0}
    found = core_findings(KernelCounters(pd.DataFrame(kernels), {}, None, None, ()))
    (one,) = next(finding for finding in found if finding.name == "roofline").advice
    assert one.saves == pytest.approx(0.75) and one.cause == "latency" and "gemm" in one.seen
