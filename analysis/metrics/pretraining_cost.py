"""Days and cost of pretraining BERT as it was published, at measured rates.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", appendix A.2: 1,000,000 steps of 256
sequences, 90 % of them with 128 tokens a sequence (phase 1) and the rest with 512 (phase 2).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from records.schema import OPTION_COLUMNS

PHASES = {1: (128, 230_400_000), 2: (512, 25_600_000)}
"""Per phase: tokens of a sequence, sequences of the phase."""

# What has to agree before two rates are the two phases of one pretraining; each phase has a batch of its own.
_SAME = ("implementation", "preset", "precision", "strategy", "device", "world_size", "nodes", *OPTION_COLUMNS)
_SECONDS_PER_DAY = 86_400
_NO_PRICE = "no price was given (--price-per-hour)"


def pretraining_costs(rates: Sequence[Mapping[str, Any]], price_per_hour: float | None = None) -> list[dict[str, Any]]:
    """Return a row for each configuration that was measured at the length of a phase, at its fastest batch there.

    Of several data, those count whose sequences are fullest. Columns: the fields of a configuration, phase_N_batch,
    phase_N_padding_efficiency, phase_N_samples_per_second, phase_N_days, phase_N_cost, days, cost, unknown ({column:
    why it is None}).
    """
    groups: dict[tuple[Any, ...], dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rates:
        for phase, (seq_len, _) in PHASES.items():
            if (row["kind"], row["task"], row["seq_len"]) == ("throughput", "pretrain", seq_len):
                groups[tuple(row[name] for name in _SAME)][phase].append(row)
    return [_row(phases, price_per_hour) for phases in groups.values()]


def _fastest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    by_data: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_data[row["data"], row["data_fingerprint"]].append(row)
    fullest = max(by_data.values(), key=lambda group: fmean(row["padding_efficiency"] or 0 for row in group))
    return max(fullest, key=lambda row: float(row["samples_per_second"]))


def _row(measured: Mapping[int, Sequence[Mapping[str, Any]]], price_per_hour: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {name: next(iter(measured.values()))[0][name] for name in _SAME}
    unknown: dict[str, str] = {}
    days: dict[str, float | None] = {}
    for phase, (seq_len, samples) in PHASES.items():
        one: Mapping[str, Any] = _fastest(measured[phase]) if phase in measured else {}
        rate = float(one["samples_per_second"]) if one else None
        row[f"phase_{phase}_batch"] = one.get("micro_batch_size")
        row[f"phase_{phase}_padding_efficiency"] = one.get("padding_efficiency")
        row[f"phase_{phase}_samples_per_second"] = rate
        days[f"phase_{phase}_"] = samples / rate / _SECONDS_PER_DAY if rate else None
        if rate is None:
            names = ("batch", "padding_efficiency", "samples_per_second", "days", "cost")
            why = f"not measured with {seq_len} tokens a sequence (--seq-lens {seq_len})"
            unknown |= dict.fromkeys((*(f"phase_{phase}_{name}" for name in names), "days", "cost"), why)
    known = [value for value in days.values() if value is not None]
    days[""] = sum(known) if len(known) == len(PHASES) else None
    for prefix, value in days.items():
        row[f"{prefix}days"] = value
        row[f"{prefix}cost"] = None if value is None or price_per_hour is None else value * 24 * price_per_hour
        if price_per_hour is None:
            unknown.setdefault(f"{prefix}cost", _NO_PRICE)
    return {**row, "unknown": unknown}
