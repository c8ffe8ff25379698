"""MLPerf training logs: the lines ":::MLLOG {json}" anywhere in a log, also those that many ranks repeat.

The format and the keys are those of mlcommons/logging (mllog/constants.py); "samples_count" and "epoch_num" say how
many samples were seen in benchmarks that count epochs in samples, as BERT does.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.counters import Summary
from analysis.readers.packed import log_lines
from analysis.readers.registry import Head
from common.errors import InputError
from common.redact import redact_environment, redact_text

FORM = "summaries"
EVENT_COLUMNS = {"time_ns": "int64", "event_type": "str", "key": "str", "value": "str", "position": "float64",
                 "repeats": "int64"}  # fmt: skip
RUN_COLUMNS = {"name": "str", "value": "str"}
EVALUATION_COLUMNS = {"time_ns": "int64", "minutes": "float64", "samples": "float64", "accuracy": "float64",
                      "samples_per_second": "float64"}  # fmt: skip
TARGETS = {"bert": 0.72}
"""Accuracy that a benchmark has to reach; BERT: masked-LM accuracy (mlcommons/training_policies, section 4)."""

_MARK = ":::MLLOG"
_SETTINGS = ("submission_benchmark", "submission_org", "submission_division", "submission_platform", "seed",
             "global_batch_size", "d_batch_size", "gradient_accumulation_steps", "max_predictions_per_seq",
             "max_sequence_length", "train_samples", "eval_samples", "num_warmup_steps",
             "start_warmup_step")  # fmt: skip
_LONGEST_VALUE = 200


def recognises(head: Head) -> bool:
    """Tell whether a file is a log with MLPerf events."""
    return _MARK.encode() in head.data or _MARK.encode("utf-16-le") in head.data


def read(path: Path) -> list[Summary]:
    """Read one log, plain or gzip-compressed. Events that ranks repeat within a second are counted once.

    Returns:
        Three summaries. what "run": name, value (text, numbers in full): benchmark, settings, time to train, throughput
        (samples_per_second: all samples over the time to train, evaluations included) and quality target; its facts
        hold the same values unconverted, None for what is unknown. what "evaluations": time_ns, minutes (since
        run_start), samples (seen so far), accuracy, samples_per_second (the throughput that was stated before), NaN
        where unknown. what "events": time_ns, event_type, key, value (text), position (samples, epochs or steps that
        the event states, NaN unknown), repeats, in the file's order.

    Raises:
        InputError: the log holds no event that can be read.
    """
    events, damaged, repeated = _events(path)
    if not events:
        raise InputError(
            "file-damaged",
            f"{path} has {damaged} MLPerf lines, and none can be read: the log is damaged; copy it again",
        )
    import pandas as pd

    facts = _facts(events)
    evaluations = _evaluations(events, facts["run_start_ns"])
    last = evaluations[-1]["accuracy"] if evaluations else None
    facts = {"final_accuracy": last, "evaluations": len(evaluations), **facts}
    problems = tuple(_problems(events, facts, damaged))
    source = "MLPerf log"
    run = pd.DataFrame(
        [(name, _text(value)) for name, value in facts.items() if value is not None], columns=list(RUN_COLUMNS)
    )
    series = pd.DataFrame(evaluations, columns=list(EVALUATION_COLUMNS)).astype(EVALUATION_COLUMNS)
    log = pd.DataFrame([{**event, "value": _text(event["value"])} for event in events], columns=list(EVENT_COLUMNS))
    log = log.astype({name: kind for name, kind in EVENT_COLUMNS.items() if kind != "str"})
    benchmark = str(facts["submission_benchmark"] or "training")[:60]
    return [
        Summary("run", f"MLPerf {benchmark}: the run", run, source, facts, problems),
        Summary("evaluations", f"MLPerf {benchmark}: accuracy over time", series, source, {"target": facts["target"]}),
        Summary("events", f"MLPerf {benchmark}: events", log, source, {"damaged": damaged, "repeated": repeated}),
    ]


def _events(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    found: list[dict[str, Any]] = []
    last: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    damaged = repeated = 0
    for line in log_lines(path):
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        event = _event(text)
        if event is None:
            damaged += 1
            continue
        about = event.pop("about")
        key = (event["key"], event["event_type"], _text(event["value"]), about)
        before = last.get(key)
        if before is not None and abs(event["time_ns"] - before["time_ns"]) <= 1_000_000_000:
            before["repeats"] += 1
            repeated += 1
            continue
        last[key] = event
        found.append(event)
    return found, damaged, repeated


def _event(text: str) -> dict[str, Any] | None:
    """Return one event; None for what is damaged."""
    try:
        entry, _ = json.JSONDecoder(strict=False).raw_decode(text.strip())
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        return None
    time = _finite(entry.get("time_ms"))
    if time is None or not 0 <= time < 2**63 / 1e6 - 1:
        return None
    metadata = entry.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    about = {name: value for name, value in metadata.items() if name not in ("file", "lineno")}
    steps = ("samples_count", "epoch_num", "epoch_count", "first_epoch_num", "step_num", "block_num")
    position = next((value for name in steps if (value := _finite(metadata.get(name))) is not None), math.nan)
    value = _without_secrets(entry["key"], entry.get("value"))
    return {
        # Whole milliseconds stay exact; newer logs may have a fraction.
        "time_ns": int(entry["time_ms"]) * 1_000_000 if isinstance(entry["time_ms"], int) else round(time * 1e6),
        "event_type": str(entry.get("event_type", ""))[:40],
        "key": _text(entry["key"]),
        "value": {"status": metadata["status"]} if value is None and "status" in metadata else value,
        "position": position,
        "repeats": 0,
        "about": _text(about),
    }


def _without_secrets(key: str, value: Any) -> Any:
    """Submitters log what they like: a value whose key suggests a secret is not shown."""
    if isinstance(value, str):
        return redact_environment({key: value[: 2 * _LONGEST_VALUE]})[key]
    if isinstance(value, dict):
        return {name: _without_secrets(name, part) if isinstance(part, str) else part for name, part in value.items()}
    return value


def _facts(events: list[dict[str, Any]]) -> dict[str, Any]:
    first: dict[str, Any] = {}
    for event in events:
        if event["value"] is not None:
            first.setdefault(event["key"], event["value"])
    start, stop = _time(events, "run_start"), _time(events, "run_stop")
    batch, samples = _finite(first.get("global_batch_size")), _finite(first.get("train_samples"))
    seen = [event["position"] for event in events if event["key"] == "eval_accuracy" and event["position"] > 0]
    samples = samples or (seen[-1] if seen else None)
    seconds = (stop - start) / 1e9 if start is not None and stop is not None and stop > start else None
    ends = [event["value"] for event in events if event["key"] == "run_stop"]
    status = ends[-1].get("status") if ends and isinstance(ends[-1], dict) else None
    in_samples = samples is not None and batch is not None and samples >= batch
    init, init_end = _time(events, "init_start"), _time(events, "init_stop")
    return {
        "time_to_train_minutes": seconds / 60 if seconds is not None else None,
        "status": None if status is None else _text(status),
        "target": TARGETS.get(str(first.get("submission_benchmark", "")).lower()),
        "samples": samples if in_samples else None,
        "steps": round(samples / batch) if in_samples and samples is not None and batch else None,
        "samples_per_second": samples / seconds if in_samples and samples and seconds else None,
        "samples_per_second_stated": _throughput(events),
        "initialisation_seconds": (init_end - init) / 1e9 if init is not None and init_end is not None else None,
        **{name: first.get(name) for name in _SETTINGS},
        **{name: value for name, value in sorted(first.items()) if name.startswith("opt_")},
        "run_start_ns": start,
        "run_stop_ns": stop,
    }


def _throughput(events: list[dict[str, Any]]) -> float | None:
    """The last one stated is the whole run's, or the median of those that were stated on the way."""
    stated = [(rate, event) for event in events if (rate := _rate(event)) is not None]
    if not stated:
        return None
    rate, event = stated[-1]
    if isinstance(event["value"], Mapping) and "epoch_num" in event["value"]:
        return rate
    rates = sorted(rate for rate, _ in stated)
    return (rates[(len(rates) - 1) // 2] + rates[len(rates) // 2]) / 2


def _rate(event: Mapping[str, Any]) -> float | None:
    if event["key"] not in ("tracked_stats", "throughput"):
        return None
    value = event["value"]
    return _finite(value.get("throughput") if isinstance(value, Mapping) else value)


def _evaluations(events: list[dict[str, Any]], start: int | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    rate = math.nan
    for event in events:
        found = _rate(event)
        rate = rate if found is None else found
        accuracy = _finite(event["value"]) if event["key"] == "eval_accuracy" else None
        if accuracy is not None:
            minutes = (event["time_ns"] - start) / 6e10 if start is not None else math.nan
            rows.append(
                dict(
                    zip(EVALUATION_COLUMNS, (event["time_ns"], minutes, event["position"], accuracy, rate), strict=True)
                )
            )
    return rows


def _problems(events: list[dict[str, Any]], facts: Mapping[str, Any], damaged: int) -> Iterator[str]:
    if damaged:
        yield f"{damaged} damaged MLPerf lines were skipped"
    runs = sum(event["key"] == "run_start" for event in events)
    if runs > 1:
        yield f"the log has {runs} runs: times are from the first start to the last stop; give one run per log"
    if facts["run_start_ns"] is None or facts["run_stop_ns"] is None:
        yield "the log lacks run_start or run_stop: the run stopped early and has no time to train"
    target, reached = facts["target"], facts["final_accuracy"]
    if target is not None and reached is not None and reached < target:
        yield f"the last accuracy {reached:.4f} is below the quality target {target}: the run does not count"
    if facts["status"] not in (None, "success"):
        yield f"the run ended with status {facts['status'][:40]!r}"


def _time(events: list[dict[str, Any]], key: str) -> int | None:
    """First start, last stop."""
    times = [event["time_ns"] for event in events if event["key"] == key]
    return (max(times) if key.endswith("_stop") else min(times)) if times else None


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else repr(value) if isinstance(value, float) else _json(value)
    return redact_text(re.sub(r"[\x00-\x1f\x7f]", " ", text[: 2 * _LONGEST_VALUE]))[:_LONGEST_VALUE]


def _json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError, OverflowError):
        return ""
