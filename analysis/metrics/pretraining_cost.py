"""Days and cost of pretraining BERT as it was published, at measured rates.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", appendix A.2: 1,000,000 steps of 256
sequences, 90 % of them with 128 tokens a sequence (phase 1) and the rest with 512 (phase 2).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

PHASES = {1: (128, 230_400_000), 2: (512, 25_600_000)}
"""Per phase: tokens of a sequence, sequences of the phase."""

# What has to agree before two rates are the two phases of one pretraining; each phase has a batch of its own.
_SAME = ("implementation", "preset", "precision", "strategy", "device", "world_size", "nodes")
_SECONDS_PER_DAY = 86_400
_HOURS_PER_DAY = 24


def pretraining_costs(rates: Sequence[Mapping[str, Any]], price_per_hour: float | None = None) -> list[dict[str, Any]]:
    """Return a row for each configuration that was measured at the length of a phase, at its fastest batch there.

    Samples that do not fill their sequences train faster where padding is not computed. Of several data, those count
    whose sequences are fullest.

    Args:
        rates: result rows, with samples_per_second over all rounds.
        price_per_hour: price of all devices together; None if no price was given.

    Columns: the fields of a configuration, and per phase phase_N_batch (micro batch per device),
    phase_N_padding_efficiency (real tokens / all positions), phase_N_samples_per_second, phase_N_days and phase_N_cost;
    then days and cost of both. None where a phase was not measured or there is no price; `unknown` has the reason of
    each.
    """
    groups: dict[tuple[Any, ...], dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rates:
        for phase, (seq_len, _) in PHASES.items():
            if (row["kind"], row["task"], row["seq_len"]) == ("throughput", "pretrain", seq_len):
                groups[tuple(row[name] for name in _SAME)][phase].append(row)
    return [
        _row({phase: _fastest(rows) for phase, rows in phases.items()}, price_per_hour) for phases in groups.values()
    ]


def _fastest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    by_data: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_data[row["data"], row["data_fingerprint"]].append(row)
    fullest = max(by_data.values(), key=lambda found: fmean(row["padding_efficiency"] or 0 for row in found))
    return max(fullest, key=lambda row: float(row["samples_per_second"]))


def _row(fastest: Mapping[int, Mapping[str, Any]], price_per_hour: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {name: next(iter(fastest.values()))[name] for name in _SAME}
    unknown: dict[str, str] = {}
    days: dict[int, float] = {}
    for phase, (seq_len, samples) in PHASES.items():
        one = fastest.get(phase)
        rate = None if one is None else float(one["samples_per_second"])
        row[f"phase_{phase}_batch"] = None if one is None else one["micro_batch_size"]
        row[f"phase_{phase}_padding_efficiency"] = None if one is None else one["padding_efficiency"]
        row[f"phase_{phase}_samples_per_second"] = rate
        if rate is not None:
            days[phase] = samples / rate / _SECONDS_PER_DAY
        else:
            names = ("batch", "padding_efficiency", "samples_per_second", "days", "cost")
            unknown |= dict.fromkeys((f"phase_{phase}_{name}" for name in names), _not_measured(seq_len))
            unknown |= dict.fromkeys(("days", "cost"), _not_measured(seq_len))
    both = sum(days.values()) if len(days) == len(PHASES) else None
    for prefix, found in {**{f"phase_{phase}_": days.get(phase) for phase in PHASES}, "": both}.items():
        row[f"{prefix}days"] = found
        row[f"{prefix}cost"] = _cost(found, price_per_hour)
        if price_per_hour is None:
            unknown.setdefault(f"{prefix}cost", "no price was given (--price-per-hour)")
    return {**row, "unknown": unknown}


def _not_measured(seq_len: int) -> str:
    return f"not measured with {seq_len} tokens a sequence (--seq-lens {seq_len})"


def _cost(days: float | None, price_per_hour: float | None) -> float | None:
    return None if days is None or price_per_hour is None else days * _HOURS_PER_DAY * price_per_hour
