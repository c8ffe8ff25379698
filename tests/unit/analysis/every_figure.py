"""Every figure of the suite, of records and numbers that are written here."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fake_run, ncu_csv
from support.fake_run import START_NS, write_sweep
from support.rings import Machine, write_collectives
from support.timelines import timeline

from analysis.counters import KernelCounters
from analysis.diagnose.answer import points
from analysis.load import load_run
from analysis.metrics.classification import classify
from analysis.metrics.communication.links import fitted_links
from analysis.metrics.comparison.history import history_of
from analysis.metrics.comparison.regression import compare_runs
from analysis.metrics.comparison.traces import compare_traces
from analysis.metrics.comparison.trainings import TrainingComparison, VariantCurve
from analysis.metrics.kernels.core_utilization import core_use, core_use_by_family
from analysis.metrics.kernels.roofline import roofline
from analysis.metrics.scaling import measured_efficiency
from analysis.metrics.speed_of_light import ARITHMETIC, FLOOR, LOSS, NOT_EXPLAINED
from analysis.readers.ncu.reader import read
from analysis.render import (
    classification_figures,
    comparison_figures,
    kernel_figures,
    link_figures,
    study_figures,
    task_figures,
    trace_figures,
)
from analysis.render import training_figures as trainings
from analysis.render.figure import Figure
from analysis.render.history_page import history_figures
from analysis.render.run_figures import run_figures, waterfall_figure
from analysis.timeline import Timeline
from records.run import RunDirectory

MS = 1_000_000


def every_figure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return at least one figure of each kind that the suite draws."""
    found = [*of_runs(folder, monkeypatch), *of_traces(), *of_kernels(folder), *of_trainings(), *of_tasks()]
    found += [*of_links(folder), *study_figures.tune_figures(study()), *of_classification()]
    return found


def of_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Figure]:
    trials = load_run(write_sweep(folder / "sweep", batches=(4, 8, 16), worlds=(1, 2), count=40, rounds=3))
    yield from run_figures(trials, points(trials), measured_efficiency(trials))
    bars = [
        (ARITHMETIC, FLOOR, 24.0), ("memory traffic", FLOOR, 17.0), ("attention", LOSS, 21.5),
        ("optimizer", LOSS, -3.2), (NOT_EXPLAINED, LOSS, 9.7), ("measured step", "total", 69.0),
    ]  # fmt: skip
    row = {"implementation": "bertbench", "preset": "mini", "precision": "bf16", "seq_len": 128, "micro_batch_size": 8,
           "world_size": 1, "device": "cuda", "strategy": "single"}  # fmt: skip
    waterfall = [{"name": name, "kind": kind, "ms": ms, "share": ms / 69} for name, kind, ms in bars]
    yield waterfall_figure({**row, "waterfall": waterfall})
    days = []
    for day, scale in enumerate((1.0, 1.2, 0.9)):
        monkeypatch.setattr(fake_run, "START_NS", START_NS + day * 86_400 * fake_run.SECOND)
        one = {"implementations": ("bertbench",), "batches": (8, 16), "worlds": (1,), "rounds": 3}
        days.append(write_sweep(folder / "days" / f"day-{day}", scale=scale, **one))
        for one_trial in days[-1].trials():
            commit = {"git_commit": f"{day}" * 40, "libraries": {"torch": f"2.{day}.0"}}
            one_trial.env_json.write_text(json.dumps({**fake_run.ENVIRONMENT, "schema_version": 1, **commit}))
    yield from history_figures(history_of(days))
    yield from comparison_figures.runs_figures(compare_runs(*days[:2]))


def end_of(step: int) -> int:
    return (step * 100 + 60) * MS


def rank_timeline(rank: int | None, steps: int = 3, size: int = 0) -> Timeline:
    kernels = []
    for step in range(steps):
        begin = step * 100 * MS
        kernels += [
            ("sgemm", 7, begin, begin + 40 * MS),
            ("ncclDevKernel_AllReduce", 9, begin + (30 + (rank or 0)) * MS, begin + 60 * MS),
            ("Memcpy HtoD", 7, begin + 70 * MS, begin + 75 * MS, -1, "memcpy"),
        ]
    marks = [(step, step * 100 * MS, step * 100 * MS + (80 + step) * MS) for step in range(steps)]
    calls = [
        (
            "all_reduce",
            step * 100 * MS + (30 + (rank or 0)) * MS,
            (step * 100 + 60) * MS,
            size << step,
            -1,
            9,
            "",
            2,
            step,
        )
        for step in range(steps)
    ]
    return timeline(rank, steps=marks, kernels=kernels, collectives=calls)


def recording(gemm_ms: int, extra_ms: int = 0) -> Timeline:
    """Return three steps of a product, and of another kernel where there are `extra_ms`."""
    kernels = []
    for step in range(3):
        begin = step * 100 * MS
        kernels.append(("sgemm", 7, begin, begin + gemm_ms * MS))
        if extra_ms:
            kernels.append(("softmax_kernel", 7, begin + 50 * MS, begin + (50 + extra_ms) * MS))
    marks = [(step, step * 100 * MS, step * 100 * MS + (60 + extra_ms) * MS) for step in range(3)]
    return timeline(0, steps=marks, kernels=kernels)


def of_traces() -> Iterator[Figure]:
    found = trace_figures.trace_figures([rank_timeline(rank, size=1 << 20) for rank in range(2)])
    yield from (figure for figures in found.values() for figure in figures)
    compared_traces = compare_traces([rank_timeline(0)], [rank_timeline(0, size=1 << 20)])
    yield from (figure for figures in comparison_figures.traces_figures(compared_traces).values() for figure in figures)


def counters(folder: Path, name: str = "k") -> KernelCounters:
    """Four kernels, one of which does known work."""
    path = folder / "ncu.csv"
    path.write_text(ncu_csv.raw())
    frame = read(path).kernels.assign(**{"dram__bytes.sum": 1e6, "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 1e8})
    for op in ("add", "mul", "fma"):
        frame[f"sm__sass_thread_inst_executed_op_f{op}_pred_on.sum"] = 1e6
    frame["name"] = [*frame["name"].tolist()[:3], name]
    return KernelCounters(frame, {}, "NVIDIA H200", (9, 0), ())


def of_kernels(folder: Path) -> Iterator[Figure]:
    found = counters(folder)
    yield kernel_figures.core_utilization_figure(core_use_by_family(found), "kind of work")
    groups = {f"batch {2**place}": core_use(found) for place in range(14)}
    yield kernel_figures.core_utilization_figure(groups, "micro batch size", name="cores-many")
    yield kernel_figures.roofline_figure(roofline(found))


def curve(strategy: str, devices: int, seconds: float, steps: int = 300) -> VariantCurve:
    row = {"strategy": strategy, "devices": devices, "device": "cpu", "implementation": "bertbench",
           "precision": "fp32", "samples_per_second": 8 * steps / seconds}  # fmt: skip
    percent = 100 * (1 + np.arange(steps)) / steps
    noise = 0.1 * np.random.default_rng(0).standard_normal(steps)
    return VariantCurve(
        row=row, scores={"f1": 80.5, "exact": 70.0}, seconds=seconds * percent / 100, percent=percent,
        loss=4 * np.exp(-percent / 40) + 1 + noise, learning_rate=1e-4 * (1 - percent / 100),
    )  # fmt: skip


def of_trainings() -> Iterator[Figure]:
    rng = np.random.default_rng(1)
    rows = [
        {"applied_steps": step, "loss": 9 * np.exp(-step / 90) + 2 + 0.3 * rng.standard_normal(), "learning_rate": 1e-4}
        for step in range(1, 401)
    ]
    evaluations = [
        {"applied_steps": step, "mlm_loss": 5 - step / 200, "nsp_loss": 0.6, "mlm_accuracy": step / 1000,
         "nsp_accuracy": 0.5 + step / 1000} for step in (100, 200, 300, 400)
    ]  # fmt: skip
    yield trainings.loss_figure(rows, evaluations, [150], "MLM + NSP")
    yield trainings.learning_rate_figure(rows, [150])
    for drawn in (
        trainings.evaluation_figure(evaluations, 300),
        trainings.throughput_figure([attempt(0), attempt(1)], [[START_NS + 20 * 10**9], []]),
        trainings.comparison_figure(
            compared(curve("single", 1, 90.0), curve("ddp", 2, 52.0)), "squad, mini, fp32, batch 8", "Example CPU"
        ),
        trainings.comparison_figure(compared(*(curve("ddp", n + 1, 90.0 - 7 * n) for n in range(8))), "many"),
    ):
        assert drawn is not None
        yield drawn


def compared(*curves: VariantCurve) -> TrainingComparison:
    return TrainingComparison(rows=(), curves=curves, epochs=1.0)


def attempt(number: int) -> Any:
    """As much of a trial as throughput over time reads."""
    rng = np.random.default_rng(number)
    times = 1000 * (1 + 0.05 * rng.standard_normal(60))
    ends = START_NS + np.cumsum(times) * MS
    rows = [
        {"start_ns": int(end - time * MS), "end_ns": int(end), "step_time_ms": float(time), "samples": 8}
        for time, end in zip(times, ends, strict=True)
    ]

    class Attempt:
        steps = rows

    return Attempt()


def of_tasks() -> Iterator[Figure]:
    rng = np.random.default_rng(2)
    best = {"exact match": (70.0, -0.5), "F1": (73.0, 0.25)}
    thresholds = np.linspace(-8, 9, 300)
    scores = 70 - (thresholds + 0.5) ** 2 / 4
    f1 = 73 - (thresholds - 0.25) ** 2 / 4
    yield task_figures.thresholds_figure(thresholds.tolist(), scores.tolist(), f1.tolist(), best, "predictions.json")
    answered, unanswered = rng.normal(-2, 2, 900).tolist(), rng.normal(3, 2, 800).tolist()
    yield task_figures.null_odds_figure(answered, unanswered, best, "predictions.json")
    recalls = np.linspace(0, 1, 60)
    curves = {name: ((1 - recalls / drop).tolist(), recalls.tolist(), 100 - 50 / drop)
              for name, drop in (("exact", 2), ("f1", 3), ("oracle", 100))}  # fmt: skip
    yield task_figures.precision_recall_figure(curves, "predictions.json")
    names = ["neither", "A", "B"]
    counts = np.array([[100, 20, 11], [30, 700, 60], [25, 55, 650]])
    groups = [("gender", "feminine", 500, 0.81), ("gender", "masculine", 500, 0.85),
              ("distance", "within 50 words", 500, 0.9), ("distance", "further away", 500, 0.7)]  # fmt: skip
    yield task_figures.gap_figure(counts, names, names, groups, 0.83, "gap-test.tsv, 2,000 rows, F1 83.0 %")


def of_links(folder: Path) -> Iterator[Figure]:
    machine = Machine()
    for ranks in (1, 2, 4):
        machine.write_steps(folder / "cluster", ranks, seed=ranks)
        if ranks > 1:
            write_collectives(folder / "cluster", ranks, machine.alpha_us, machine.bandwidth_gb_s)
    trials = load_run(RunDirectory(folder / "cluster"))
    yield link_figures.links_figure(fitted_links([trial for trial in trials if trial.trial.kind == "comm"]))


def trial(number: int, state: str, value: float | None, **more: Any) -> dict[str, Any]:
    own = {"values": {"learning_rate": 1e-4 * (number + 1), "init": "/w/<b>a"}, "readings": [[0, 1.0], [1, 2.0]]}
    rest = {"seconds": 2.5, "reason": "", "killed": 0, "same_as": None, "folder": f"trial-{number:04d}"}
    return {"number": number, "state": state, "value": value, **own, **rest, **more}


def study(maximize: bool = True) -> dict[str, Any]:
    """tune.json of a small study."""
    trials = [
        trial(0, "failed", None, reason="oom: no memory"), trial(1, "complete", 70.0), trial(2, "complete", 90.0),
        trial(3, "pruned", 20.0), trial(4, "complete", 80.0, same_as=1),
        trial(5, "failed", None, reason="oom: no memory"),
    ]  # fmt: skip
    return {
        "task": "squad", "objective": {"name": "f1", "label": "F1", "maximize": maximize},
        "space": {"learning_rate": "log:0.0001:0.001", "init": "/w/<b>a,/w/$b"}, "training": {"data": "/d", "steps": 3},
        "search": {"sampler": "tpe", "seed": 0, "startup_trials": 3, "pruner": "median", "trials": 6}, "trials": trials,
        "best": {**trials[2 if maximize else 1], "command": "bertbench train squad --init '/w/<b>a'", "replaces": []},
        "importance": {"evaluator": "ped-anova", "shares": {"learning_rate": 0.9, "init": 0.1}, "absent": ""},
    }  # fmt: skip


def of_classification() -> Iterator[Figure]:
    rng = np.random.default_rng(3)
    for count in (3, 40):
        labels = [f"label_{number}_of_many"[: 7 if count == 3 else 40] for number in range(count)]
        pairs = {(label, label): int(rng.integers(20, 90)) for label in labels}
        pairs |= {(label, labels[0]): 4 for label in labels[1:]}
        found = classify(Counter(pairs), labels)
        for normalized in (False, True):
            one = classification_figures.confusion_figure(found, normalized)
            yield dataclasses.replace(one, name=f"{one.name}-{count}")
        counts = {split: dict.fromkeys(labels, size) for split, size in (("train", 80), ("validate", 10), ("test", 10))}
        one = classification_figures.distribution_figure(counts, "texts of each split by label")
        yield dataclasses.replace(one, name=f"{one.name}-{count}")
    losses = [(step, 3 * np.exp(-step / 60) + 0.2 * rng.random()) for step in range(1, 200)]
    evaluations = [{"applied_steps": step, "accuracy": 0.4 + step / 500, "balanced_accuracy": 0.35 + step / 500,
                    "log_loss": 2 - step / 150} for step in (50, 100, 150, 200)]  # fmt: skip
    yield classification_figures.curves_figure(losses, evaluations, 0.25)
