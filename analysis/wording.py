"""How numbers and measurements are written in tables, figures and sentences."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

UNKNOWN = "–"  # noqa: RUF001  an en dash, as tables have it


def number(value: Any, digits: int = 3) -> str:
    """Three significant digits, thousands separated: 0.0123, 8.16, 182, 18,148."""
    if not is_known(value):
        return UNKNOWN
    value = float(value)
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}" if magnitude >= -3 else f"{value:.2g}"


def fine(value: Any) -> str:
    """Four significant digits, for the ends of intervals."""
    return number(value, 4)


def percent(value: Any) -> str:
    """A fraction as a percentage with one decimal below 100."""
    if not is_known(value):
        return UNKNOWN
    shown = f"{100 * value:.1f}" if abs(value) < 0.9995 else f"{100 * value:.0f}"
    return f"{'0.0' if shown == '-0.0' else shown} %"


def size(value: Any) -> str:
    """Bytes of memory in binary units: 1.50 GiB."""
    return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"), number)


def traffic(value: Any) -> str:
    """Bytes that are copied or sent, in decimal units as nccl-tests counts them: 67.1 MB."""
    return _scaled(value, 1000, ("B", "kB", "MB", "GB", "TB"), number)


def flops(value: Any) -> str:
    """FLOP/s with a decimal prefix."""
    return _scaled(value, 1000, [f"{prefix}FLOP/s" for prefix in ("", "k", "M", "G", "T", "P")], short)


def _scaled(value: Any, factor: int, units: Sequence[str], form: Callable[[float], str]) -> str:
    if not is_known(value):
        return UNKNOWN
    amount, place = float(value), 0
    while amount >= 999.5 and place < len(units) - 1:
        amount, place = amount / factor, place + 1
    return f"{form(amount)} {units[place]}"


def short(value: float, digits: int = 3) -> str:
    """At most three (or four) significant digits, whole and separated from 1000 on: 0.4, 116, 1,230."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.{digits}g}"


def interval(low: Any, high: Any, form: Callable[[Any], str] = fine) -> str:
    """Return "low to high", or a dash where either is unknown."""
    return f"{form(low)}–{form(high)}" if is_known(low) and is_known(high) else UNKNOWN  # noqa: RUF001


def ratio(value: Any) -> str:
    """A factor with two decimals."""
    return f"{value:.2f} ×" if is_known(value) else UNKNOWN  # noqa: RUF001


def shortened(text: str, longest: int | None) -> str:
    """Return a text with at most so many characters, cut with dots."""
    return text if longest is None or len(text) <= longest else f"{text[: longest - 3]}..."


def counted(number: int, what: str) -> str:
    """(1, "round") -> "1 round"; (3, "round") -> "3 rounds"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def count(value: Any) -> str:
    """A whole number with separators."""
    return f"{int(value):,}" if is_known(value) else UNKNOWN


def signed(value: Any) -> str:
    """A relative difference as a percentage with its sign."""
    return f"{100 * value:+.1f} %" if is_known(value) else UNKNOWN


def text(value: Any) -> str:
    """A value as text; a dash for None and ""."""
    return UNKNOWN if value in (None, "") else str(value)


# How a column is written, by its form.
FORMS: dict[str, Callable[[Any], str]] = {
    "number": number, "fine": fine, "percent": percent, "size": size, "traffic": traffic, "flops": flops,
    "count": count, "ratio": ratio, "signed": signed, "text": text,
}  # fmt: skip


def is_known(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return value is not None and not isinstance(value, str) and math.isfinite(value)


def devices(row: Row) -> str:
    """Return "2 cpu", or "16 cuda on 2 nodes"."""
    nodes = int(row.get("nodes") or 1)
    return f"{row['world_size']} {row['device']}" + (f" on {nodes} nodes" if nodes > 1 else "")


def batch(row: Row) -> str:
    """Return micro batch, with accumulation where there is any; a dash for a script, which does not tell."""
    if row.get("kind") == "measure":
        return UNKNOWN
    accumulation = int(row.get("grad_accum_steps") or 1)
    return f"{row['micro_batch_size']}" + (f" × {accumulation}" if accumulation > 1 else "")  # noqa: RUF001


def model(row: Row) -> str:
    """Return preset, precision and sequence length; a dash for a script, which does not tell."""
    if row.get("kind") == "measure":
        return UNKNOWN
    return f"{row['preset']} {row['precision']} seq {row['seq_len']}"


def names_strategies(rows: Sequence[Row]) -> bool:
    """Whether rows have to name strategies: they differ in more than that one device needs none, or one has options."""
    names = {strategy(row) for row in rows if row.get("strategy") != "single"}
    return len(names) > 1 or any(strategy(row) != (row.get("strategy") or "") for row in rows)


def by(row: Row) -> str:
    """Return " by fsdp" if the strategy is not the default or has options; else ""."""
    name = strategy(row)
    return "" if name in ("", "single", "ddp") else f" by {name}"


def place(row: Row) -> str:
    """Return "batch 8 on 2 cuda", with the strategy unless it is the default; of a script "on 2 cuda"."""
    if row.get("kind") == "measure":
        return f"on {devices(row)}"
    return f"batch {batch(row)} on {devices(row)}{by(row)}"


def implementation(row: Row) -> str:
    """Return the implementation, with its step unless that is fast; marks input trials."""
    name = str(row["implementation"]) + (" plain" if row.get("step") == "plain" else "")
    return f"{name}, input only" if row.get("kind") == "input" else name


def reference(ratio: Row) -> str:
    """Return the implementation that a row of runs.ratios_of compares with, as `implementation` does."""
    return implementation({"implementation": ratio["reference"], "step": ratio["reference_step"]})


def strategy(row: Row) -> str:
    """Return the strategy with its options in a few words; longer ones, such as a configuration, as a hash."""
    words = [row.get("strategy") or ""]
    for name, value in sorted(read_options(row.get("strategy_options") or "").items(), reverse=True):
        hashed = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
        words.append(f"{name}={value if isinstance(value, int | float) else hashed}")
    words += ["checkpointing"] if row.get("activation_checkpointing") else []
    return " ".join(words)


def task(row: Row) -> str:
    """Return the task with its options in a few words, those that are off left out."""
    named = {name: value for name, value in read_options(row.get("task_options") or "").items() if value is not False}
    words = [name if value is True else f"{name}={value}" for name, value in sorted(named.items())]
    return " ".join([row.get("task") or "", *words])


def data(row: Row) -> str:
    """Return the name of a trial's data: a data set, a folder or file, or "synthetic like" one of these."""
    if row.get("kind") == "measure":
        return UNKNOWN
    text = str(row.get("data") or "")
    kind, _, path = text.rpartition(":")
    name = path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".safetensors")
    if kind == "synthetic" and row.get("data_fingerprint"):
        text = f"synthetic like {name}"
    elif not kind and path != "synthetic":
        text = name if path.endswith(".safetensors") else f"folder {name}"
    return f"{text}, all padded to {row.get('seq_len')}" if row.get("padding") == "fixed" else text


def lengths(row: Row) -> str:
    """Return the sequence length of a trial: fixed, or "at most" where batches are padded to their longest."""
    return f"{'at most ' if row.get('padding') == 'longest' else ''}{row['seq_len']}"


def round_number(row: Row) -> int:
    """Return the round counted from 1, as people count; files count from 0."""
    return int(row.get("round") or 0) + 1


def status(row: Row) -> str:
    """Return the status, with the reason if the trial failed."""
    reason = str(row.get("reason") or "")
    return str(row["status"]) + (f": {reason}" if reason and row["status"] != "ok" else "")


def order(row: Row) -> tuple[Any, ...]:
    """Sort key of result rows: model, then batch and devices, so that implementations are adjacent."""
    numbers = ("seq_len", "world_size", "micro_batch_size", "grad_accum_steps", "round")
    *sizes, turn = (int(row.get(name) or 0) for name in numbers)
    kind, source = str(row.get("kind") or ""), str(row.get("data") or "")
    return (str(row["preset"]), str(row["precision"]), *sizes, strategy(row), implementation(row), kind, source, turn)


def floor_sentence(row: Row) -> str:
    """Return the result of a trial of kind components in one sentence."""
    name = f"{implementation(row)} {model(row)} {place(row)}"
    step, floor, share = number(row["step_time_ms"]), number(row["floor_ms"]), row["of_floor"]
    if share > 1:
        return f"{name} takes {step} ms per step, less than its floor of {floor} ms: measure again on a quiet machine."
    return f"{name} takes {step} ms per step; the floor is {floor} ms, {percent(share)} of that."


def read_options(options: str) -> dict[str, Any]:
    """Return the options of a strategy or task as a trial records them; text that is not JSON as one option."""
    try:
        return dict(json.loads(options or "{}"))
    except (ValueError, TypeError):
        return {"options": options}


def inert(value: Any) -> Any:
    """Return a cell of a table that people open: a text that a spreadsheet takes for a formula gets an apostrophe."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
