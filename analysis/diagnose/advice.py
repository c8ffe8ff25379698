"""Advice: what could save time, ranked by the gain, each cause once."""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis import wording

LEAST = 0.05
"""Smallest share of a step that advice is given for."""
STEP_TIME = "step time"
MOST = 4
"""Pieces of advice that are shown: one to do first, and at most three more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One cause of lost time, and how to test a remedy."""

    cause: str
    """Stable name: machine, host, data, waiting, communication, padding, precision, fusion, copies, latency, compute,
    memory, dram, l2, l1/tex, rules, speed, batch. Advice with the same cause competes; one of them is shown."""
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
    of: str = ""
    """What `saves` is a share of; "" for the time that was analyzed, a step's if nothing else is known."""
    firm: bool = False
    """Whether `saves` was measured in the run: it replaces estimates for the same cause."""

    @property
    def gain(self) -> str:
        """The expected gain in words."""
        if self.saves is None:
            return f"unknown ({self.unknown})"
        return f"up to {wording.percent(self.saves)} of the {self.of or STEP_TIME}"

    @property
    def text(self) -> str:
        """All of it as a paragraph; the command is in backticks."""
        test = f" Test it: `{self.command}`." if self.command else ""
        said = f"{self.seen[:1].upper()}{self.seen[1:]}"
        return f"{said}: {self.remedy}. Expected gain: {self.gain}.{test}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: cause, seen, remedy, command, saves_share, saves_of, unknown, text."""
        return {
            "cause": self.cause,
            "seen": self.seen,
            "remedy": self.remedy,
            "command": self.command or None,
            "saves_share": self.saves,
            "saves_of": self.of or STEP_TIME,
            "unknown": self.unknown or None,
            "text": self.text,
        }


_NARROW = ("bf16", "fp16", "fp8")


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
        precision = "fp8" if self.has("fp8") else str(self.row.get("precision") or "")
        return precision if precision in _NARROW else ""

    def has(self, *levers: str) -> bool:
        """Whether the trial has one of these optimizations."""
        return bool({*levers} & {*str(self.row.get("levers") or "").split("+")})

    @property
    def fewer_launches(self) -> str:
        """Ways to launch fewer kernels that the trial does not use yet."""
        ways = ["a larger batch"]
        ways += [] if self.has("compile") else ["torch.compile"]
        return f"{', '.join(ways)} or CUDA graphs"

    def fusing(self, fused_optimizer: bool) -> str:
        """How kernels are fused, in parentheses, where the optimizer is fused already or not."""
        if self.has("compile"):
            return "(those outside of the compiled layers)"
        return f"(torch.compile, fused {'norms' if fused_optimizer else 'optimizer and norms'})"

    def command(self, cause: str) -> str:
        """Return the command that tests the remedy of a cause on the trial's configuration; "" where there is none."""
        row = self.row
        if not row or not self.run or row.get("kind") == "train":
            return ""
        if row.get("kind") == "measure":
            again = ["bertbench", "measure", "--out", self.run, "--", *row["command"]]
            return shlex.join(again) if cause == "machine" else ""
        changes: dict[str, dict[str, object]] = {
            "host": {"batch_sizes": 2 * int(row["micro_batch_size"])},
            "communication": {"grad_accum": 4 * int(row.get("grad_accum_steps") or 1)},
            "precision": {"precisions": "bf16"},
            "data": {"data": "synthetic"},
            "machine": {},
        }
        out = another(self.run) if cause == "machine" else self.run
        return throughput_command(row, out, **changes[cause]) if cause in changes else ""


def another(out: str) -> str:
    """Return the run directory that repeats the measurements of `out`."""
    return f"{out}-again"


def ranked(found: Iterable[Advice]) -> list[Advice]:
    """Return the advice to show: each cause once, the largest gain first, unknown gains last, MOST at most.

    A disturbed machine comes before all: what was measured on it says little about other gains.

    A firm gain replaces estimates for the same cause, also where it shows that there is little to gain; else the
    largest counts. Gains below LEAST are left out.
    """
    best: dict[str, Advice] = {}
    for one in found:
        other = best.get(one.cause)
        if other is None or _order(one) > _order(other):
            best[one.cause] = one
    kept = [one for one in best.values() if one.saves is None or one.saves >= LEAST]
    kept.sort(key=lambda one: (one.cause == "machine", -1.0 if one.saves is None else one.saves), reverse=True)
    return kept[:MOST]


def _order(one: Advice) -> tuple[bool, float]:
    return one.firm, -1.0 if one.saves is None else one.saves


def with_command(found: Iterable[Advice], command: str) -> list[Advice]:
    """Return the advice, with this command where a piece has none."""
    return [one if one.command else dataclasses.replace(one, command=command) for one in found]


_FROM_DATA = ("labels",)
"""Options of tasks that follow from the data."""


def throughput_command(row: Mapping[str, Any], out: str, **changes: object) -> str:
    """Return the command that measures a trial, with changed options, into a run directory.

    Args:
        row: fields of records.trial.Trial.
        out: run directory.
        changes: options by name without dashes, "batch_sizes"; True for a flag.
    """
    given_model = row.get("model")
    options: dict[str, object] = {
        **({"model": _from_here(str(given_model))} if given_model else {"presets": row["preset"]}),
        "implementations": row["implementation"],
        "batch_sizes": row["micro_batch_size"],
        "seq_lens": row["seq_len"],
        "precisions": row["precision"],
        "devices": row["world_size"],
        "device": row["device"],
    }
    if row.get("trust_remote_code"):
        options["trust_remote_code"] = True
    if int(row.get("grad_accum_steps") or 1) > 1:
        options["grad_accum"] = row["grad_accum_steps"]
    if row.get("data") not in (None, "", "synthetic"):
        options["data"] = _from_here(str(row["data"]))
    if row.get("levers"):
        options["levers"] = row["levers"]
    defaults = {"threads_per_rank": None, "padding": "", "dropout": 0.1, "seed": 42, "activation_checkpointing": False}
    names = {"threads_per_rank": "threads"}
    given = {
        names.get(name, name): row.get(name)
        for name, usual in defaults.items()
        if row.get(name) not in (None, usual) and not (name == "dropout" and given_model)
    }
    if row.get("strategy") not in (None, "", "single", "ddp"):
        given["strategies"] = row["strategy"]
    if (bucket := wording.bucket_mib(str(row.get("strategy_options") or ""))) is not None:
        given["bucket_mib"] = bucket
    if (stage := wording.read_options(str(row.get("strategy_options") or "")).get("zero_stage")) is not None:
        given["zero_stages"] = stage
    if row.get("allocator"):
        given["allocators"] = row["allocator"]
    if row.get("start_iteration") is not None and row.get("stop_iteration") is not None:
        given |= {"start": row["start_iteration"], "stop": row["stop_iteration"]}
    options |= {**given, "rounds": 3, **changes, "out": out}
    return _command("throughput", str(row["task"]), {**_task_flags(row), **options})


def _task_flags(row: Mapping[str, Any]) -> dict[str, object]:
    chosen = wording.read_options(str(row.get("task_options") or ""))
    return {name: value for name, value in chosen.items() if name not in _FROM_DATA and value not in (None, False)}


def _command(name: str, task: str, options: Mapping[str, object]) -> str:
    words = ["bertbench", name, task]
    for option, value in options.items():
        words.append(f"--{option.replace('_', '-')}")
        words += [] if value is True else [str(value)]
    return shlex.join(words)


def _from_here(path: str) -> str:
    """A path inside the working directory relative to it, as a reader would type it; any other as it is."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
