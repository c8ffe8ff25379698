"""What a fault campaign has tried and survived, as JSON and as a table in Markdown."""

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

PARTS = "parts"
_ORDER = (
    "kill -9 at random points", "kill -9 of a child", "SIGTERM", "disk full", "file too large", "read-only folder",
    "out of memory", "a rank hangs", "two at once",
)  # fmt: skip


@dataclass
class Row:
    """One fault that met one workload."""

    workload: str
    fault: str
    checked: str
    tries: int = 0
    survived: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    def add(self, wrong: str = "", tries: int = 1) -> None:
        """Count tries that came to the same end: all survived, or what is wrong."""
        self.tries += tries
        self.survived += 0 if wrong else tries
        if wrong:
            self.failures.append(wrong)


class Tally:
    """Takes rows, each into a file of its own: several processes share the campaign."""

    def __init__(self, out: Path) -> None:
        self._out = out / PARTS

    @contextmanager
    def row(self, workload: str, fault: str, checked: str) -> Iterator[Row]:
        """Give a row to fill; afterwards write it down, and fail where not everything was survived."""
        row = Row(workload, fault, checked)
        began = time.monotonic()
        try:
            yield row
        except Exception as error:
            row.add(f"{type(error).__name__}: {error}")
            raise
        finally:
            row.seconds = time.monotonic() - began
            self._write(row)
        assert row.tries, "nothing was tried"
        assert not row.failures, f"{row.tries - row.survived} of {row.tries} not survived:\n" + "\n".join(row.failures)

    def skip(self, workload: str, fault: str, why: str) -> None:
        """Note what cannot be tried here."""
        self._write(Row(workload, fault, "", skipped=why))

    def _write(self, row: Row) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{row.workload} {row.fault}")
        (self._out / f"{name}.json").write_text(json.dumps(asdict(row)), encoding="utf-8")


def begin(out: Path) -> None:
    """Forget the campaign before."""
    shutil.rmtree(out / PARTS, ignore_errors=True)


def gather(out: Path, seed: int, kills: int) -> None:
    """Put the rows together: faults.json and faults.md."""
    rows = [Row(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(out.glob(f"{PARTS}/*.json"))]
    if not rows:
        return
    rows.sort(key=lambda row: (_place(row.fault), row.workload))
    machine = {
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)), "root": os.geteuid() == 0,
    }  # fmt: skip
    found = {"seed": seed, "kills": kills, "machine": machine, "rows": [asdict(row) for row in rows]}
    (out / "faults.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (out / "faults.md").write_text(markdown(rows, seed, machine), encoding="utf-8")
    shutil.rmtree(out / PARTS)


def markdown(rows: list[Row], seed: int, machine: dict[str, object]) -> str:
    """Return the table, and below it what was not survived or not tried."""
    tried = [row for row in rows if not row.skipped]
    lines = [
        "# Faults tried and survived",
        "",
        f"`make fault-test`, FAULT_SEED={seed}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}: "
        f"{sum(row.survived for row in tried):,} of {sum(row.tries for row in tried):,} survived in "
        f"{sum(row.seconds for row in tried) / 60:.0f} minutes of calls.",
        "",
        "| fault | workload | tries | survived | checked afterwards | s |",
        "|---|---|---:|---:|---|---:|",
    ]
    lines += [
        f"| {row.fault} | {row.workload} | {row.tries} | {row.survived} | {row.checked} | {row.seconds:.0f} |"
        for row in tried
    ]
    skipped = [f"- {row.fault}, {row.workload}: {row.skipped}" for row in rows if row.skipped]
    lines += ["", "Not tried:", "", *skipped] if skipped else []
    failed = [f"- {row.fault}, {row.workload}: {' '.join(text.split())}" for row in tried for text in row.failures]
    lines += ["", "Not survived:", "", *failed] if failed else []
    return "\n".join(lines) + "\n"


def _place(fault: str) -> int:
    return next((place for place, name in enumerate(_ORDER) if fault.startswith(name)), len(_ORDER))
