"""A real nsys records a real program with NVTX ranges; the reader gives back what the program did, or refuses a cut."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from analysis.open import open_sources
from analysis.readers.nsys import read
from analysis.timeline import Timeline

pytestmark = pytest.mark.timeout(300)

# All that nsys says when its connection to its own agent breaks at start, before the program runs: about once in some
# hundred calls on a busy machine.
_AGENT_LOST = "End of file"
# In what nsys 2022.4 throws where its agent was not there in time, likewise on a busy machine.
_NO_ENDPOINT = "Local Endpoint is not available"


def skip_unless_nsys_can_record_nvtx() -> None:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")
    try:
        nvtx = importlib.metadata.version("nvtx")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package nvtx is not installed")
    said = subprocess.run(["nsys", "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    year = re.search(r"\b(20\d\d)\.", said)
    newer = tuple(int(part) for part in re.findall(r"\d+", nvtx)[:3]) > (0, 2, 11)
    if newer and (year is None or int(year[1]) < 2023):
        pytest.skip(f"nvtx {nvtx} loses its ranges with this nsys ({said.strip()}): nvtx 0.2.11 keeps them")


def record(folder: Path, program: Sequence[str], options: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Return the report of Python's `program`, run in `folder`; again where nsys lost its agent at the start."""
    report = folder / "report.nsys-rep"
    quiet = ("--sample=none", "--cpuctxsw=none", "-f", "true", "-o", "report")
    command = ["nsys", "profile", "-t", "nvtx", *quiet, *options]
    for _ in range(3):
        done = subprocess.run(
            [*command, sys.executable, *program],
            cwd=folder,
            env={**os.environ, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0", **environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        said = (done.stdout + done.stderr).strip()
        if said != _AGENT_LOST and _NO_ENDPOINT not in said:
            break
    assert report.is_file(), said
    return report


# As a run makes them (bench/profilers/range_observer.py): two processes, steps 0 to 7, the capture is [3, 6).
PROGRAM = """
import multiprocessing, threading, time, nvtx

def push(name, payload=None):
    nvtx.push_range(message=name, domain="bertbench", payload=payload)

def pop():
    nvtx.pop_range(domain="bertbench")

def autograd():
    push("autograd"); time.sleep(0.004); pop()

def rank(number, barrier):
    push("run")
    for step in range(8):
        if step == 3:
            capture = nvtx.start_range(message="bertbench:capture", domain="bertbench", payload=number)
            barrier.wait()  # ranges that began before the tool records are lost
        push(f"step {step}", step)
        push("data"); time.sleep(0.002); pop()
        push("forward")
        for layer in range(2):
            push(f"layer.{layer}")
            push(f"layer.{layer}.attention"); time.sleep(0.003); pop()
            push(f"layer.{layer}.mlp"); time.sleep(0.002); pop()
            pop()
        pop()
        push("backward")
        thread = threading.Thread(target=autograd); thread.start(); thread.join()
        pop()
        push("all-reduce"); time.sleep(0.001); pop()
        push("optimizer"); time.sleep(0.001); pop()
        pop()
        if step == 5:
            barrier.wait()
            nvtx.end_range(capture)
    pop()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=rank, args=(number, barrier)) for number in range(2)]
    for process in processes: process.start()
    for process in processes: process.join()
"""

STEP = [
    ("data", []),
    ("forward", [(f"layer.{n}", [(f"layer.{n}.attention", []), (f"layer.{n}.mlp", [])]) for n in range(2)]),
    ("backward", []),
    ("all-reduce", []),
    ("optimizer", []),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_unless_nsys_can_record_nvtx()
    folder = tmp_path_factory.mktemp("nsys")
    (folder / "program.py").write_text(PROGRAM)
    options = ["-c", "nvtx", "-p", "bertbench:capture@bertbench", "--capture-range-end=stop"]
    return record(folder, ["program.py"], options, {"SECRET_TOKEN": "hush-hush"})


@pytest.fixture(scope="module")
def timelines(report: Path) -> list[Timeline]:
    database = report.with_suffix(".sqlite")
    command = ["nsys", "export", "--quiet=true", "--type=sqlite", "--force-overwrite=true", f"--output={database}"]
    subprocess.run([*command, str(report)], check=True, capture_output=True, timeout=200)
    return read(database)


def nested(ranges: list[dict[str, Any]], begin: int, end: int) -> list[tuple[str, list]]:
    """Return the names of ranges of one thread inside [begin, end), each with those that it contains."""
    inside, last = [], begin
    for row in sorted(ranges, key=lambda row: (row["start"], -row["end"])):
        if row["start"] >= last and row["end"] <= end:
            within = [one for one in ranges if one is not row]
            inside.append((row["name"].removeprefix("bertbench:"), nested(within, row["start"], row["end"])))
            last = row["end"]
    return inside


def test_ranks_steps_and_nesting_come_back_exactly(timelines: list[Timeline]) -> None:
    assert [timeline.rank for timeline in timelines] == [0, 1]
    assert len({timeline.process for timeline in timelines}) == 2
    for timeline in timelines:
        steps = timeline.steps
        assert list(steps["step"]) == [3, 4, 5]
        assert (steps["start"].to_numpy()[1:] >= steps["end"].to_numpy()[:-1]).all()
        for step in steps.to_dict("records"):
            ranges = timeline.ranges
            ranges = ranges[(ranges["start"] >= step["start"]) & (ranges["end"] <= step["end"])]
            elsewhere = ranges["name"].str.endswith("autograd")
            assert nested(ranges[~elsewhere].to_dict("records"), step["start"], step["end"]) == STEP
            ((begin, end),) = ranges.loc[elsewhere, ["start", "end"]].to_numpy()
            assert end - begin >= 4e6
            assert step["end"] - step["start"] >= 18e6, "2 + 2 x (3 + 2) + 4 + 1 + 1 ms of sleep"


def test_the_capture_is_a_range_and_the_version_is_known(timelines: list[Timeline]) -> None:
    for timeline in timelines:
        capture = timeline.ranges[timeline.ranges["name"] == "bertbench:capture"]
        assert list(capture["payload"]) == [timeline.rank] and not capture["cut"].any()
        assert re.fullmatch(r"nsys 20\d\d\.\d+.*", timeline.source)


def test_a_report_is_read_as_its_export_and_a_cut_one_is_refused(
    report: Path, timelines: list[Timeline], tmp_path: Path
) -> None:
    for one, other in zip(open_sources(report).timelines, timelines, strict=True):
        for name in ("steps", "ranges", "kernels", "api"):
            assert getattr(one, name).equals(getattr(other, name)), name
    whole, path = report.read_bytes(), tmp_path / "cut.nsys-rep"
    for share in (0.02, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        with refused("file-damaged", path):
            open_sources(path)
