"""Writes synthetic run directories whose true metrics are known."""

import csv
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from records.classification import FORMAT as CLASSIFICATION
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.schema import STEP_COLUMNS, TELEMETRY_COLUMNS
from records.training import TrainRun, write_curve
from records.trial import Trial

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND

ENVIRONMENT = {
    "host": "node-a",
    "device_name": "Example CPU 9000",
    "system": "Linux 6.1",
    "python": "3.11.4",
    "cpu": {"model": "Example CPU 9000", "physical_cores": 8, "logical_cores": 16, "flags": ["avx2", "avx512_bf16"]},
    "memory_bytes": 64 * 2**30,
    "gpus": [],
    "native_bf16": True,
    "libraries": {"torch": "2.13.0", "numpy": "2.4.6"},
    "load_average": [0.1, 0.2, 0.3],
    "telemetry_unavailable": {"cpu energy_joules": "RAPL cannot be read here (PermissionError)", "gpu": "no GPU"},
}


def step_rows(
    times_ms: Sequence[float],
    samples: int,
    *,
    communication: float | None = None,
    data_wait: float = 0.5,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Rows of one rank: phases add up to the step, 100 real of 128 tokens per sample, 1e9 FLOPs per sample."""
    rows, now = [], START_NS
    for step, time in enumerate(times_ms):
        own = time - data_wait - (communication or 0.0)
        row = {
            "step": step,
            "start_ns": now,
            "step_time_ms": float(time),
            "data_wait_ms": data_wait,
            "forward_ms": own * 0.3,
            "backward_ms": own * 0.6,
            "communication_ms": communication,
            "optimizer_ms": own * 0.1,
            "samples": samples,
            "real_tokens": 100 * samples,
            "padded_tokens": 128 * samples,
            "predicted_positions": 15 * samples,
            "model_flops": 1e9 * samples,
            "loss": 10.0 - 0.01 * step,
            "learning_rate": 1e-4,
        }
        rows.append({**row, **columns})
        now += int(time * 1e6)
    return rows


def rank_record(peak: float = 4e11, memory: int = 2**30, after: float | None = None) -> dict[str, Any]:
    """What one rank measured once."""
    return {
        "peak_memory_bytes": memory,
        "peak_memory_kind": "resident set",
        "measured_peak": {"before": peak, "after": after or peak, "dtype": "bfloat16", "shape": [2048] * 3},
        "parameters": 11_170_560,
        "seconds": {"import_torch": 1.5, "build_model": 0.2, "train": 6.0},
    }


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, None as an empty field."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows({name: "" if row.get(name) is None else row[name] for name in columns} for row in rows)


def write_trial(
    run: RunDirectory,
    trial: Trial,
    steps: dict[int, list[dict[str, Any]]] | None = None,
    *,
    status: str | None = "ok",
    reason: str = "",
    environment: dict[str, Any] | None = None,
    telemetry: Sequence[dict[str, Any]] = (),
    ranks: dict[int, dict[str, Any]] | None = None,
) -> Trial:
    """Write one trial as the harness does; status None leaves it unfinished."""
    directory = run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    write_record(directory.env_json, ENVIRONMENT if environment is None else environment)
    for rank, rows in (steps or {}).items():
        write_csv(directory.steps_csv(rank), list(STEP_COLUMNS), rows)
        write_record(directory.rank_json(rank), (ranks or {}).get(rank, rank_record()))
    if telemetry:
        write_csv(directory.telemetry_csv(0), list(TELEMETRY_COLUMNS), list(telemetry))
    if status is not None:
        write_record(directory.result_json, {"trial_id": trial.trial_id, "status": status, "reason": reason})
    return trial


EVALUATED = {
    "event": "evaluated", "applied_steps": 20, "mlm_loss": 3.0, "mlm_accuracy": 0.25, "nsp_loss": 0.5,
    "nsp_accuracy": 0.75, "samples": 64,
}  # fmt: skip


def curve_row(step: int, applied_steps: int, loss: float | None = None) -> dict[str, Any]:
    return {
        "step": step,
        "applied_steps": applied_steps,
        "samples": 8 * (step + 1),
        "loss": 9.0 - step / 10 if loss is None else loss,
        "learning_rate": 0.1,
    }


def write_training(path: Path, events: Sequence[dict[str, Any]] = ()) -> TrialDirectory:
    """Write a training of 40 steps with one attempt; the loss goes down by 0.1 from step to step."""
    place = TrainRun(path)
    trial = Trial(kind="train", preset="tiny", training=(("steps", 40),))
    directory = place.run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    write_curve(place.curve_csv, [curve_row(step, step + 1) for step in range(40)])
    write_events(directory, *events)
    return directory


def write_events(directory: TrialDirectory, *events: dict[str, Any]) -> None:
    if events:
        directory.events_jsonl.write_text("".join(json.dumps(event) + "\n" for event in events))


def noisy_times(median_ms: float, count: int, seed: int, warmup: int = 2, noise: float = 0.01) -> list[float]:
    """Step times around a median, the first ones slower."""
    random = np.random.default_rng(seed)
    times = median_ms * (1 + noise * random.standard_normal(count))
    times[:warmup] *= np.linspace(4, 1.6, warmup)
    return [float(time) for time in times]


# Median step time in ms at micro batch 16 on one device; a batch of b takes b / 16 of it plus an overhead.
STEP_MS = {"bertbench": 80.0, "hf": 220.0, "hf-compiled": 170.0}


def write_sweep(
    folder: Path,
    *,
    implementations: Sequence[str] = ("bertbench", "hf"),
    batches: Sequence[int] = (4, 8, 16),
    worlds: Sequence[int] = (1, 2),
    rounds: int = 1,
    count: int = 40,
    scale: float = 1.0,
    noise: float = 0.01,
    **fields: Any,
) -> RunDirectory:
    """Write a sweep of the given axes, as `make bench` makes it."""
    run = RunDirectory(folder)
    write_record(run.path / "sweep.json", {"request": {"command": "throughput"}, "trials": []})
    base = Trial(**{"preset": "mini", "precision": "bf16", **fields})
    axes = itertools.product(implementations, batches, worlds, range(rounds))
    for seed, (name, batch, world, number) in enumerate(axes, start=1):
        trial = dataclasses.replace(base, implementation=name, micro_batch_size=batch, world_size=world, round=number)
        median = scale * (STEP_MS.get(name, 150.0) * batch / 16 + 8) * (1.05 * world if world > 1 else 1)
        steps = {}
        for rank in range(world):
            times = noisy_times(median, count, seed * 100 + rank, noise=noise)
            steps[rank] = step_rows(times, batch, communication=4.0 if world > 1 else None)
        write_trial(run, trial, steps)
    return run


def classification(**changes: Any) -> dict[str, Any]:
    """Return the document of a finished classification, with changed fields."""
    return {
        "format": CLASSIFICATION,
        "schema_version": 1,
        "labels": ["spam", "ham"],
        "label_distribution": {"train": {"ham": 8, "spam": 2}, "validate": {"ham": 1}, "test": {"ham": 3, "spam": 1}},
        "curve": [[1, 0.9], [2, 0.5]],
        "evaluations": [{"applied_steps": 2, "accuracy": 0.75, "balanced_accuracy": 0.7, "log_loss": 0.6}],
        "run": {"model": "tiny", "updates": 2, "begun_from": None},
        "test": {"confusion": [["ham", "ham", 2], ["ham", "spam", 1], ["spam", "spam", 1]]},
        **changes,
    }
