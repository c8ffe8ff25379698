"""Compares the reading and summing of many ranks with Holistic Trace Analysis: seconds, memory, equal results.

Both sides load the traces of all ranks, and compute the temporal breakdown, the overlap of communication and
computation, and the sum of every kernel.

    python benchmarks/traces.py [--out DIR] [--hta-python PYTHON] [--rounds N]

Results go to DIR/traces.json. Ends with 1 where a figure is not as needed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces" / "kineto"
FOLDERS = ("megatron-8-ranks", "dlrm-8-ranks")
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
NEEDED = {"fresh_ratio": 7.0, "warm_ratio": 11.0, "memory_ratio": 0.5}
BOTH = "both"
REPETITIONS = 2
_SAMPLE_SECONDS = 0.005
_MEMORY_RUNS = 3

# All sides say the same: per rank span, idle, compute, other, overlap; per rank and kernel the sum of durations, us.
OURS = """
import json, sys, time
from pathlib import Path
begun = time.perf_counter()
from analysis.metrics.kernels.tables import kernel_times
from analysis.metrics.time.temporal import temporal_breakdown
from analysis.readers.registry import read_all

def work(folders):
    ranks, kernels = {}, {}
    for folder in map(Path, folders):
        for _, timeline in read_all("kineto", sorted(folder.glob("*.json.gz"))):
            make_tables(timeline)
            key = f"{folder.name}/{timeline.rank}"
            found = temporal_breakdown(timeline, window="kernels")
            ranks[key] = [found.span_ns / 1e3, found.idle_ns / 1e3, found.compute_ns / 1e3,
                          (found.busy_ns - found.compute_ns) / 1e3, 100 * found.overlap_share]
            times = kernel_times(timeline, window="kernels")
            kernels[key] = dict(zip(times.names, (times.total_ns / 1e3).tolist()))
    return ranks, kernels

def make_tables(timeline):
    pass
"""
TABLES = (
    OURS
    + """
import pandas

def make_tables(timeline):
    assert len(timeline.kernels) and len(timeline.operators)  # the other tables are made with them
"""
)
THEIRS = """
import json, logging, sys, time, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
begun = time.perf_counter()
from hta.trace_analysis import TraceAnalysis

def work(folders):
    ranks, kernels = {}, {}
    for folder in folders:
        found = TraceAnalysis(trace_dir=folder)
        times = found.get_temporal_breakdown(visualize=False)
        overlap = found.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
        columns = ["kernel_time(us)", "idle_time(us)", "compute_time(us)", "non_compute_time(us)"]
        begin = folder.rsplit("/", 1)[1]
        for row in times.to_dict("records"):
            ranks[f"{begin}/{row['rank']}"] = [*(float(row[name]) for name in columns), float(overlap[row["rank"]])]
        _, table = found.get_gpu_kernel_breakdown(
            visualize=False, duration_ratio=1.0, num_kernels=10**6, include_memory_kernels=True)
        for row in table.to_dict("records"):
            kernels.setdefault(f"{begin}/{row['rank']}", {})[row["name"]] = float(row["sum (us)"])
    return ranks, kernels
"""
RUN = """
imported = time.perf_counter()
again, answer, *folders = sys.argv[1:]
ranks, kernels = work(folders)
times = []
for _ in range(int(again)):
    start = time.perf_counter()
    work(folders)
    times.append(time.perf_counter() - start)
with open(answer, "w") as file:
    json.dump({"ranks": ranks, "kernels": kernels, "times": times, "import_seconds": imported - begun}, file)
"""


def stage_hta(python: str, scratch: Path, rounds: int) -> dict[str, Any]:
    """Compare on each folder alone and on both, in processes of the sides in turn.

    Args:
        python: that of an environment with Holistic Trace Analysis.
        scratch: a folder for answers.
        rounds: measured rounds; one more comes before them and is not counted.
    """
    folders = [TRACES / name for name in FOLDERS]
    groups = {folder.name: [folder] for folder in folders} | {BOTH: folders}
    return {name: _compared(python, group, scratch, rounds) for name, group in groups.items()}


def missed(found: dict[str, Any]) -> list[str]:
    """Return what is not as needed, one sentence each: of both folders in one run; each alone is shown only."""
    said = []
    for figure, needed in NEEDED.items() if BOTH in found else ():
        value = found[BOTH]["ours"][figure]
        if value > needed if figure == "memory_ratio" else value < needed:
            said.append(f"hta: {figure} is {value:.2f}, needed is {needed}")
    return said


def hta_python(given: str | None) -> str:
    """Return the Python of an environment with HTA; make one in the cache folder where none is given."""
    if given:
        return given
    return environment("hta-0.5.0", HTA)


def environment(name: str, requirements: Sequence[str]) -> str:
    """Return the Python of an environment in the cache folder; make it with these packages where there is none."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertbench" / name
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=folder.exists())
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
        complete.touch()
    return str(python)


def versions(python: str) -> dict[str, str]:
    """Return the versions of what is compared and of what it stands on."""
    program = (
        "import importlib.metadata as m, json, platform\n"
        "names = ('HolisticTraceAnalysis', 'pandas', 'numpy', 'msgspec')\n"
        "have = {d.metadata['Name'] for d in m.distributions()}\n"
        "print(json.dumps({'python': platform.python_version()} | {n: m.version(n) for n in names if n in have}))"
    )
    found = {}
    for side, interpreter in (("hta", python), ("ours", sys.executable)):
        done = subprocess.run([interpreter, "-c", program], check=True, capture_output=True, text=True)
        found[side] = ", ".join(f"{name} {version}" for name, version in json.loads(done.stdout).items())
    return found


def _compared(python: str, folders: Sequence[Path], scratch: Path, rounds: int) -> dict[str, Any]:
    programs = {"hta": (python, THEIRS), "ours": (sys.executable, OURS), "tables": (sys.executable, TABLES)}
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in programs}
    for _ in range(rounds + 1):  # the first one warms the disk
        for side, (interpreter, program) in programs.items():
            runs[side].append(_run_side(interpreter, program, folders, scratch))
    found: dict[str, Any] = {}
    for side, (interpreter, program) in programs.items():
        fresh = [run["fresh_seconds"] for run in runs[side][1:]]
        warm = [seconds for run in runs[side][1:] for seconds in run["times"]]
        memory = [_peak_bytes(interpreter, program, folders, scratch) for _ in range(_MEMORY_RUNS)]
        found[side] = {
            "fresh_seconds": statistics.median(fresh),
            "fresh_spread": [min(fresh), max(fresh)],
            "warm_seconds": statistics.median(warm),
            "warm_spread": [min(warm), max(warm)],
            "import_seconds": statistics.median(run["import_seconds"] for run in runs[side][1:]),
            "peak_bytes": statistics.median(memory),
        }
    for side in ("ours", "tables"):
        found[side] |= {
            "numbers_equal": _assert_equal(runs[side][0], runs["hta"][0]),
            "fresh_ratio": found["hta"]["fresh_seconds"] / found[side]["fresh_seconds"],
            "warm_ratio": found["hta"]["warm_seconds"] / found[side]["warm_seconds"],
            "memory_ratio": found[side]["peak_bytes"] / found["hta"]["peak_bytes"],
        }
    return found


def _run_side(python: str, program: str, folders: Sequence[Path], scratch: Path) -> dict[str, Any]:
    """Run one side in a new process: "fresh_seconds" is all of it without the repetitions, "times" are these."""
    answer = scratch / "answer.json"
    begun = time.perf_counter()
    subprocess.run(
        [python, "-c", program + RUN, str(REPETITIONS), str(answer), *map(str, folders)],
        cwd=scratch, env=_environment(program), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    took = time.perf_counter() - begun
    found = dict(json.loads(answer.read_text()))
    return {**found, "fresh_seconds": took - sum(found["times"])}


def _environment(program: str) -> dict[str, str]:
    """Let modules be compiled once, as for every user."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPATH": "" if program == THEIRS else str(ROOT)}


def _peak_bytes(python: str, program: str, folders: Sequence[Path], scratch: Path) -> int:
    """Return the most memory of a fresh process and its children together; what they share counts once (PSS)."""
    command = [python, "-c", program + RUN, "0", str(scratch / "answer.json"), *map(str, folders)]
    process = psutil.Popen(
        command, cwd=scratch, env=_environment(program), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peak = 0
    while process.poll() is None:
        total = 0
        for one in [process, *_children(process)]:
            try:
                total += one.memory_full_info().pss
            except psutil.Error:
                continue
        peak = max(peak, total)
        time.sleep(_SAMPLE_SECONDS)
    assert process.returncode == 0, program
    return peak


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _assert_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> int:
    """Raise where the two sides differ; return how many numbers were compared."""
    compared = 0
    assert ours["ranks"].keys() == theirs["ranks"].keys()
    for rank, (*times, overlap) in theirs["ranks"].items():
        *own, own_overlap = ours["ranks"][rank]
        assert own == times, (rank, own, times)
        assert round(own_overlap, 2) == overlap or abs(own_overlap - overlap) < 0.005001, (rank, own_overlap, overlap)
        compared += 1 + len(times)
    for rank, sums in theirs["kernels"].items():
        assert sums == ours["kernels"][rank], rank
        compared += len(sums)
    return compared


def main() -> int:
    """Compare, print and write the figures; 1 where one is not as needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-analysis"), help="folder of the results")
    parser.add_argument("--hta-python", help="Python with HolisticTraceAnalysis 0.5.0 and pandas 2")
    parser.add_argument("--rounds", type=int, default=5, help="processes per side that are compared")
    options = parser.parse_args()
    if not TRACES.is_dir():
        print(f"{TRACES} is missing: it holds the public traces of {' and '.join(FOLDERS)}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    python = hta_python(options.hta_python)
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        results = {"versions": versions(python), **stage_hta(python, Path(name).resolve(), options.rounds)}
    results["missed"] = missed(results)
    (options.out / "traces.json").write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))
    return 1 if results["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
