"""The steps of `make gpu-acceptance`: their commands, how long each may take, and what is held back for those after."""

import sys
from pathlib import Path
from typing import NamedTuple

TOTAL_SECONDS = 520.0
"""Seconds for all steps together; what is left to nine minutes is for ending them and for writing."""
LENGTHS = "synthetic:mean254"


class Step(NamedTuple):
    """One command."""

    name: str
    command: list[str]
    longest: float
    """Seconds after which it is ended."""
    held: float
    """Seconds that no step before it may use up: about what it takes where all is well."""


# Name, options, longest seconds, held seconds. A lever that has not been measured on a GPU is off unless it is named.
ROWS: tuple[tuple[str, list[str], float, float], ...] = (
    (
        "large 512",
        [
            "--preset", "large", "--seq-lens", "512", "--batch-sizes", "32", "--data", LENGTHS,
            "--levers", "auto", "unpad", "fp8+unpad", "--implementations", "bertbench", "hf",
        ],
        130, 60,
    ),
    (
        "large 128",
        [
            "--preset", "large", "--seq-lens", "128", "--batch-sizes", "128",
            "--levers", "auto", "compile", "fp8", "--implementations", "bertbench", "hf", "hf-compiled",
        ],
        130, 70,
    ),
    (
        "base",
        [
            "--preset", "base", "--seq-lens", "128", "512", "--batch-sizes", "32",
            "--implementations", "bertbench", "hf", "torch-encoder",
        ],
        110, 60,
    ),
)  # fmt: skip


def steps(run: Path) -> list[Step]:
    """Return every step, the quickest and most telling first; `run` is the run directory they share."""
    cli = [sys.executable, "-m", "bench.cli.main"]
    trial = ["--device", "cuda", "--devices", "1"]
    out = ["--out", str(run), "--json"]
    sweep = [*cli, "throughput", "pretrain", *trial, "--precisions", "bf16"]
    rows = {
        name: Step(
            f"throughput {name}",
            [*sweep, *options, "--rounds", "1", "--max-seconds", "3", "--timeout-seconds", "90", *out],
            longest,
            held,
        )
        for name, options, longest, held in ROWS
    }
    # tf32 keeps fp32 tensors: fewer sequences fill the memory, so that fewer trials lead to the first that fails.
    search = [*cli, "throughput", "pretrain", *trial, "--preset", "large", "--precisions", "tf32", "--seq-lens", "512"]
    search += ["--batch-sizes", "128", "--max-batch-search", "--max-batch-step", "32", "--timeout-seconds", "60", *out]
    light = [*cli, "speed-of-light", "pretrain", "--device", "cuda", "--preset", "large", "--precision", "bf16"]
    light += ["--seq-len", "512", "--data", LENGTHS, "--batch-size", "32", "--levers", "unpad", "--max-seconds", "10"]
    return [
        Step("doctor", [*cli, "doctor", "--json"], 60, 5),
        rows["large 512"],
        _profile(run, "torch", "base", 32, 10, 13, 90, 30),
        _profile(run, "ncu", "mini", 16, 3, 4, 100, 40),  # each kernel is run several times
        Step("max batch", search, 120, 70),
        rows["large 128"],
        _profile(run, "nsys", "mini", 16, 10, 13, 90, 40),
        rows["base"],
        Step("speed-of-light", [*light, *out], 60, 25),
        _profile(run, "nvtx", "mini", 16, 10, 13, 60, 20, "--nvtx", "emit"),
        Step("report", [*cli, "report", str(run)], 60, 20),
        Step("tests", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"], 240, 0),
    ]


def _profile(
    run: Path, tool: str, preset: str, batch: int, start: int, stop: int, longest: float, held: float, *more: str
) -> Step:
    command = [sys.executable, "-m", "bench.cli.main", "profile", "pretrain", "--device", "cuda", "--devices", "1"]
    command += ["--preset", preset, "--precisions", "bf16", "--batch-sizes", str(batch), "--timeout-seconds", "80"]
    command += ["--start", str(start), "--stop", str(stop), "--profiler", tool, *more, "--out", str(run), "--json"]
    return Step(" ".join(["profile", tool, *more[1:]]), command, longest, held)


def seconds_for(number: int, plan: list[Step], elapsed: float) -> float:
    """Return how long step `number` of the plan may take when `elapsed` seconds are gone: later steps keep theirs."""
    held = sum(step.held for step in plan[number + 1 :])
    return min(plan[number].longest, TOTAL_SECONDS - elapsed - held)
