"""Which metrics Nsight Compute is asked for: the section file of each kind of GPU, less what the tool at hand lacks."""

import re
from pathlib import Path

from bench.profilers.tool import Version, dotted
from common.errors import MissingToolError, UsageError, content_code

FOLDER = Path(__file__).resolve().parents[2] / "profiling" / "ncu"
"""The section files; profiling/ holds no Python, this module reads it."""

Capability = tuple[int, int]

# Lowest and highest compute capability of a section, its number, and the first ncu that knows such GPUs (NVIDIA's
# release notes up to 2022.3; 2025.1 came with CUDA 12.8, the first toolkit for Blackwell).
_SECTIONS: tuple[tuple[Capability, Capability, int, Version], ...] = (
    ((7, 0), (7, 4), 70, (2020, 1)),
    ((7, 5), (7, 9), 75, (2020, 1)),
    ((8, 0), (8, 5), 80, (2020, 1)),
    ((8, 6), (8, 8), 86, (2020, 2)),
    ((8, 9), (8, 9), 89, (2022, 3)),
    ((9, 0), (9, 9), 90, (2022, 3)),
    ((10, 0), (11, 9), 100, (2025, 1)),
    ((12, 0), (12, 9), 120, (2025, 1)),
)
_OF_LAUNCH = ("launch__", "sm__maximum_warps")
_NAME = re.compile(r'^\s*Name:\s*"([^"]+)"(\s*#\s*unchecked)?', re.MULTILINE)


def section_for(capability: Capability) -> tuple[str, Version]:
    """Return the section's identifier for a GPU, and the first version of ncu that knows the GPU. Raises UsageError."""
    for lowest, highest, number, version in _SECTIONS:
        if lowest <= capability <= highest:
            return f"BertbenchCores{number}", version
    shown = dotted(capability)
    if capability < (7, 0):
        raise UsageError(
            "device-unsupported",
            f"ncu knows GPUs of compute capability 7.0 or newer, this one has {shown}: use --profiler nvprof",
        )
    raise UsageError(
        "device-unsupported",
        f"{FOLDER} has no section for compute capability {shown}: name the metrics yourself with --with metrics=a,b "
        "(`ncu --query-metrics` lists them), or use --profiler nsys",
    )


def metric_names(identifier: str) -> dict[str, bool]:
    """Return a section's metrics, and whether each was checked against a chip query. Raises MissingToolError."""
    path = FOLDER / f"{identifier}.section"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingToolError(
            content_code(error), f"{path} cannot be read ({error.strerror}): run bertbench from its checkout"
        ) from error
    return {name: not mark for name, mark in _NAME.findall(text)}


def known_metrics(query: str) -> frozenset[str]:
    """Return the base names ("dram__bytes") that `ncu --query-metrics` lists."""
    return frozenset(re.findall(r"^([a-z]\w*__\w+)\s", query, re.MULTILINE))


def available(names: dict[str, bool], known: frozenset[str]) -> list[str]:
    """Return the metrics whose base name, what stands before the first dot, is known, with those `of_launch`."""
    found = [name for name in names if of_launch(name) or name.partition(".")[0] in known]
    return found if not all(map(of_launch, found)) else []


def of_launch(name: str) -> bool:
    """Return whether ncu takes a metric from a kernel's launch: on every GPU, without a run, in no list of a chip."""
    return name.startswith(_OF_LAUNCH)


def switches(help_text: str) -> frozenset[str]:
    """Return the long switches that `ncu --help` names, such as "--clock-control"."""
    return frozenset(re.findall(r"^\s+(?:-\w\s+\[\s*)?(--[a-z][a-z0-9-]*)", help_text, re.MULTILINE))


def replay_modes(help_text: str) -> frozenset[str]:
    """Return the values of --replay-mode that `ncu --help` names: kernel, application, range, app-range."""
    block = re.search(r"^\s+--replay-mode\b.*?(?=^ {1,4}-|\Z)", help_text, re.MULTILINE | re.DOTALL)
    return frozenset(
        re.findall(r"^\s+([a-z]+(?:-[a-z]+)?)(?: \(default\))?\s*$", block[0], re.MULTILINE) if block else ()
    )
