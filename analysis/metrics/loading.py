"""How many cores load the batches of a device at the measured speed, and how many training leaves free.

Needs numpy only. docs/explanation/measurement.md derives the numbers ("Feed budget").
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.metrics import statistics
from records.trial import Trial

COLUMNS = (
    "loading_tokens_per_second_per_core",
    "masking_tokens_per_second_per_core",
    "loading_cores_per_device",
    "masking_cores_per_device",
    "free_cores_per_device",
)
"""What `summarize_loading` fills in of records.schema.RESULTS."""
SHARE_OF_TRAINING = 0.05
"""Share of the cores that also compute the steps from which loading on them costs speed."""
_ROUNDING = 1e-6
_RECORDED = ("read_us", "batch_us", "masking_us")


def summarize_loading(
    trial: Trial, result: Mapping[str, Any], ranks: Mapping[int, Mapping[str, Any]], unknown: dict[str, str]
) -> dict[str, Any]:
    """Return COLUMNS and `loading`, their details.

    Args:
        trial: what ran.
        result: samples_per_second and tokens_per_second of the trial, over all devices.
        ranks: rank records; that of rank 0 has `loading`, as bench.run.loading writes it.
        unknown: gets the reason of each column that is unknown.

    Returns:
        loading: None, or source, storage, rounds, and for `loading` (from shards) and `masking` (the same, and masking
        on the fly) {samples_per_second_per_core, cores, cores_low, cores_high (per device, 95 % interval),
        node_cores (whole cores for the devices of a node), enough}; node_free_cores, and shares_cores (whether training
        computes on the cores that load).
    """
    record = ranks.get(0, {}).get("loading") or {}
    why = _why_unknown(trial, result, record)
    if why:
        unknown.update(dict.fromkeys(COLUMNS, why))
        return {"loading": None}
    read, batch, masking = (np.array(record[name], dtype=np.float64) for name in _RECORDED)
    # Every rank reads all samples and uses its own.
    us = {"loading": int(record["readers"]) * read + batch}
    us["masking"] = us["loading"] + masking
    rate = float(result["samples_per_second"]) / trial.world_size
    tokens_per_sample = float(result["tokens_per_second"]) / float(result["samples_per_second"])
    devices, threads = int(record["local_ranks"]) * trial.devices_per_rank, ranks[0].get("threads")
    computing = float(threads or record["cores_per_rank"]) if trial.device == "cpu" else 1.0
    free = max(0.0, float(record["cores_per_rank"]) - computing)
    node_free = math.floor(free * int(record["local_ranks"]) + _ROUNDING)
    shared = trial.device == "cpu" and node_free < 1
    limit = SHARE_OF_TRAINING * float(record["cores_per_rank"]) / trial.devices_per_rank if shared else None
    columns: dict[str, Any] = {"free_cores_per_device": free / trial.devices_per_rank}
    details: dict[str, Any] = {name: record[name] for name in ("source", "storage")}
    details |= {"rounds": len(read), "node_free_cores": node_free, "shares_cores": shared}
    for name, times in us.items():
        seconds = float(np.median(times)) * 1e-6
        low, high = (end * 1e-6 * rate for end in statistics.order_interval(times)) if len(times) > 1 else (None, None)
        cores = rate * seconds
        node = max(1, math.ceil(cores * devices - _ROUNDING))
        columns[f"{name}_tokens_per_second_per_core"] = tokens_per_sample / seconds
        columns[f"{name}_cores_per_device"] = cores
        details[name] = {
            "samples_per_second_per_core": 1 / seconds,
            "cores": cores,
            "cores_low": low,
            "cores_high": high,
            "node_cores": node,
            "enough": node <= node_free if limit is None else cores <= limit,
        }
    return {**columns, "loading": details}


def _why_unknown(trial: Trial, result: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    if trial.task != "pretrain":
        return f"{trial.task} reads no shards and masks no words"
    if trial.kind != "throughput":
        return "only throughput trials measure it"
    if not record:
        return "rank 0 recorded no loading times"
    if record.get("problem"):
        return f"loading could not be timed: {record['problem']}"
    if not result.get("samples_per_second") or not result.get("tokens_per_second"):
        return "the speed of the training is unknown"
    rounds = {len(record[name]) for name in _RECORDED}
    if len(rounds) != 1 or not min(rounds):
        return "the loading times of rank 0 are damaged"
    return ""


def shortage(row: Mapping[str, Any]) -> str:
    """Return what the machine has too few cores for: "loading" (from shards), else "masking"; "" if it has enough."""
    details = row.get("loading")
    if not details:
        return ""
    return next((name for name in ("loading", "masking") if not details[name]["enough"]), "")
