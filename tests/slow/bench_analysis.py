"""Measures how fast traces are read: against Holistic Trace Analysis, large ones, growth with the events.

    python tests/slow/bench_analysis.py [--stage hta large nsys linear] [--out DIR] [--hta-python PYTHON]

hta: the traces of 8 ranks, see bench_hta.py. large: a Kineto trace of over 1 GB, whole and malformed. nsys: exports of
5 million kernels. linear: Kineto traces of 10^4 to 10^7 events. Seconds of large and linear are those of reading and
of making all tables, in a fresh process, imports apart. Results go to DIR/analysis.json and DIR/linear.png, with the
load average of the machine before and after each stage. Ends with 1 where a figure is not as needed.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bench_hta
import bench_nsys

ROOT = Path(__file__).resolve().parents[2]
STAGES = ("hta", "large", "nsys", "linear")
LARGE_SECONDS, NSYS_SECONDS, LINEAR_SECONDS = 15.0, 8.0, 60.0
MOST_BYTES = 1e9
NSYS_KERNELS = 5_000_000
LINEAR_FROM, LINEAR_GROWTH = 100_000, 2.0  # below, what does not grow counts
NAMES = [f"void at::native::vectorized_elementwise_kernel<4, at::native::Functor_{n}<float>, std::array<char*, 3ul> >"
         f"(int, at::native::Functor_{n}<float>, std::array<char*, 3ul>)" for n in range(150)]  # fmt: skip


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
import json, os, resource, sys, time
from pathlib import Path
begun = time.perf_counter()
import pandas
from analysis.readers.kineto.reader import read
imported = time.perf_counter()
found = read(Path(sys.argv[1]))
took = time.perf_counter() - imported
rows = {name: len(getattr(found, name)) for name in ("operators", "kernels", "ranges", "api")}
print(json.dumps({"seconds": time.perf_counter() - imported, "read_seconds": took, "cpu_seconds": sum(os.times()[:4]),
                  "import_seconds": imported - begun, "rows": rows, "problems": found.problems,
                  "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
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
    found: dict[str, Any] = {"whole": {"file_bytes": source.stat().st_size, **measure(source)}}
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


def stage_nsys(folder: Path) -> dict[str, Any]:
    """Read exports of nsys with 5 million kernels, without and with the calls that launched them."""
    return {
        "kernels": bench_nsys.measure(NSYS_KERNELS, False, folder),
        "kernels and calls": bench_nsys.measure(NSYS_KERNELS, True, folder),
    }


def missed(results: dict[str, Any]) -> list[str]:
    """Return what is not as needed, one sentence each."""
    said = bench_hta.missed(results.get("hta", {}))
    for kind, found in results.get("large", {}).items():
        said += _over(f"large, {kind}", found["seconds"], found["peak_bytes"], LARGE_SECONDS)
    for kind, found in results.get("nsys", {}).items():
        said += _over(f"nsys, {kind}", found["seconds"], found["peak_rss_mb"] * 2**20, NSYS_SECONDS)
    rows = [row for row in results.get("linear", []) if row["events"] >= LINEAR_FROM]
    if rows:
        said += _over("linear", max(row["seconds"] for row in rows), 0, LINEAR_SECONDS)
        per_event = [row["seconds"] / row["events"] for row in rows]
        growth = max(later / each for place, each in enumerate(per_event) for later in per_event[place:])
        if growth > LINEAR_GROWTH:
            said.append(f"linear: an event of a larger trace takes {growth:.2f} times as long")
    return said


def _over(what: str, seconds: float, peak_bytes: float, needed_seconds: float) -> list[str]:
    said = [f"{what}: {seconds:.1f} s, needed is {needed_seconds}"] if seconds > needed_seconds else []
    if peak_bytes > MOST_BYTES:
        said.append(f"{what}: {peak_bytes / 1e6:,.0f} MB, needed is {MOST_BYTES / 1e6:,.0f}")
    return said


def main() -> int:
    """Run the stages, write and print the figures; 1 where one is not as needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--out", type=Path, default=Path("runs/bench-analysis"), help="folder of the results")
    parser.add_argument("--hta-python", help="Python with HolisticTraceAnalysis 0.5.0 and pandas 2")
    parser.add_argument("--rounds", type=int, default=5, help="processes per side that are compared")
    parser.add_argument("--largest", type=int, default=10_000_000, help="events of the largest trace of `linear`")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "load": {}}
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        scratch = Path(name).resolve()
        for stage in options.stage:
            before = os.getloadavg()[0]
            if stage == "hta" and not bench_hta.TRACES.is_dir():
                print(f"stage hta is left out: {bench_hta.TRACES} is not there")
                continue
            if stage == "hta":
                python = bench_hta.hta_python(options.hta_python)
                results["versions"] = bench_hta.versions(python)
                results["hta"] = bench_hta.stage_hta(python, scratch, options.rounds)
            elif stage == "linear":
                results["linear"] = stage_linear(scratch, options.largest)
                draw(results["linear"], options.out / "linear.png")
            else:
                results[stage] = {"large": stage_large, "nsys": stage_nsys}[stage](scratch)
            results["load"][stage] = [round(before, 2), round(os.getloadavg()[0], 2)]
    results["missed"] = missed(results)
    (options.out / "analysis.json").write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))
    for sentence in results["missed"]:
        print(f"not reached: {sentence}", file=sys.stderr)
    return 1 if results["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
