"""GPUs of known power under steps of known length: joules of the window and per sample."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import ROOT
from support.truth_book import Book

from bench.run.recorder import step_writer
from bench.run.telemetry import telemetry_writer
from records.files import write_record
from records.run import RunDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial

BEGIN_NS, STEP_NS, STEPS, FIRST, SAMPLES = 1_700_000_000_000_000_000, 50_000_000, 120, 20, 32
GPUS = {"gpu0": (300.0, 120.0), "gpu1": (280.0, 60.0)}
"""Mean and swing of their power, W, over a period of 3 s."""


def watts(device: str, seconds: float) -> float:
    mean, swing = GPUS[device]
    return mean + swing * math.sin(2 * math.pi * seconds / 3)


def joules(device: str, seconds: float) -> float:
    """Since BEGIN_NS."""
    mean, swing = GPUS[device]
    return mean * seconds + swing * 3 / (2 * math.pi) * (1 - math.cos(2 * math.pi * seconds / 3))


def write_run(folder: Path, quantity: str) -> RunDirectory:
    """A trial on two GPUs whose sensors are read about 20 times a second."""
    run, choose = RunDirectory(folder), random.Random(3)
    trial = Trial(
        device="cuda", micro_batch_size=SAMPLES // 2, world_size=2, start_iteration=FIRST, stop_iteration=STEPS
    )
    directory = run.trial(trial.trial_id)
    directory.path.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    write_record(directory.env_json, {})
    for rank in (0, 1):
        with step_writer(directory.steps_csv(rank)) as writer:
            for step in range(STEPS):
                row = dict.fromkeys(STEP_COLUMNS)
                known = {"step": step, "start_ns": BEGIN_NS + step * STEP_NS, "step_time_ms": STEP_NS / 1e6}
                writer.write({**row, **known, "samples": SAMPLES // 2, "real_tokens": 1, "padded_tokens": 1})
        write_record(directory.rank_json(rank), {"rank": rank})
    with telemetry_writer(directory.telemetry_csv(0)) as writer:
        seconds = -0.2
        while seconds < STEPS * STEP_NS / 1e9 + 0.2:
            seconds += choose.uniform(0.04, 0.06)
            for device in GPUS:
                value = watts(device, seconds) if quantity == "power_watts" else 1e6 + joules(device, seconds)
                time_ns = BEGIN_NS + round(seconds * 1e9)
                # NVML counts in mW and mJ.
                writer.write({"time_ns": time_ns, "device": device, "quantity": quantity, "value": round(value, 3)})
    write_record(directory.result_json, {"trial_id": trial.trial_id, "status": "ok", "reason": ""})
    return run


@pytest.mark.parametrize("quantity", ["power_watts", "energy_joules"])
def test_joules_of_two_gpus(quantity: str, book: Book, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", quantity)
    argv = [sys.executable, "-m", "bench.cli.main", "report", str(run.path), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    (row,) = json.loads(done.stdout)["rows"]
    begin, end = FIRST * STEP_NS / 1e9, STEPS * STEP_NS / 1e9
    used = sum(joules(device, end) - joules(device, begin) for device in GPUS)
    sensor = "power" if quantity == "power_watts" else "energy counters"
    book.check("energy", f"two GPUs, {sensor} read 20 times a second", used, row["energy_joules"], "J")
    per_sample = used / (SAMPLES * (STEPS - FIRST))
    book.check("energy", f"the same per sample, of {sensor}", per_sample, row["joules_per_sample"], "J")
    assert not book.failures()
