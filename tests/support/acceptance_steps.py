"""The parts of `make gpu-acceptance` as one table: what runs, in order of worth, how long it takes and may take."""

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from support.acceptance_packages import VARIANTS

TOTAL_SECONDS = 520.0
"""Seconds for all parts together; what is left to nine minutes is for ending the last one and for writing."""
TESTS = "tests"
"""The part that has a call of its own: the tests of the command line."""
LENGTHS = "synthetic:mean254"
FIRST_BATCH, BATCH_STEP = 160, 32
"""Where the search for the largest batch begins where the prediction promises less, and how finely it ends."""


class Step(NamedTuple):
    """One part: a command with its times."""

    name: str
    command: list[str]
    limit: float
    """Seconds after which it is ended."""
    expected: float = 0.0
    """About the seconds it takes; it is left out where fewer are left."""
    kept: bool = False
    """Whether no part before it may use up its expected seconds."""
    apart: bool = False
    """Whether it runs only in a call of its own."""
    needs: tuple[str, ...] = ()
    """Packages and programs without which it is left out."""
    lacks: tuple[str, ...] = ()
    """Those of them that are missing here."""


_CLI = "-m bench.cli.main"
_SWEEP = f"{_CLI} throughput pretrain --device cuda --devices 1 --rounds 1 --max-seconds 3 --out {{run}} --json"
_PROFILE = (
    f"{_CLI} profile pretrain --device cuda --devices 1 --precisions bf16 --timeout-seconds 80 --out {{run}} --json"
)
_LIGHT = (
    f"{_CLI} speed-of-light pretrain --device cuda --preset large --precision bf16 --seq-len 512 --data {LENGTHS} "
    "--batch-size 64 --max-seconds 10 --out {run} --json"
)
_PYTEST = "-m pytest -vv -p no:cacheprovider --timeout 100"
_LARGE = f"--preset large --precisions bf16 --seq-lens 512 --data {LENGTHS}"
_MINI = "--preset mini --batch-sizes 16"
FP8 = "bf16-weights+fp8+fused-elementwise+fused-optimizer+unpad"
_BESIDE = "--implementations bertbench hf hf-compiled"
_REPORT = ("pandas", "matplotlib", "jinja2")
_TESTING = ("pytest", "pytest_timeout", "hypothesis", "safetensors")
# Name, command, limit and expected seconds, needs. What is expected was measured on an H100 (docs/results/2026-11-26):
# a trial takes about 20 s there, most of it PyTorch's import and the weights, and one that is compiled 35 s or more.
TABLE: tuple[tuple[str, str, float, float, tuple[str, ...]], ...] = (
    ("correctness", "tests/gpu/correctness.py --seconds 45 --json", 90, 55, ()),
    ("throughput large 512 batch 64",
     f"{_SWEEP} {_LARGE} --batch-sizes 64 --levers auto {FP8} {_BESIDE} --timeout-seconds 130", 240, 160, ()),
    ("throughput large 512 batch 128",
     f"{_SWEEP} {_LARGE} --batch-sizes 128 --levers auto {FP8} --timeout-seconds 60", 90, 45, ()),
    ("report of large", f"{_CLI} report {{run}}", 40, 6, _REPORT),
    ("profile torch", f"{_PROFILE} {_LARGE} --batch-sizes 64 --levers auto --profiler torch --start 10 --stop 12",
     90, 46, ("pandas",)),
    # Each kernel is run 14 times: on an H100 a step of mini took more than 80 s.
    ("profile ncu", f"{_PROFILE} --preset tiny --batch-sizes 16 --profiler ncu --start 3 --stop 4",
     100, 50, ("pandas", "nvtx", "ncu")),
    ("throughput large 128",
     f"{_SWEEP} --preset large --precisions bf16 --seq-lens 128 --batch-sizes 128 --implementations bertbench hf "
     "--timeout-seconds 60", 80, 42, ()),
    ("throughput base 128",
     f"{_SWEEP} --preset base --precisions bf16 --seq-lens 128 --batch-sizes 128 --implementations bertbench hf "
     "--timeout-seconds 60", 70, 36, ()),
    ("throughput large 512 compiled",
     f"{_SWEEP} {_LARGE} --batch-sizes 64 --levers unpad+compile --timeout-seconds 60", 60, 30, ("triton",)),
    ("speed-of-light bf16", f"{_LIGHT} --levers auto", 70, 34, ("matplotlib",)),
    ("speed-of-light fp8", f"{_LIGHT} --levers {FP8}", 70, 36, ("matplotlib", "triton")),
    ("max batch",
     f"{_SWEEP} {_LARGE} --batch-sizes {{first_batch}} --max-batch-search --max-batch-step {BATCH_STEP} "
     "--timeout-seconds 60", 170, 110, ()),
    # These need more than 80 GiB.
    ("throughput large 512 batch 128 others",
     f"{_SWEEP} {_LARGE} --batch-sizes 128 --implementations hf hf-compiled --timeout-seconds 100", 160, 110,
     ("transformers",)),
    ("doctor", f"{_CLI} doctor --json", 30, 4, ()),
    ("profile nsys", f"{_PROFILE} {_MINI} --profiler nsys --start 10 --stop 13", 70, 40, ("pandas", "nvtx", "nsys")),
    ("profile nvtx emit", f"{_PROFILE} {_MINI} --profiler nvtx --nvtx emit --start 10 --stop 13",
     70, 40, ("pandas", "nvtx")),
    ("report", f"{_CLI} report {{run}}", 50, 10, _REPORT),
    (TESTS, f"{_PYTEST} tests/gpu/test_commands.py", 300, 200, _TESTING),
)  # fmt: skip
KEPT, APART = frozenset({"doctor", "report"}), frozenset({TESTS})


def steps(run: Path, lacking: Collection[str] = (), first_batch: int = FIRST_BATCH) -> list[Step]:
    """Return every part in its order, those that lack something included.

    Args:
        run: the run directory that they share.
        lacking: packages and programs that are missing (acceptance_packages.missing).
        first_batch: where the search for the largest batch begins.
    """
    dropped, values = dropped_words(lacking), {"{run}": str(run), "{first_batch}": str(first_batch)}
    plan = []
    for name, text, limit, expected, needs in TABLE:
        words = [values.get(word, word) for word in text.split() if word not in dropped]
        lacks = tuple(one for one in needs if one in lacking)
        plan.append(
            Step(name, [sys.executable, *words], limit, expected, name in KEPT, name in APART, needs, lacks)
        )  # fmt: skip
    return plan


def first_batch(memory_bytes: int) -> int:
    """Return the batch that the search for the largest one begins with: the largest that is predicted to fit.

    The prediction counts padding (bert.model.memory), so that it fits where layers compute only real tokens.
    """
    from bert.model.memory import predict_memory
    from common.train_spec import TrainSpec

    def needed(batch: int) -> int:
        spec = TrainSpec(preset="large", precision="bf16", seq_len=512, max_predictions=76, micro_batch_size=batch)
        return predict_memory(spec, "cuda").total

    batch = FIRST_BATCH
    while needed(batch + BATCH_STEP) < 0.95 * memory_bytes:
        batch += BATCH_STEP
    return batch


def dropped_words(lacking: Collection[str]) -> set[str]:
    """Return the implementations and levers that are left out."""
    return {word for name, words in VARIANTS.items() if name in lacking for word in words}


def left_out(plan: Sequence[Step], lacking: Collection[str]) -> dict[str, list[str]]:
    """Return, by name of what is missing, the parts, implementations and levers that go without."""
    return {name: [*(step.name for step in plan if name in step.needs), *VARIANTS.get(name, ())] for name in lacking}


def seconds_for(number: int, plan: Sequence[Step], elapsed: float) -> float:
    """Return how long part `number` of the plan may take when `elapsed` seconds are gone: later ones keep theirs."""
    kept = sum(step.expected for step in plan[number + 1 :] if step.kept and not step.lacks)
    return min(plan[number].limit, TOTAL_SECONDS - elapsed - kept)
