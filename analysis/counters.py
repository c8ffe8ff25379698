"""What readers return of other files than traces: counters of every kernel, and tables of totals."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


IDENTITY = ("process", "kernel_id", "name", "device", "duration_ns", "cycles")
"""The columns that every table of kernels has."""
LABELS = ("push_pop_ranges", "start_stop_ranges")
"""Columns that are there only where the file has NVTX ranges. All others are metrics, under the tool's own names."""


def rules_file(table: Path) -> Path:
    """Return the file beside a table of kernels with the messages of ncu's rules; it is read with the table."""
    return table.with_name(f"rules_{table.name}")


GLOBAL, LOCAL = "global", "local"
"""What a rule estimates, in ncu's words: the time of the kernel, or the efficiency of one unit of the hardware."""


@dataclass(frozen=True, slots=True)
class KernelRule:
    """What one rule of Nsight Compute says about one launch; links in its text have their address in parentheses."""

    row: int
    """Of the launch in `KernelCounters.kernels`."""
    rule: str
    section: str
    kind: str
    """optimization, warning (suggestions too, until 2022), information, error, or ""."""
    text: str
    estimate: str = ""
    """GLOBAL or LOCAL; "" where nothing is estimated, as until 2022."""
    speedup: float | None = None
    """What is estimated, as a fraction: with GLOBAL the decrease of the kernel's run time."""


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """The kernels of one file, one row per launch, in the order of the file."""

    kernels: "pd.DataFrame"
    """process (int64, the system's number), kernel_id (int64, per process), name, device (Int64, may be missing),
    duration_ns and cycles (float64, NaN where unknown), and one float64 column per metric, in the units of `units`.
    push_pop_ranges and start_stop_ranges, where there: the NVTX ranges open at the launch, outermost first, a tuple of
    "domain@name"; the push/pop ones are those of the launching thread."""
    units: Mapping[str, str]
    """Unit of each metric column: %, ns, byte, byte/s, hz, inst, ...; "" where the tool names none."""
    device_name: str | None
    compute_capability: tuple[int, int] | None
    """(9, 0) on a GPU of compute capability 9.0; None where the file does not say."""
    problems: tuple[str, ...]
    rules: tuple[KernelRule, ...] = ()
    """By launch; the raw page has none."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metric columns."""
        return tuple(str(name) for name in self.kernels.columns if name not in IDENTITY and name not in LABELS)


def joined(parts: Sequence[KernelCounters]) -> KernelCounters:
    """Return the kernels of several files of one run as one table; at least one part is needed.

    Processes are renumbered 0, 1, ...: two containers can give two processes the same number. What the files
    disagree on is None (device, capability) or a problem (the unit of a metric: the later file's values are left out).
    """
    import pandas as pd

    filled = [part for part in parts if len(part.kernels)] or parts[:1]
    units = {name: unit for part in reversed(filled) for name, unit in part.units.items()}
    others = [[name for name, unit in part.units.items() if unit != units[name]] for part in filled]
    problems = [problem for part in parts for problem in part.problems]
    problems += [
        f"{name} has different units in the files: skipped after the first" for names in others for name in names
    ]
    devices = {(part.device_name, part.compute_capability) for part in filled}
    device, capability = devices.pop() if len(devices) == 1 else (None, None)
    frames = [part.kernels.drop(columns=names) for part, names in zip(filled, others, strict=True)]
    kernels = pd.concat(frames, keys=range(len(filled)), names=["file"])
    processes = pd.MultiIndex.from_arrays([kernels.index.get_level_values("file"), kernels["process"]])
    starts = itertools.accumulate((len(part.kernels) for part in filled), initial=0)
    return replace(
        filled[0],
        kernels=kernels.assign(process=processes.factorize()[0].astype("int64")).reset_index(drop=True),
        units=units,
        device_name=device,
        compute_capability=capability,
        problems=tuple(dict.fromkeys(problems)),
        rules=tuple(
            replace(one, row=one.row + start) for part, start in zip(filled, starts, strict=False) for one in part.rules
        ),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """One table of a file."""

    what: str
    """What a row is: kernels | copies | api | ranges (totals by name), collectives (a benchmark of them, by size)."""
    title: str
    table: "pd.DataFrame"
    """Columns carry their unit in the name. kernels, copies, api, ranges: name, count, total_ns or total_bytes. Others:
    see the reader. In the order of the file."""
    source: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the file says: ranks of collectives."""
    problems: tuple[str, ...] = ()
