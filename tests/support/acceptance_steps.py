"""The steps of `make gpu-acceptance`: their commands, how long each may take, and what is held back for those after."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from support.acceptance_packages import VARIANTS

TOTAL_SECONDS = 520.0
"""Seconds for all steps together; what is left to nine minutes is for ending them and for writing."""
TESTS = "tests"
"""The step that a call of its own can make: the tests of the command line."""
TESTS_SECONDS = 300.0
"""How long it may take in a call of its own."""
LENGTHS = "synthetic:mean254"


class Step(NamedTuple):
    """One command."""

    name: str
    command: list[str]
    longest: float
    """Seconds after which it is ended."""
    held: float
    """Seconds that no step before it may use up: about what it takes where all is well."""
    least: float = 1.0
    """Seconds below which it is not begun."""
    needs: tuple[str, ...] = ()
    """Packages and programs without which it is left out."""
    lacks: tuple[str, ...] = ()
    """Those of them that are missing here."""


_LARGE = ["--preset", "large", "--seq-lens", "512", "--data", LENGTHS]
_FUSED = "fused-elementwise+unpad"
_BESIDE = ["--implementations", "bertbench", "hf", "hf-compiled"]
# Name, options, longest seconds, held seconds. A trial takes about 20 s on an H100, most of it PyTorch's import and the
# weights; one that is compiled 30 to 60 s.
ROWS: tuple[tuple[str, list[str], float, float], ...] = (
    (
        "large 512 batch 64",
        [*_LARGE, "--batch-sizes", "64", "--levers", "unpad", _FUSED, "unpad+compile", *_BESIDE],
        260, 165,
    ),
    (
        "large 512 batch 128",
        [*_LARGE, "--batch-sizes", "128", "--levers", "unpad", _FUSED],
        110, 75,
    ),
    (
        "large 128",
        [
            "--preset", "large", "--seq-lens", "128", "--batch-sizes", "128", "--levers", "unpad", "none",
            "--implementations", "bertbench", "hf",
        ],
        110, 55,
    ),
    (
        "large 512 batch 64 further",
        [*_LARGE, "--batch-sizes", "64", "--levers", "none", "fp8+unpad", f"fp8+{_FUSED}"],
        110, 1,
    ),
    (
        "large 512 batch 128 beside",
        [*_LARGE, "--batch-sizes", "128", *_BESIDE],
        120, 1,
    ),
    (
        "base",
        [
            "--preset", "base", "--seq-lens", "512", "--batch-sizes", "32",
            "--implementations", "bertbench", "hf", "torch-encoder",
        ],
        90, 1,
    ),
)  # fmt: skip


def steps(run: Path, lacking: Collection[str] = ()) -> list[Step]:
    """Return every step, the one worth most first, those that lack something included.

    Args:
        run: the run directory that they share.
        lacking: packages and programs that are not there (acceptance_packages.missing).
    """
    cli = [sys.executable, "-m", "bench.cli.main"]
    trial = ["--device", "cuda", "--devices", "1"]
    out = ["--out", str(run), "--json"]
    sweep = [*cli, "throughput", "pretrain", *trial, "--precisions", "bf16"]
    dropped = dropped_words(lacking)
    rows = {
        name: Step(
            f"throughput {name}",
            [
                *sweep,
                *(word for word in options if word not in dropped),
                *("--rounds", "1", "--max-seconds", "3", "--timeout-seconds", "100"),
                *out,
            ],
            longest,
            held,
        )
        for name, options, longest, held in ROWS
    }
    # tf32 keeps fp32 tensors: fewer sequences fill the memory, so that fewer trials lead to the first that fails.
    search = [*cli, "throughput", "pretrain", *trial, "--preset", "large", "--precisions", "tf32", "--seq-lens", "512"]
    search += ["--batch-sizes", "160", "--max-batch-search", "--max-batch-step", "32", "--timeout-seconds", "60", *out]
    light = [*cli, "speed-of-light", "pretrain", "--device", "cuda", "--preset", "large", "--precision", "bf16"]
    light += ["--seq-len", "512", "--data", LENGTHS, "--batch-size", "64", "--levers", "auto", "--max-seconds", "10"]
    large = [*_LARGE, "--levers", "auto", "--batch-sizes", "64"]
    mini = ["--preset", "mini", "--batch-sizes", "16"]
    plan = [
        Step("correctness", _pytest("test_correctness.py"), 60, 20, needs=_TESTING),
        rows["large 512 batch 64"],
        _profile(run, "torch", large, 10, 12, 100, 50),
        rows["large 512 batch 128"],
        # Each kernel is run 14 times: on an H100 a step of mini took more than 80 s.
        _profile(run, "ncu", ["--preset", "tiny", "--batch-sizes", "16"], 3, 4, 110, 50),
        Step("speed-of-light", [*light, *out], 80, 40, needs=("matplotlib",)),
        rows["large 128"],
        Step("doctor", [*cli, "doctor", "--json"], 30, 4),
        Step("report", [*cli, "report", str(run)], 50, 15, needs=("pandas", "matplotlib", "jinja2")),
        rows["large 512 batch 64 further"],
        rows["large 512 batch 128 beside"],
        rows["base"],
        Step("max batch", search, 160, 1, least=100),
        _profile(run, "nsys", mini, 10, 13, 60, 1),
        _profile(run, "nvtx", mini, 10, 13, 60, 1, "--nvtx", "emit"),
        # Last, and begun only where they have their time: they start many commands.
        Step(
            TESTS, _pytest("test_compiled.py", "test_commands.py"), 240, 0, least=200, needs=(*_TESTING, "safetensors")
        ),
    ]
    return [step._replace(lacks=tuple(name for name in step.needs if name in lacking)) for step in plan]


_TESTING = ("pytest", "pytest_timeout", "hypothesis")


def dropped_words(lacking: Collection[str]) -> set[str]:
    """Return the implementations and levers that are left out."""
    return {word for name, words in VARIANTS.items() if name in lacking for word in words}


def left_out(plan: list[Step], lacking: Collection[str]) -> dict[str, list[str]]:
    """Return, by name of what is missing, the steps, implementations and levers that go without."""
    return {name: [*(step.name for step in plan if name in step.needs), *VARIANTS.get(name, ())] for name in lacking}


def seconds_for(number: int, plan: list[Step], elapsed: float) -> float:
    """Return how long step `number` of the plan may take when `elapsed` seconds are gone: later steps keep theirs."""
    held = sum(step.held for step in plan[number + 1 :] if not step.lacks)
    return min(plan[number].longest, TOTAL_SECONDS - elapsed - held)


def _pytest(*files: str) -> list[str]:
    # A line for each test as it ends, and one that hangs is ended alone.
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--timeout", "100"]
    return [*command, *(f"tests/gpu/{file}" for file in files)]


def _profile(
    run: Path, tool: str, options: list[str], start: int, stop: int, longest: float, held: float, *more: str
) -> Step:
    command = [sys.executable, "-m", "bench.cli.main", "profile", "pretrain", "--device", "cuda", "--devices", "1"]
    command += [*options, "--precisions", "bf16", "--timeout-seconds", "80"]
    command += ["--start", str(start), "--stop", str(stop), "--profiler", tool, *more, "--out", str(run), "--json"]
    needs = ("pandas",) if tool == "torch" else ("pandas", "nvtx") if tool == "nvtx" else ("pandas", "nvtx", tool)
    return Step(" ".join(["profile", tool, *more[1:]]), command, longest, held, needs=needs)
