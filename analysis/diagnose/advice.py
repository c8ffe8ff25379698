"""Advice: what could save time, ranked by the gain, each cause once.

Gains are shares of one time, so that they compare: the time analyzed of all ranks together, of the marked steps where
there are any. Only counters of kernels, whose steps have no known length, give shares of the kernels' time.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis import wording

LEAST = 0.05
"""Smallest share of a step that advice is given for."""
STEP_TIME = "step time"
OF_KERNELS = "kernels' time"
"""What shares are of where counters of kernels are all there is."""
MOST = 4
"""Pieces of advice that are shown: one to do first, and at most three more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One cause of lost time, and how to test a remedy."""

    cause: str
    """Stable name: machine, host, data, waiting, communication, padding, precision, fusion, copies, latency, compute,
    memory, dram, l2, l1/tex, rules, batch. Advice with the same cause competes; one of them is shown."""
    seen: str
    """What was measured, with its number; a sentence without its full stop."""
    remedy: str
    """What to try, as an imperative without a full stop."""
    command: str = ""
    """Command that tests the remedy; "" where none can."""
    saves: float | None = None
    """Upper bound of the time saved, as a share (0 to 1) of `of`; None where it is not known."""
    unknown: str = ""
    """Why `saves` is None."""
    of: str = STEP_TIME
    """What `saves` is a share of."""
    firm: bool = False
    """Whether `saves` was measured in the run: it replaces estimates for the same cause."""

    @property
    def gain(self) -> str:
        """The expected gain in words."""
        if self.saves is None:
            return f"unknown ({self.unknown})"
        return f"up to {wording.percent(self.saves)} of the {self.of}"

    @property
    def text(self) -> str:
        """All of it as a paragraph; the command is in backticks."""
        test = f" Test it: `{self.command}`." if self.command else ""
        return f"{self.seen[:1].upper()}{self.seen[1:]}: {self.remedy}. Expected gain: {self.gain}.{test}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: cause, seen, remedy, command, saves_share, saves_of, unknown, text."""
        known = {name: getattr(self, name) for name in ("cause", "seen", "remedy", "text")}
        known |= {"saves_share": self.saves, "saves_of": self.of}
        return {**known, "unknown": self.unknown or None, "command": self.command or None}


def advised(cause: str, seen: str, remedy: str, saves: float, of: str = STEP_TIME) -> tuple[Advice, ...]:
    """Return the advice of a rule; nothing for a gain below LEAST."""
    return (Advice(cause=cause, seen=seen, remedy=remedy, saves=saves, of=of),) if saves >= LEAST else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What is known of a recording besides its content, so that nothing is advised that the trial already has."""

    row: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recorded trial (records.trial.Trial); empty for a recording of another program."""
    run: str = ""
    """Run directory of the trial."""
    disturbed: str = ""
    """What disturbed the machine during the recording; "" if nothing was detected."""
    native_bf16: bool | None = None
    """Whether the device has bf16 instructions; None where that is not known."""

    @property
    def narrow(self) -> str:
        """The trial's precision if it is a 16- or 8-bit one, else ""."""
        precision = str(self.row.get("precision") or "")
        return precision if precision in ("bf16", "fp16", "fp8") else ""

    @property
    def fused(self) -> bool:
        """Whether the trial is bertbench's own step with its fused elementwise parts."""
        return self.row.get("implementation") == "bertbench" and self.row.get("step") == "fast"

    @property
    def fewer_launches(self) -> str:
        """Ways to launch fewer kernels that the trial does not use yet."""
        return "a larger batch, torch.compile or CUDA graphs"

    def fusing(self, fused_optimizer: bool) -> str:
        """How kernels are fused, in parentheses, where the optimizer is fused already or not."""
        return f"(torch.compile, fused {'norms' if fused_optimizer else 'optimizer and norms'})"

    def command(self, cause: str) -> str:
        """Return the command that tests the remedy of a cause on the trial's configuration; "" where there is none."""
        row = self.row
        if not row or not self.run or row.get("kind") == "train":
            return ""
        if row.get("kind") == "measure":
            again = shlex.join(["bertbench", "measure", "--out", self.run, "--", *row["command"]])
            return again if cause == "machine" else ""
        changes: dict[str, dict[str, object]] = {
            "host": {"batch_sizes": 2 * int(row["micro_batch_size"])},
            "communication": {"grad_accum": 4 * int(row.get("grad_accum_steps") or 1)},
            "precision": {"precisions": "bf16"},
            "data": {"data": "synthetic"},
            "machine": {},
        }
        out = another(self.run) if cause == "machine" else self.run
        return throughput_command(row, out, **changes[cause]) if cause in changes else ""


_USE_TF32 = "let fp32 GEMMs use tf32 (torch.set_float32_matmul_precision('high'))"


def faster_gemms(devices: Sequence[str]) -> str:
    """Return what to do about GEMMs that run in fp32; "" where these GPUs have nothing faster.

    Args:
        devices: names of the GPUs.
    """
    from analysis.metrics.kernels.devices import faster_types

    each = [faster_types(name) for name in devices]
    known = [set(types) for types in each if types is not None]
    if not each or len(known) < len(each):
        return f"train in bf16 (fp16 before Ampere), or {_USE_TF32}"
    types = set.intersection(*known)
    train = next((f"train in {kind}" for kind in ("bf16", "fp16") if kind in types), "")
    return f"{train}, or {_USE_TF32}" if "tf32" in types else train


def another(out: str) -> str:
    """Return the run directory that repeats the measurements of `out`."""
    return f"{out}-again"


def of_machine(disturbance: str, command: str = "") -> list[Advice]:
    """Return the advice to measure again on an idle machine; nothing where nothing disturbed it."""
    why, remedy = "the undisturbed speed was not measured", "wait until the machine is idle, then measure again"
    advice = Advice(cause="machine", seen=disturbance, remedy=remedy, command=command, unknown=why)
    return [advice] if disturbance else []


def ranked(candidates: Iterable[Advice]) -> list[Advice]:
    """Return the advice to show: each cause once, the largest gain first, unknown gains last, MOST at most.

    A disturbed machine comes before all: what was measured on it says little about other gains. Shares of the kernels'
    time alone come after those of the analyzed time: what they could save of it is not known.

    A firm gain replaces estimates for the same cause, also where it shows that there is little to gain; else the
    largest counts. Gains below LEAST are left out.
    """

    def gain(one: Advice) -> tuple[bool, bool, float]:
        return one.saves is not None, one.of != OF_KERNELS, one.saves or 0.0

    best: dict[str, Advice] = {}
    for one in candidates:
        best[one.cause] = max(best.get(one.cause, one), one, key=lambda advice: (advice.firm, gain(advice)))
    worthwhile = [one for one in best.values() if one.saves is None or one.saves >= LEAST]
    worthwhile.sort(key=lambda one: (one.cause == "machine", gain(one)), reverse=True)
    return worthwhile[:MOST]


_OPTIONS = {
    "implementations": "implementation", "batch_sizes": "micro_batch_size", "seq_lens": "seq_len",
    "precisions": "precision", "devices": "world_size", "device": "device", "trust_remote_code": "trust_remote_code",
    "grad_accum": "grad_accum_steps", "step": "step", "threads": "threads_per_rank", "padding": "padding",
    "dropout": "dropout", "seed": "seed", "activation_checkpointing": "activation_checkpointing",
    "data": "data", "strategies": "strategy", "start": "start_iteration",
    "stop": "stop_iteration",
}  # fmt: skip
"""Options of throughput: field of the trial."""
_DEFAULTS: dict[str, tuple[object, ...]] = {
    "grad_accum": (1,), "dropout": (0.1,), "seed": (42,), "data": ("synthetic",), "strategies": ("single", "ddp"),
    "step": ("fast",),
}  # fmt: skip
"""Values that need no option, besides those that are off or not given."""


def throughput_command(row: Mapping[str, Any], out: str, **changes: object) -> str:
    """Return the command that measures a trial, with changed options, into a run directory.

    Args:
        row: fields of records.trial.Trial.
        out: run directory.
        changes: options by name without dashes, "batch_sizes"; True for a flag.
    """
    of_task = wording.read_options(str(row.get("task_options") or ""))
    # The number of labels follows from the data.
    options = {name: value for name, value in of_task.items() if name != "labels" and value not in (None, False)}
    options |= {"model": row["model"]} if row.get("model") else {"presets": row["preset"]}
    given = {option: row[name] for option, name in _OPTIONS.items() if row.get(name) not in (None, "")}
    options |= {option: value for option, value in given.items()
                if value is not False and value not in _DEFAULTS.get(option, ())}  # fmt: skip
    if row.get("model"):
        options.pop("dropout", None)
    of_strategy = wording.read_options(str(row.get("strategy_options") or ""))
    for name, option in (("bucket_mib", "bucket_mib"), ("zero_stage", "zero_stages")):
        options |= {option: of_strategy[name]} if of_strategy.get(name) is not None else {}
    words = ["bertbench", "throughput", str(row["task"])]
    for option, value in {**options, "rounds": 3, **changes, "out": out}.items():
        words += [f"--{option.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
