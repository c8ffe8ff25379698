"""Measures how fast Kineto traces are read: against Holistic Trace Analysis, a trace of 1 GB, growth with the events.

    python tests/slow/bench_analysis.py [--stage hta large linear] [--out DIR] [--hta-python PYTHON]

Every figure is of a fresh process. Results go to DIR/analysis.json and DIR/linear.png.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces" / "kineto"
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
NAMES = [f"void at::native::vectorized_elementwise_kernel<4, at::native::Functor_{n}<float>, std::array<char*, 3ul> >"
         f"(int, at::native::Functor_{n}<float>, std::array<char*, 3ul>)" for n in range(150)]  # fmt: skip
NEEDED = {"fresh_ratio": 8.0, "warm_ratio": 12.0, "memory_ratio": 0.5, "large_seconds": 15.0, "large_bytes": 1e9}


def events(count: int, seed: int = 0) -> Iterator[str]:
    """Yield `count` events as Kineto writes them, in the proportions of a training step's trace."""
    choose = random.Random(seed)
    now, number = 1_000_000, 1
    produced = 0
    while produced < count:
        now += choose.randint(3_000, 30_000)
        ts, gpu = now / 1000, (now + 5_000) / 1000
        length = choose.randint(1_000, 2_900) / 1000
        name = choose.choice(NAMES)
        group = [
            f'{{"ph":"X","cat":"cpu_op","name":"aten::op_{number % 300}","pid":77,"tid":{77 + number % 3},"ts":'
            f'{ts:.3f},"dur":{length:.3f},"args":{{"External id":{number},"Record function id":0,'
            f'"Concrete Inputs":["","",""],'
            f'"Input type":["float","float","Scalar"],"Input Dims":[[8,128,768],[768],[]],"Ev Idx":{number}}}}}',
            f'{{"ph":"X","cat":"cpu_op","name":"aten::inner_{number % 100}","pid":77,"tid":{77 + number % 3},'
            f'"ts":{ts + 0.1:.3f},"dur":{length / 2:.3f},"args":{{"External id":{number},"Record function id":0,'
            f'"Input Dims":[[8,128,768]],"Ev Idx":{number}}}}}',
            f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":77,"tid":77,"ts":{ts + 0.2:.3f},'
            f'"dur":0.500,"args":{{"External id":{number},"cbid":211,"correlation":{number}}}}}',
            f'{{"ph":"s","id":{number},"pid":77,"tid":77,"ts":{ts + 0.2:.3f},"cat":"ac2g","name":"ac2g"}}',
            f'{{"ph":"f","id":{number},"pid":0,"tid":7,"ts":{gpu:.3f},"cat":"ac2g","name":"ac2g","bp":"e"}}',
            f'{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":7,"ts":{gpu:.3f},"dur":{length:.3f},'
            f'"args":{{"External id":{number},"queued":0,"device":0,"context":1,"stream":7,"correlation":{number},'
            f'"registers per thread":32,"shared memory":0,"blocks per SM":12.5,"warps per SM":50.0,'
            f'"grid":[{number % 4000},1,1],"block":[128,1,1],"est. achieved occupancy %":62}}}}',
        ]
        if number % 20 == 0:
            group.append(
                f'{{"ph":"X","cat":"user_annotation","name":"bertbench:forward","pid":77,"tid":77,"ts":{ts:.3f},'
                f'"dur":{length:.3f},"args":{{"External id":{number},"Ev Idx":{number}}}}}'
            )
        number += 1
        yield from group[: count - produced]
        produced += len(group)


HEAD = (
    '{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "computeMajor": 9, '
    '"computeMinor": 0, "numSms": 132}],\n  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},\n'
    '  "traceEvents": [\n'
)
TAIL = '\n  ],\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1751410836000000000\n}\n'


def generate(path: Path, count: int, bytes_per_event: int = 0) -> None:
    """Write a trace of `count` events, each at least `bytes_per_event` long (blanks, as in indented traces)."""
    with path.open("w", encoding="ascii") as file:
        file.write(HEAD)
        first = True
        for event in events(count):
            file.write(("" if first else ",\n") + event.rjust(bytes_per_event - 2))
            first = False
        file.write(TAIL)


def damage(source: Path, kind: str) -> Path:
    """Write a copy of a trace with one kind of damage near its middle (NaN: in many places)."""
    target = source.with_name(f"{kind}.json")
    middle = source.stat().st_size // 2
    place = 0
    with source.open("rb") as file, target.open("wb") as out:
        while block := file.read(1 << 24):
            if place <= middle < place + len(block):
                at = block.find(b'"name":"', middle - place)
                at = block.find(b'"name":"', 0) if at < 0 else at
                if kind == "invalid_utf8":
                    block = block[: at + 10] + b"\xff\xfe" + block[at + 10 :]
                elif kind == "control_character":
                    block = block[: at + 10] + b"\x01" + block[at + 10 :]
                elif kind == "truncated":
                    out.write(block[: middle - place])
                    break
            if kind == "nan":
                block = block.replace(b'"warps per SM":50.0', b'"warps per SM": NaN', 100)
            out.write(block)
            place += len(block)
    return target


MEASURE = """
import json, resource, sys, time
from pathlib import Path
begun = time.perf_counter()
from analysis.readers.kineto import read
imported = time.perf_counter()
found = read(Path(sys.argv[1]))
took = time.perf_counter() - imported
used = time.process_time()
tables = ("operators", "kernels", "ranges", "api")
print(json.dumps({"seconds": took, "cpu_seconds": used, "import_seconds": imported - begun,
                  "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                  "rows": {name: len(getattr(found, name)) for name in tables}, "problems": found.problems}))
"""


def measure(path: Path) -> dict[str, Any]:
    """Read a trace in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def stage_large(folder: Path) -> dict[str, Any]:
    """Read a trace of over 1 GB with 4 million events, and malformed variants of it."""
    source = folder / "large.json"
    generate(source, 4_000_000, 250)
    found: dict[str, Any] = {"file_bytes": source.stat().st_size, "whole": measure(source)}
    for kind in ("truncated", "invalid_utf8", "control_character", "nan"):
        path = damage(source, kind)
        found[kind] = measure(path)
        path.unlink()
    source.unlink()
    return found


def stage_linear(folder: Path, largest: int) -> list[dict[str, Any]]:
    """Read traces of 10^4 to `largest` events; draw the times."""
    rows = []
    for count in (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000):
        if count > largest:
            break
        path = folder / f"{count}.json"
        generate(path, count, 250)
        rows.append({"events": count, **measure(path)})
        path.unlink()
    return rows


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw time by number of events."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    counts = [row["events"] for row in rows]
    axes.loglog(counts, [row["seconds"] for row in rows], "o-", label="measured")
    slope = rows[-1]["seconds"] / counts[-1]
    axes.loglog(counts, [slope * count for count in counts], ":", label=f"{slope * 1e6:.2f} µs per event")
    axes.set_xlabel("events of the trace")
    axes.set_ylabel("seconds to read")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


# Both sides say the same: per rank span, idle, compute, other, overlap; per rank and kernel the sum of durations, us.
OURS = """
import json, resource, sys, time
from pathlib import Path
begun = time.perf_counter()
import numpy
from analysis.metrics.intervals import intersection, merged, total_ns
from analysis.names import collective
from analysis.readers.kineto import read_works

def work(folders):
    ranks, kernels = {}, {}
    paths = [path for folder in folders for path in sorted(Path(folder).glob("*.json.gz"))]
    for path, found in zip(paths, read_works(paths)):
        key = f"{path.parent.name}/{found.rank}"
        name, kind, start, end = (found.columns[column] for column in ("name", "kind", "start", "end"))
        communicates = numpy.array([collective(text) is not None for text in found.names])[name] & (kind == 0)
        compute = (kind == 0) & ~communicates
        computing, communicating = (merged(start[rows], end[rows]) for rows in (compute, communicates))
        span, busy = int(end.max() - start.min()), total_ns(merged(start, end))
        overlapped = total_ns(intersection(computing, communicating)) / total_ns(communicating)
        computed = total_ns(computing)
        ranks[key] = [span / 1e3, (span - busy) / 1e3, computed / 1e3, (busy - computed) / 1e3, 100 * overlapped]
        sums = numpy.bincount(name, end - start, len(found.names))
        kernels[key] = dict(zip(found.names, (sums / 1e3).tolist()))
    return ranks, kernels
"""
FRAMES = """
import json, resource, sys, time
from pathlib import Path
begun = time.perf_counter()
from analysis.metrics.temporal import temporal_breakdown
from analysis.readers.kineto import read_ranks
import numpy, pandas

def work(folders):
    ranks, kernels = {}, {}
    for folder in map(Path, folders):
        for timeline in read_ranks(sorted(folder.glob("*.json.gz"))):
            key = f"{folder.name}/{timeline.rank}"
            found = temporal_breakdown(timeline, window="kernels")
            ranks[key] = [found.span_ns / 1e3, found.idle_ns / 1e3, found.compute_ns / 1e3, found.non_compute_ns / 1e3,
                          100 * found.overlap_share]
            table = timeline.kernels
            sums = numpy.bincount(table["name"].cat.codes, (table["end"] - table["start"]).to_numpy())
            kernels[key] = dict(zip(table["name"].cat.categories, (sums / 1e3).tolist()))
    return ranks, kernels
"""
THEIRS = """
import json, logging, resource, sys, time, warnings
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


def run_side(python: str, program: str, folders: Sequence[Path], again: int, scratch: Path) -> dict[str, Any]:
    """Run one side in a fresh process; "process_seconds" is all of it, "times" its repetitions."""
    answer = scratch / "answer.json"
    environment = {**os.environ, "PYTHONPATH": "" if program == THEIRS else str(ROOT)}
    begun = time.perf_counter()
    subprocess.run(
        [python, "-c", program + RUN, str(again), str(answer), *map(str, folders)],
        cwd=scratch, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    took = time.perf_counter() - begun
    return {**json.loads(answer.read_text()), "process_seconds": took}


def peak_bytes(python: str, program: str, folders: Sequence[Path], scratch: Path) -> int:
    """Return the most memory of a fresh process and its children together; what they share counts once (PSS)."""
    environment = {**os.environ, "PYTHONPATH": "" if program == THEIRS else str(ROOT)}
    command = [python, "-c", program + RUN, "0", str(scratch / "answer.json"), *map(str, folders)]
    process = psutil.Popen(command, cwd=scratch, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        total = 0
        for one in [process, *_children(process)]:
            try:
                total += one.memory_full_info().pss
            except psutil.Error:
                continue
        peak = max(peak, total)
        time.sleep(0.01)
    assert process.returncode == 0, program
    return peak


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def assert_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> int:
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


def stage_hta(python: str, scratch: Path, rounds: int) -> dict[str, Any]:
    """Compare with Holistic Trace Analysis, in interleaved fresh processes; one run analyses both folders."""
    folders = [TRACES / name for name in ("megatron-8-ranks", "dlrm-8-ranks")]
    programs = {"hta": (python, THEIRS), "arrays": (sys.executable, OURS), "timelines": (sys.executable, FRAMES)}
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in programs}
    for number in range(rounds + 1):  # the first one warms the disk and repeats
        for side, (interpreter, program) in programs.items():
            runs[side].append(run_side(interpreter, program, folders, 5 if number == 0 else 0, scratch))
    found: dict[str, Any] = {}
    for side, (interpreter, program) in programs.items():
        found[side] = {
            "fresh_seconds": statistics.median(run["process_seconds"] for run in runs[side][1:]),
            "warm_seconds": statistics.median(runs[side][0]["times"]),
            "import_seconds": statistics.median(run["import_seconds"] for run in runs[side][1:]),
            "peak_bytes": peak_bytes(interpreter, program, folders, scratch),
        }
    for side in ("arrays", "timelines"):
        found[side] |= {
            "numbers_equal": assert_equal(runs[side][0], runs["hta"][0]),
            "fresh_ratio": found["hta"]["fresh_seconds"] / found[side]["fresh_seconds"],
            "warm_ratio": found["hta"]["warm_seconds"] / found[side]["warm_seconds"],
            "memory_ratio": found[side]["peak_bytes"] / found["hta"]["peak_bytes"],
        }
    return found


def hta_python(given: str | None) -> str:
    """Return the Python of an environment with HTA; make one in the cache folder where none is given."""
    if given:
        return given
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bertbench" / "hta-0.5.0"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *HTA], check=True)
    return str(python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", nargs="+", choices=("hta", "large", "linear"), default=["hta", "large", "linear"])
    parser.add_argument("--out", type=Path, default=Path("runs/bench-analysis"), help="folder of the results")
    parser.add_argument("--hta-python", help="Python with HolisticTraceAnalysis 0.5.0 and pandas 2")
    parser.add_argument("--rounds", type=int, default=4, help="fresh processes per side; the first warms the disk")
    parser.add_argument("--largest", type=int, default=10_000_000, help="events of the largest trace of `linear`")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "needed": NEEDED}
    with tempfile.TemporaryDirectory(dir=options.out) as scratch:
        if "hta" in options.stage and TRACES.is_dir():
            python = hta_python(options.hta_python)
            results["hta"] = stage_hta(python, Path(scratch).resolve(), options.rounds)
        elif "hta" in options.stage:
            print(f"stage hta is left out: {TRACES} is not there")
        if "large" in options.stage:
            results["large"] = stage_large(Path(scratch))
        if "linear" in options.stage:
            results["linear"] = stage_linear(Path(scratch), options.largest)
            draw(results["linear"], options.out / "linear.png")
    (options.out / "analysis.json").write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
