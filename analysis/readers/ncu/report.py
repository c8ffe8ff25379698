"""Reports of Nsight Compute (.ncu-rep), through NVIDIA's Python package ncu-report.

They hold what the raw page of `ncu --import FILE --csv` prints, unrounded, and what ncu's rules say.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.counters import GLOBAL, LOCAL, KernelCounters, KernelRule
from analysis.readers.ncu.blocks import ResultOf, results_of
from analysis.readers.ncu.table import Launch, Table, is_metric
from common.errors import InputError, MissingToolError

PACKAGE = "ncu_report"
_REMEDY = (
    "pip install 'bertbench[ncu]' (NVIDIA's package ncu-report), or run "
    "`ncu --import FILE --csv --page raw > FILE.csv` where Nsight Compute is installed and give that file"
)
_LINK = re.compile(r"@(url|section|sass|source):([^@]*)@")
# Values in a report are in base units.
_UNITS = {
    r"gpu__time_duration(_measured_\w+)?\.(sum|max|min|avg)": "ns",
    r"\w+__cycles_(elapsed|active)\.(sum|max|min|avg)": "cycle",
    r"\w+__cycles_(elapsed|active)\.(sum|max|min|avg)\.per_second": "hz",
}
# The package raises these for names and numbers that damaged files hold.
_OF_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, RuntimeError, SystemError, OSError, MemoryError)


def read_report(report: Path, given: Path) -> KernelCounters:
    """Read a report: the kernels and values of the raw page, in its order, and the messages of the rules.

    Args:
        report: the report, unpacked.
        given: the file that the user gave, for messages.
    """
    origins = results_of(report, given)
    if not origins:
        raise InputError(
            "trace-without-work",
            f"{given} has no results: nothing was profiled, or the report was cut after its first part; record again",
        )
    package = _package(given)
    try:
        actions = [action for group in package.load_report(str(report)) for action in group]
    except _OF_DAMAGE as error:
        raise _unread(given, str(error)) from error
    if len(actions) != len(origins):
        raise _unread(given, f"{len(actions):,} of its {len(origins):,} results could be read")
    table = Table()
    units: dict[str, str] = {}
    for number, place in enumerate(_by_process(origins)):
        try:
            table.add_launch(_launch(package, actions[place], origins[place], number, units))
        except _OF_DAMAGE as error:
            raise _unread(given, f"result {place + 1}: {error}") from error
    return table.counters()


def _package(given: Path) -> Any:
    try:
        return importlib.import_module(PACKAGE)
    except (ImportError, OSError) as error:  # OSError: a library of it that this system cannot load
        raise MissingToolError(
            "package-missing", f"{given} is a report of Nsight Compute and needs ncu-report ({error}): {_REMEDY}"
        ) from error


def _unread(given: Path, why: str) -> InputError:
    return InputError(
        "file-damaged",
        f"ncu-report cannot read {given} ({why[:300]}): the report is damaged, or of a newer Nsight Compute; copy it "
        "again, install a newer ncu-report, or give the output of `ncu --import FILE --csv --page raw`",
    )


def _by_process(origins: Sequence[ResultOf]) -> list[int]:
    """Return the places of the results as ncu numbers them: process by process, each in the order of the file."""
    places: dict[ResultOf, list[int]] = {}
    for place, origin in enumerate(origins):
        places.setdefault(origin, []).append(place)
    return [place for own in places.values() for place in own]


def _launch(package: Any, action: Any, origin: ResultOf, number: int, units: dict[str, str]) -> Launch:
    """Describe one result. `units` keeps the units of metrics, which are asked for once."""
    names = [str(name) for name in action.metric_names()]
    attributes: dict[str, float | str] = {}
    for name in names:
        if name.startswith("device__attribute_") and (value := action[name].value()) is not None:
            attributes[name] = _utf8(value) if isinstance(value, str) else value
    return Launch(
        host=origin.host,
        process=origin.process,
        kernel=number,
        name=_utf8(action.name(action.NameBase_DEMANGLED) or action.name()),
        attributes=attributes,
        ranges=_ranges(action.nvtx_state()),
        metrics=_metrics(package.IMetric, action, sorted(filter(is_metric, names)), units),
        rules=_rules(package, action.rule_results()),
    )


def _metrics(kinds: Any, action: Any, names: Iterable[str], units: dict[str, str]) -> Iterator[tuple[str, float, str]]:
    """Yield name, value and unit of every metric with a number; of one with instances it is their total."""
    floats, integers = (kinds.ValueKind_DOUBLE, kinds.ValueKind_FLOAT), (kinds.ValueKind_UINT32, kinds.ValueKind_UINT64)
    for name in names:
        metric = action.metric_by_name(name)
        kind = metric.kind()
        if kind not in floats and kind not in integers:
            continue
        if metric.has_value():
            unit = units.get(name)
            if unit is None:
                unit = units[name] = metric.unit() or _base_unit(name)
            yield name, metric.as_double() if kind in floats else float(metric.as_uint64()), unit


def _base_unit(name: str) -> str:
    """Return the unit of a time, of cycles or of their rate: the package names none for a GPU that it does not know."""
    return next((unit for pattern, unit in _UNITS.items() if re.fullmatch(pattern, name)), "")


def _ranges(state: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the ranges that were open in the launching thread: Push/Pop, Start/Stop; None without NVTX."""
    if state is None:
        return None
    pushed: list[str] = []
    started: list[str] = []
    for identifier in state.domains():
        domain = state.domain_by_id(identifier)
        for found, count, one in (
            (pushed, len(domain.push_pop_ranges()), domain.push_pop_range),
            (started, len(domain.start_end_ranges()), domain.start_end_range),
        ):
            for place in range(count):
                own = one(place)
                name = own.name()
                name = own.message() if name in ("", "none") and own.has_attributes() else name
                found += [_utf8(f"{domain.name()}@{name}")] if name else []
    return tuple(pushed), tuple(started)


def _rules(package: Any, results: Iterable[Any]) -> Iterator[KernelRule]:
    kinds = {
        package.MsgType_OPTIMIZATION: "optimization",
        package.MsgType_WARNING: "warning",
        package.MsgType_OK: "information",
        package.MsgType_ERR: "error",
    }
    estimates = {package.SpeedupType_GLOBAL: GLOBAL, package.SpeedupType_LOCAL: LOCAL}
    for result in results:
        if not result.has_rule_message():
            continue
        said = result.rule_message()
        estimated = result.speedup_estimation() if result.has_speedup_estimation() else {}
        estimate = estimates.get(estimated.get("type"), "")
        yield KernelRule(
            row=-1,
            rule=_utf8(result.rule_identifier()),
            section=_utf8(result.section_identifier()),
            kind=kinds.get(said["type"], ""),
            text=plain_text(_utf8(said["message"])),
            estimate=estimate,
            speedup=float(estimated["speedup"]) / 100 if estimate else None,  # in percent there
        )


def _utf8(text: str) -> str:
    """Return a text of the package without the surrogates that stand for bytes of no encoding."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def plain_text(text: str) -> str:
    """Return a rule's message without links, as `ncu --csv` prints it: "Guide (https://...)" for a link to a page."""
    return _LINK.sub(_linked, text)


def _linked(link: re.Match[str]) -> str:
    kind, rest = link[1], link[2]
    if kind == "url":
        text, _, address = rest.partition(":")
        return f"{text} ({address})" if address else text
    return rest.rpartition(":")[2] if kind == "source" else rest.partition(":")[2]
