"""Measures how the preparation of a MediaWiki dump grows: time of each stage, memory, disk; after a kill, and in parts.

    python tests/slow/bench_scale.py [--data DIR] [--out DIR] [--sizes MB ...] [--workers N] [--parts N]

A dump of each size is the excerpt of real articles, repeated, so words are seldom new to the tokenizer. `bertbench data
pretrain` makes it to shards in one command (128 tokens, five duplicates), in an empty folder. Memory is the largest sum
of the proportional set sizes (PSS) of all its processes, sampled every 0.2 s. Of the second largest size the shards are
made twice more: by a command that is killed (SIGKILL to all its processes) in each stage and given again; and in
parts, stage by stage, as a job array does, one of which is killed and given again. Both have to give the same bytes.
Results go to DIR/scale.json and data-scale.png, with the slope between the two largest sizes and what it gives for the
English Wikipedia.
"""

import argparse
import bz2
import contextlib
import hashlib
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/slow")]

import bench_extract  # noqa: E402

from analysis.render.figure import COLOURS, Axis, Figure, Line, Panel  # noqa: E402
from analysis.render.png import write_png  # noqa: E402

DATA = ROOT.parent / "shared/data"
COMMAND = [sys.executable, "-m", "bench.cli.main", "data", "pretrain"]
STAGES = ("extract", "sentences", "shard", "hdf5")
FOLDERS = ("extracted", "sentences", "sharded_", "tokens_", "hdf5_")
ENGLISH_XML_BYTES = 95e9
"""Of the English Wikipedia's articles, decompressed (an estimate)."""
SAMPLE_SECONDS = 0.2


def members(group: int) -> list[int]:
    """Return the processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                    found.append(int(entry.name))
    return found


def memory(group: int) -> int:
    """Return the proportional set size of a process group in bytes."""
    total = 0
    for process in members(group):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def run(words: Sequence[str], kill: Callable[[], bool] | None = None) -> dict[str, Any] | None:
    """Run a command; return its result with seconds, CPU seconds and the most memory, or None if `kill` ended it."""
    before = os.times()
    began = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([*COMMAND, *words, "--json"], stdout=output, stderr=errors, start_new_session=True)
        most = 0
        while process.poll() is None:
            if kill is not None and kill():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None
            most = max(most, memory(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01 if kill else SAMPLE_SECONDS)
        for stream in (output, errors):
            stream.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(words)} failed: {errors.read()[-2000:].decode()}")
        found: dict[str, Any] = json.loads(output.read())
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {**found, "wall": time.monotonic() - began, "cpu": cpu, "memory": most}


def size_of(folder: Path, prefix: str) -> int:
    """Return the bytes of the files of a stage."""
    return sum(path.stat().st_size for top in folder.glob(f"{prefix}*") for path in top.rglob("*") if path.is_file())


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of each shard."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("hdf5_*/*/*.hdf5")}


def once(moment: Callable[[], bool]) -> Callable[[], bool]:
    """Return a check that is true a little after `moment` was, so that work is under way."""
    due: list[float] = []

    def check() -> bool:
        if not due and moment():
            due.append(time.monotonic() + 0.3)
        return bool(due) and time.monotonic() > due[0]

    return check


def killed(words: Sequence[str], output: Path) -> dict[str, Any]:
    """Give a command again and again, killed as each stage begins to write; return the last result and the kills."""
    began, kills = time.monotonic(), []
    for prefix in FOLDERS:
        if run(words, once(lambda prefix=prefix: any(output.glob(f"{prefix}*/*/*")))) is None:  # type: ignore[misc]
            kills.append(prefix.strip("_"))
    found = run(words)
    assert found is not None
    return {"kills": kills, "wall of all": time.monotonic() - began, "wall of the last": found["wall"]}


def in_parts(words: Sequence[str], parts: int) -> dict[str, Any]:
    """Make each stage in parts, one process a part, the tasks of a job array; one of each stage is killed once."""
    began, kills = time.monotonic(), 0
    for stage in STAGES:
        tasks = [["--stages", stage, *([] if stage == "shard" else ["--part", f"{part}/{parts}"])]
                 for part in range(1 if stage == "shard" else parts)]  # fmt: skip
        for number, task in enumerate(tasks):
            moment = time.monotonic() + 1.5
            if number == 0 and run([*words, *task], lambda moment=moment: time.monotonic() > moment) is None:  # type: ignore[misc]
                kills += 1
            run([*words, *task])
    return {"parts": parts, "kills": kills, "wall of all, one task at a time": time.monotonic() - began}


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the figures of all sizes, of kills and of parts."""
    sample = options.data / "pretrain/wiki/enwiki-sample.xml.bz2"
    excerpt = bz2.decompress(sample.read_bytes())
    found: dict[str, Any] = {"sizes": []}
    for megabytes in sorted(options.sizes):
        source, output = scratch / f"dump-{megabytes}", scratch / f"out-{megabytes}"
        source.mkdir()
        bench_extract.repeated(sample, source, megabytes)
        given = ["--input", str(source), "--dataset", "wiki", "--vocab", str(options.data / "vocab/bert-uncased.txt")]
        words = [*given, "--output", str(output), "--workers", str(options.workers)]
        result = run(words)
        assert result is not None
        row = {
            "xml": len(excerpt) * result["stages"][0]["counts"]["pages"] / excerpt.count(b"<page>"),
            "seconds": {stage["stage"]: stage["seconds"] for stage in result["stages"]},
            **{name: result[name] for name in ("wall", "cpu", "memory", "documents")},
            "disk": {prefix.strip("_"): size_of(output, prefix) for prefix in FOLDERS},
        }
        found["sizes"].append(row)
        print(json.dumps(row), flush=True)
        if megabytes == sorted(options.sizes)[-2:][0] and len(options.sizes) > 1:
            expected = digests(output)
            again, parts = scratch / "again", scratch / "parts"
            found["killed"] = killed([*given, "--output", str(again), "--workers", str(options.workers)], again)
            found["in parts"] = in_parts([*given, "--output", str(parts), "--workers", "1"], options.parts)
            assert digests(again) == expected, "after kills the shards are others"
            assert digests(parts) == expected, "made in parts the shards are others"
            found["equal shards"] = len(expected)
            print(json.dumps(found["killed"]), json.dumps(found["in parts"]), flush=True)
        for folder in (source, output, scratch / "again", scratch / "parts"):
            shutil.rmtree(folder, ignore_errors=True)
    return found


def estimate(sizes: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what the two largest sizes give for the English Wikipedia: by the slope, memory by the logarithm."""
    one, other = sizes[-2:]
    more = other["xml"] - one["xml"]
    disk = sum(other["disk"].values()) - sum(one["disk"].values())
    return {
        "core_hours": ENGLISH_XML_BYTES * (other["cpu"] - one["cpu"]) / more / 3600,
        "disk_gigabytes": ENGLISH_XML_BYTES * disk / more / 1e9,
        "megabytes_of_memory": (
            other["memory"]
            + (other["memory"] - one["memory"]) * math.log(ENGLISH_XML_BYTES / other["xml"], other["xml"] / one["xml"])
        )
        / 1e6,
    }


def figure(sizes: Sequence[dict[str, Any]]) -> Figure:
    """Return the growth of time, memory and disk."""
    x = [row["xml"] / 1e6 for row in sizes]
    axis = Axis(label="XML", unit="MB", scale="log")
    times = [
        Line(name=stage, colour=colour, x=x, y=[row["seconds"].get(stage) for row in sizes], marker="circle")
        for stage, colour in zip(sizes[-1]["seconds"], COLOURS, strict=False)
    ]
    times.append(Line(name="all, start included", colour="ink", x=x, y=[row["wall"] for row in sizes], marker="circle"))
    memory = [row["memory"] / 1e6 for row in sizes]
    disk = [sum(row["disk"].values()) / 1e6 for row in sizes]
    return Figure(
        name="data-scale",
        title="Growth of the preparation with the dump",
        panels=[
            Panel(series=times, x=axis, y=Axis(label="time", unit="s", scale="log"), title="Time of each stage"),
            Panel(
                series=[Line(name="memory", colour="ink", x=x, y=memory, marker="circle", legend=False)],
                x=axis,
                y=Axis(label="PSS", unit="MB", low=0, high=1.1 * max(memory)),
                title="Memory of all processes, at most",
            ),
            Panel(
                series=[Line(name="disk", colour="ink", x=x, y=disk, marker="circle", legend=False)],
                x=axis,
                y=Axis(label="files", unit="MB", scale="log"),
                title="Disk, all stages",
            ),
        ],
        columns=3,
    )


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with pretrain/wiki/ and vocab/")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-data"), help="folder of the results")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000], help="megabytes of XML")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--parts", type=int, default=3, help="tasks of a stage in the run in parts")
    options = parser.parse_args()
    if not (options.data / "pretrain/wiki").is_dir():
        print(f"{options.data / 'pretrain/wiki'} is not there: see --help for what is needed", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        found = measure(options, Path(name).resolve())
    found |= {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "load": load, "workers": options.workers}
    if len(found["sizes"]) > 1:
        found["english"] = estimate(found["sizes"])
        write_png(figure(found["sizes"]), options.out)
        print(json.dumps(found["english"]))
    (options.out / "scale.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
