"""What `bertbench comm` records of a collective, by size, and what follows from it as nccl-tests counts."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.metrics.statistics import median_interval, percentile
from analysis.names import bus_factor
from analysis.record_files import typed_rows
from analysis.records import Trial, TrialDirectory
from common.errors import SchemaError, UsageError
from common.registry import lookup

# Placements that torch.distributed has: its all-reduce and its broadcast write where they read.
COLLECTIVES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("in_place",),
    "reduce_scatter": ("out_of_place", "in_place"),
    "all_gather": ("out_of_place", "in_place"),
    "broadcast": ("in_place",),
}
# precision -> (bytes of an element, what nccl-tests calls it)
DTYPES = {"fp32": (4, "float"), "fp16": (2, "half"), "bf16": (2, "bfloat16")}

# collectives.csv of a trial of kind comm: a row per size, placement and repetition.
COLLECTIVE_COLUMNS: dict[str, type] = {
    "size_bytes": int,  # as nccl-tests has it: the whole tensor, also where a rank sends or keeps a part of it
    "count": int,  # elements that a rank sends (all-gather) or keeps (reduce-scatter), else of the tensor
    "placement": str,
    "repetition": int,
    "iterations": int,  # operations of this repetition, one after another
    "time_us": float,  # of one operation: the slowest rank's time / iterations
    "wrong": int,  # elements of all ranks together that came out wrong
}

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTest:
    """What one trial of kind comm measures: one collective over a range of sizes."""

    name: str
    """One of COLLECTIVES."""
    min_bytes: int
    """Smallest size."""
    max_bytes: int
    """Largest size; it is reached only where the factor meets it."""
    factor: float
    """From one size to the next."""
    repetitions: int
    """Times each size is measured; their median counts, their spread is the interval."""
    iterations: int | None
    """Operations per repetition; None: as many as take 20 ms, at most 100."""
    warmup: int
    """Operations of each size before any that counts."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        lookup(COLLECTIVES, self.name, "collective")
        if not 1 <= self.min_bytes <= self.max_bytes:
            raise UsageError(
                "option-value",
                f"sizes from {self.min_bytes} to {self.max_bytes} bytes: give at least 1, and no less at the end than "
                "at the beginning",
            )
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise UsageError("option-value", f"--factor {self.factor:g} must be above 1, such as 2")
        for name in ("repetitions", "iterations"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError("option-value", f"--{name} {value} must be at least 1")
        if self.warmup < 0:
            raise UsageError("option-value", f"--warmup {self.warmup} must be at least 0")

    def sizes(self, ranks: int) -> list[int]:
        """Return the sizes in bytes, each a multiple of what divides over the ranks in parts of 16 bytes.

        Raises:
            UsageError: not even the largest size gives every rank a part.
        """
        grain = 16 * ranks
        found: list[int] = []
        size = float(self.min_bytes)
        while size <= self.max_bytes * (1 + 1e-9):
            whole = int(size) // grain * grain
            if whole and whole not in found:
                found.append(whole)
            size *= self.factor
        if not found:
            raise UsageError(
                "option-value",
                f"--max-bytes {self.max_bytes} is less than 16 bytes for each of {ranks} ranks: give {grain} or more",
            )
        return found

    def plain(self) -> tuple[tuple[str, Any], ...]:
        """Return the fields as Trial.collective holds them."""
        return tuple(sorted(dataclasses.asdict(self).items()))

    @classmethod
    def of(cls, trial: Trial) -> "CollectiveTest":
        """Return what a trial measures. Raises UsageError where it holds no such test."""
        try:
            return cls(**dict(trial.collective))
        except TypeError as error:
            raise UsageError(
                "file-damaged", f"trial {trial.trial_id} describes no test of a collective: {error}"
            ) from error


def parse_size(text: str, option: str) -> int:
    """Return bytes of "1024", "64K", "1M" or "1G" (powers of 1024, as nccl-tests reads them). Raises UsageError."""
    cleaned = text.strip().upper().removesuffix("IB").removesuffix("B")
    number, unit = (cleaned[:-1], cleaned[-1]) if cleaned[-1:] in ("K", "M", "G") else (cleaned, "")
    try:
        value = float(number) * 2 ** _UNITS[unit]
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 1 <= value < 2**50):
        raise UsageError("option-value", f"{option} {text}: give a number of bytes, such as 1024, 64K, 256M or 1G")
    return int(value)


def collectives_csv(directory: TrialDirectory) -> Path:
    """The measurements of a trial of kind comm."""
    return directory.path / "collectives.csv"


def read_measurements(directory: TrialDirectory) -> list[dict[str, Any]]:
    """Return the rows of collectives.csv, none where there is no such file. Raises SchemaError where it is damaged."""
    path = collectives_csv(directory)
    rows = list(typed_rows(path, COLLECTIVE_COLUMNS)) if path.exists() else []
    for row in rows:
        if None in row.values() or not (math.isfinite(row["time_us"]) and row["time_us"] > 0 and row["size_bytes"] > 0):
            raise SchemaError(
                "file-damaged", f"{path} holds a row that is no measurement: {row}; measure that trial again"
            )
    return rows


def by_size(trial: Trial, measurements: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per size and placement, in the order measured.

    time_us is the median over repetitions, with its 95 % interval (None below two); algbw = size / time and
    busbw = algbw x factor in 1e9 bytes/s, as nccl-tests' doc/PERFORMANCE.md defines them.

    Columns: collective, dtype, ranks, nodes, round, size_bytes, count, placement, repetitions, iterations, time_us,
    time_us_low, time_us_high, algbw_gb_s, busbw_gb_s, wrong.
    """
    name = CollectiveTest.of(trial).name
    factor = bus_factor(name, trial.world_size) or 0.0
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in measurements:
        groups[int(row["size_bytes"]), str(row["placement"])].append(row)
    found = []
    for (size, placement), rows in groups.items():
        times = [float(row["time_us"]) for row in rows]
        time = percentile(times, 50)
        low, high = (value if math.isfinite(value) else None for value in median_interval(times))
        bandwidth = size / time / 1e3 if time > 0 else None
        found.append(
            {
                "collective": name,
                "dtype": trial.precision,
                "ranks": trial.world_size,
                "nodes": trial.nodes,
                "round": trial.round,
                "size_bytes": size,
                "count": rows[0]["count"],
                "placement": placement,
                "repetitions": len(rows),
                "iterations": rows[0]["iterations"],
                "time_us": time,
                "time_us_low": low,
                "time_us_high": high,
                "algbw_gb_s": bandwidth,
                "busbw_gb_s": None if bandwidth is None else bandwidth * factor,
                "wrong": max(int(row["wrong"]) for row in rows),
            }
        )
    return found


def summarize_collective(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
    """Return what a result says of a trial of kind comm: sizes, peak and mean bus bandwidth, wrong elements.

    Raises:
        SchemaError: collectives.csv is damaged.
    """
    rows = by_size(trial, read_measurements(directory))
    bandwidths = [row["busbw_gb_s"] for row in rows if row["busbw_gb_s"] is not None]
    return {
        "sizes": len({row["size_bytes"] for row in rows}),
        "peak_busbw_gb_s": max(bandwidths, default=None),
        "avg_busbw_gb_s": sum(bandwidths) / len(bandwidths) if bandwidths else None,
        "wrong": sum(row["wrong"] for row in rows),
        "by_size": rows,
        "cautions": list(_cautions(rows)),
        "unknown": {},
        "per_rank": [],
    }


def _cautions(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    wrong = [row for row in rows if row["wrong"]]
    if wrong:
        yield {
            "code": "wrong results",
            "message": f"{len(wrong)} of {len(rows)} sizes came out with wrong elements",
            "remedy": "no time counts before that is repaired: the driver, NCCL, a bad link or bad memory",
        }
    wide = [row for row in rows if _half_width(row) > 0.1]
    if len(wide) * 4 > len(rows):
        yield {
            "code": "interval wide",
            "message": f"the median time of {len(wide)} of {len(rows)} sizes is known to 10 % or worse only",
            "remedy": "use a quieter machine, or more --repetitions",
        }


def _half_width(row: Mapping[str, Any]) -> float:
    if row["time_us_low"] is None or row["time_us_high"] is None or not row["time_us"]:
        return 0.0
    return float(row["time_us_high"] - row["time_us_low"]) / 2 / float(row["time_us"])
