"""What a step of `make gpu-acceptance` must have found besides ending well, and what of it goes into the record."""

import json
import re
from collections.abc import Mapping
from typing import Any

MOST_OTHER = 0.02
"""Share of kernel time that kernels without a family may take."""
MOST_ROWS = 20
MAY_NOT_FIT, MAY_NOT_FIT_LENGTH = 128, 512
"""Sequences of a batch, and tokens of each, from which models that are not ours may run out of memory."""
NOT_AS_EXPECTED = (KeyError, TypeError, IndexError, AttributeError, ValueError)
"""What reading figures raises that have another form than they should."""
_FINDINGS = (
    "temporal_breakdown",
    "kernel_families",
    "top_kernels",
    "core_utilization",
    "core_utilization_by_family",
    "core_utilization_by_phase",
    "roofline",
    "roofline_by_family",
)
_PROFILE = (
    "trial_id", "status", "reason", "problem", "step_time_ms", "unprofiled_step_time_ms", "step_time_ratio",
    "compute_utilization", "core_utilization", "sensors", "kernel_names", "problems",
)  # fmt: skip
_TEST = re.compile(r"^\S*?::(\S+(?: \S+)*?) (PASSED|SKIPPED|FAILED|ERROR)\b", re.MULTILINE)
_MEASURED = ("samples_per_second", "mfu", "peak_memory_bytes", "joules_per_sample")


def parsed(command: list[str], output: str) -> tuple[Any, str]:
    """Return the figures of a step, and why there are none.

    Tests have {passed, skipped, failed}, those that ended before a late run was ended too; any other command without
    --json its last lines.
    """
    if "pytest" in command:
        return _tests(output), ""
    if "--json" not in command:
        return output.strip().splitlines()[-3:], ""
    try:
        found = json.loads(output, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        return output[-2000:].strip().splitlines()[-3:], f"its output is no JSON: {error}"
    return found, ""


def _tests(output: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"passed": [], "skipped": [], "failed": []}
    for name, end in _TEST.findall(output):
        kind = {"PASSED": "passed", "SKIPPED": "skipped"}.get(end, "failed")
        if name not in found[kind]:  # one that fails twice, at its end too
            found[kind].append(name)
    return found


def figures(name: str, found: Any) -> Any:
    """Return what the record keeps of a step's figures: of profiles the tables that are looked at, cut to MOST_ROWS."""
    if not name.startswith("profile ") or not isinstance(found, dict):
        return found
    try:
        return {"run": found["run"], "profiles": _kept(found["profiles"])}
    except NOT_AS_EXPECTED:
        return found


def _kept(profiles: Any) -> list[dict[str, Any]]:
    kept = []
    for profile in profiles:
        tables = profile.get("findings") or {}
        chosen = {
            key: {**table, "rows": table["rows"][:MOST_ROWS], "rows_in_all": len(table["rows"])}
            for key, table in tables.items()
            if key in _FINDINGS
        }
        kept.append({**{key: profile.get(key) for key in _PROFILE}, "findings": chosen})
    return kept


def complaint(name: str, found: Any) -> str:
    """Return what a step lacks although its command ended well; "" where it lacks nothing."""
    kind = name.split(" ")[0]
    checks = {"throughput": _throughput, "max": _max_batch, "profile": _profiles, "speed-of-light": _light}
    check = {**checks, "correctness": _all_passed, "tests": _all_passed}.get(kind)
    if check is None:
        return ""
    try:
        return check(name, found)
    except NOT_AS_EXPECTED as error:
        return f"its figures are not as they should be: {type(error).__name__}: {error}"


def _throughput(name: str, found: Mapping[str, Any]) -> str:
    """Every trial measured, on the GPU, with MFU, memory and NVML's energy."""
    if not found["rows"]:
        return "no trial was measured"
    said = []
    for row in found["rows"]:
        who = f"{row['implementation']} {row['levers'] or 'as it is'} {row['seq_len']}"
        if _may_not_fit(row):
            continue
        if row["status"] != "ok":
            said.append(f"{who}: {row['status']}: {row['reason']}")
            continue
        for column in _MEASURED:
            if not row.get(column):
                why = (row.get("unknown") or {}).get(column) or "no reason was given"
                said.append(f"{who}: no {column}: {why}")
    return "; ".join(said)


def _may_not_fit(row: Mapping[str, Any]) -> bool:
    """Whether a row ended without memory where that is a finding: of Hugging Face's models at MAY_NOT_FIT sequences."""
    large = row["micro_batch_size"] >= MAY_NOT_FIT and row["seq_len"] >= MAY_NOT_FIT_LENGTH
    return bool(row["status"] == "oom" and row["implementation"] in ("hf", "hf-compiled") and large)


def only_oom_that_may_be(name: str, found: Any) -> bool:
    """Whether the trials of a step that are not ok are those that may run out of memory, and others are."""
    try:
        rows = found["rows"] if name.startswith("throughput ") else []
        bad = [row for row in rows if row["status"] != "ok"]
        return bool(bad) and len(bad) < len(rows) and all(map(_may_not_fit, bad))
    except NOT_AS_EXPECTED:
        return False


def _all_passed(name: str, found: Mapping[str, Any]) -> str:
    if found["failed"]:
        why = {check["name"]: f" ({check['why']})" for check in found.get("checks") or ()}
        return f"failed: {', '.join(one + why.get(one, '') for one in found['failed'])}"
    return "" if found["passed"] else "no test has run"


def _max_batch(name: str, found: Mapping[str, Any]) -> str:
    """The largest batch ran, and the next one met a real lack of memory."""
    if not found["max_batch"]:
        return "nothing was searched for"
    for row in found["max_batch"]:
        ends = dict(map(tuple, row["tried"]))
        if not row["micro_batch_size"]:
            return f"no batch ran: {row['failure']}"
        if row["fails_at"] is None or ends.get(row["fails_at"]) != "oom" or not row["failure"].startswith("oom: "):
            return f"no trial ran out of memory: {row['failure']}"
        if not any(words in row["failure"] for words in ("out of memory", "allocate memory", "ALLOC_FAILED")):
            return f"a trial was ended for another reason than a refused allocation: {row['failure']}"
        if not row["proved"]:
            return f"{row['micro_batch_size']} is not proved: {row['failure']}"
    return ""


def _light(name: str, found: Mapping[str, Any]) -> str:
    floor, step = found["floor_ms"], found["step_time_ms"]
    return "" if floor and step and 0 < floor < step else f"a floor of {floor} ms under a step of {step} ms"


def _profiles(name: str, found: Mapping[str, Any]) -> str:
    if not found["profiles"]:
        return "there is no profile"
    tool = name.split(" ")[1]
    for profile in found["profiles"]:
        if profile["problem"] or profile["problems"]:
            return f"problems: {[profile['problem'], *profile['problems']]}"
        if tool == "nvtx":
            continue
        lacking = _counted(profile) if tool == "ncu" else _recorded(profile)
        if lacking := lacking or _names(profile["kernel_names"]):
            return lacking
    return ""


def _counted(profile: Mapping[str, Any]) -> str:
    """Counters of kernels: how busy the cores were, and where kernels lie under the roofline."""
    rows = profile["core_utilization"]
    if not rows:
        return "no row of core utilization"
    for row in rows:
        if not row.get("kernels"):
            return f"no kernel was counted: {row}"
        if row.get("tensor_percent") is None and row.get("fma_percent") is None:
            return f"neither tensor cores nor FMA were counted: {row}"
    tables = profile["findings"]
    for table in ("core_utilization", "core_utilization_by_family", "roofline", "roofline_by_family"):
        if table not in tables or not tables[table]["rows"]:
            return f"no row of {table}"
    if all(row.get("bound") in (None, "unknown") for row in tables["roofline_by_family"]["rows"]):
        return "no kind of work could be placed under the roofline"
    return ""


def _recorded(profile: Mapping[str, Any]) -> str:
    """Times of kernels: how busy the GPU was, its multiprocessors too, and with what."""
    rows = profile["compute_utilization"]
    if not rows:
        return "no row of compute utilization"
    for row in rows:
        if row["counted"] != "GPU kernels" or not row["compute_utilization"]:
            return f"no GPU kernels: {row}"
        if not row["sm_weighted_utilization"]:
            return f"no share of the multiprocessors: {row}"
    families = profile["findings"].get("kernel_families")
    return "" if families and families["rows"] else "no row of kernel_families"


def _names(names: Mapping[str, Any]) -> str:
    """Whether nearly all kernel time has a family; the record names those that have none."""
    share = names["other_share"]
    if share is None:
        return f"which kernels have a family is not known: {names['reason']}"
    if share < MOST_OTHER:
        return ""
    named = ", ".join(f"{one['name'][:120]} ({100 * one['share']:.1f} %)" for one in names["other"][:10])
    return f"{100 * share:.1f} % of the kernels' time has no family, more than {100 * MOST_OTHER:.0f} %: {named}"
