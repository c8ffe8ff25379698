"""Everything that needs a CUDA device, nine minutes per call: `make gpu-acceptance OUT=<folder>`.

Writes <folder>/acceptance.json (versions, and per part: command, seconds, outcome, figures), acceptance.md and
acceptance.tar.gz, which holds the most useful files, at most 16 MiB, after every part and after every trial of one; the
run directory with its report, and logs. The most important parts run first (support/acceptance_steps.py is the table).
A part that fails or times out is recorded; the others still run. One that does not fit into the time is left out and
named: the same command then runs it. What a missing package leaves out is reported in one line before anything runs.
Exit code 1 when a part failed, 2 without a GPU, a package that every part needs or a folder to write into, 130 when it
was interrupted.

    python tests/gpu/acceptance.py --tests <folder>         (make gpu-tests)

adds the tests of the command line, which have a call of their own.

    python tests/gpu/acceptance.py --publish <folder or tar>       (make gpu-results)

makes docs/results/<date>-<gpu>.json, .md and .png of the tar of a run; that needs no GPU.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # before any import that an older one lacks
    sys.stderr.write(
        f"gpu-acceptance needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}: name another, "
        "make gpu-acceptance OUT=<folder> PYTHON=<python>\n"
    )
    sys.exit(2)

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.acceptance_archive import ARCHIVE, pack  # noqa: E402
from support.acceptance_checks import NOT_AS_EXPECTED, complaint, figures, only_oom_that_may_be, parsed  # noqa: E402
from support.acceptance_packages import missing, notice, refusal  # noqa: E402
from support.acceptance_report import markdown  # noqa: E402
from support.acceptance_steps import (  # noqa: E402
    TESTS,
    Step,
    first_batch,
    left_out,
    seconds_for,
    steps,
)

from common.atomic import write_text  # noqa: E402
from common.errors import StorageError  # noqa: E402

GRACE_SECONDS = 10.0
HURRY_SECONDS = 5.0
"""How long a part may take to end when the whole run is interrupted: what interrupts it may kill it soon."""
LOOK_SECONDS = 1.0
SOME_NOT_OK = 3
"""Exit code of a command of whose trials some did not end well."""
LEFT_OUT, INTERRUPTED, APART = "left out", "interrupted", "apart"
FINE = ("ok", "absent", APART, LEFT_OUT)
"""Outcomes that are no failure: done, something is missing here, left to a call of its own, no time was left."""
TO_DO = (LEFT_OUT, INTERRUPTED, "timeout")
"""Outcomes that the next call of the same command repeats."""
_MOST_OUTPUT = 64 * 2**20
_USAGE = (
    "usage: make gpu-acceptance OUT=<folder>, then make gpu-tests OUT=<the same folder> and make gpu-results OUT=<it>\n"
)
_TRIAL = ("implementation", "levers", "preset", "precision", "seq_len", "micro_batch_size", "data", "round")
_RESULT = (
    "status", "reason", "samples_per_second", "tokens_per_second", "step_time_ms", "step_time_ms_low",
    "step_time_ms_high", "mfu", "peak_memory_bytes", "energy_joules", "joules_per_sample",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run every step into the folder argv[0], add the tests to argv[1], or publish what lies there."""
    if len(argv) == 2 and argv[0] == "--publish" and argv[1]:
        return publish(Path(argv[1]).resolve(), ROOT / "docs/results")
    tests_alone = len(argv) == 2 and argv[0] == "--tests"
    if len(argv) != 1 + tests_alone or not argv[-1] or argv[-1].startswith("-"):
        sys.stderr.write(_USAGE)
        return 2
    out = Path(argv[-1]).resolve()
    lacking = missing()
    plan = steps(out / "run", lacking)
    without = left_out(plan, lacking)
    if refused := refusal(sys.executable, lacking, without):
        sys.stderr.write(refused)
        return 2
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("gpu-acceptance needs a CUDA device, and torch finds none here: `bertbench doctor` says why\n")
        return 2
    sys.stderr.write(notice(lacking, without))
    plan = steps(out / "run", lacking, first_batch(torch.cuda.get_device_properties(0).total_memory))
    # A shell lets what it starts behind & ignore the first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    about = {**versions(), "lacking": without}
    return add_tests(out, about, plan[-1]) if tests_alone else run_all(out, plan, about)


def run_all(out: Path, plan: list[Step], about: dict[str, Any]) -> int:
    """Run the parts of a plan that the folder has not, and keep the record true after each. Return the exit code."""
    record, refused = opened(out, about)
    if record is None:
        sys.stderr.write(f"gpu-acceptance: {out} {refused}: give another folder, or remove it\n")
        return 2
    began, before = time.monotonic(), record["seconds"]
    rows = {row["name"]: row for row in record["steps"]}
    seen = len(results(out))

    def put(row: dict[str, Any]) -> None:
        rows[row["name"]] = row
        record["steps"] = [rows[step.name] for step in plan if step.name in rows]
        record["seconds"] = before + time.monotonic() - began
        write_record(out, record)

    def look() -> None:
        """Carry what trials of a part have measured into the record and the tar, while the next trial starts."""
        nonlocal seen
        if seen != (seen := len(results(out))):
            write_record(out, record)
            record["left_out"] = packed(out)

    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
        for number, step in enumerate(plan):
            if rows.get(step.name, {}).get("outcome", LEFT_OUT) not in TO_DO and not step.kept:
                continue
            put({**blank(step), "outcome": INTERRUPTED, "why": "it had begun"})  # what is killed with this process
            limit = seconds_for(number, plan, time.monotonic() - began)
            row = blank(step, APART, "make gpu-tests OUT=<folder>") if step.apart else None
            put(row or run_step(step, limit, out / "logs", look))
            say(rows[step.name])
            record["left_out"] = packed(out)
        write_record(out, record)
        packed(out)
    except KeyboardInterrupt:
        record["seconds"], record["ended"] = before + time.monotonic() - began, "interrupted"
        record["steps"] += [blank(step, LEFT_OUT, "interrupted before") for step in plan if step.name not in rows]
        return 130 if kept(out, record) else 1
    except (StorageError, OSError) as error:
        record["ended"] = f"ended early: {error}"
        sys.stderr.write(f"gpu-acceptance: {error}; {out}/acceptance.json has what was recorded before\n")
        kept(out, record)
        return 2 if len(record["steps"]) == 0 else 1
    if missed := [row["name"] for row in record["steps"] if row["outcome"] == LEFT_OUT]:
        sys.stdout.write(f"not run for lack of time: {', '.join(missed)}; run the same command again\n")
    return 1 if any(row["outcome"] not in FINE for row in record["steps"]) else 0


def opened(out: Path, about: dict[str, Any]) -> "tuple[dict[str, Any] | None, str]":
    """Return the record to add to, that of an earlier call with the same code on the same machine; else None and why.

    What is finished in the run directory would not be measured again, and pass for a measurement of today's code.
    """
    try:
        record: dict[str, Any] = json.loads((out / "acceptance.json").read_text(encoding="utf-8"))
        names = [row["name"] for row in record["steps"] if row["outcome"]]
        same = record["versions"] == about and len(names) == len(set(names))
        return ({**record, "ended": ""}, "") if same else (None, "holds a run of other code, packages or GPUs")
    except FileNotFoundError:
        if (out / "run").exists():
            return None, "holds a run without its record"
        return new_record(out, about), ""
    except OSError as error:
        return (
            (new_record(out, about), "")
            if isinstance(error, NotADirectoryError)
            else (None, f"cannot be read: {error}")
        )
    except NOT_AS_EXPECTED as error:
        return None, f"holds a damaged record: {error}"


def results(out: Path) -> list[Path]:
    """Return the records of trials that have ended."""
    return list(out.glob("run/trials/*/result.json"))


def new_record(out: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return a record without steps."""
    record: dict[str, Any] = {"command": "make gpu-acceptance", "folder": str(out), "versions": about}
    record |= {"began": datetime.now(UTC).isoformat(timespec="seconds"), "ended": "", "seconds": 0.0, "steps": []}
    return {**record, "left_out": []}


def add_tests(out: Path, about: dict[str, Any], step: Step) -> int:
    """Run the tests of the command line and put their row into the record of a run, a new one where there is none."""
    try:
        record = json.loads((out / "acceptance.json").read_text(encoding="utf-8"))
        record["steps"] = [row for row in record["steps"] if row["name"] != TESTS]
    except FileNotFoundError:
        record = new_record(out, about)
    except (OSError, *NOT_AS_EXPECTED) as error:
        sys.stderr.write(f"gpu-acceptance: {out} holds no run that tests could be added to: {error}\n")
        return 2
    try:
        row = run_step(step, step.limit, out / "logs")
        record["steps"].append(row)
        record["seconds"] += row["seconds"]
        write_record(out, record)
        say(row)
        record["left_out"] = packed(out)
    except KeyboardInterrupt:
        return 130  # the record is as it was
    except (StorageError, OSError) as error:
        sys.stderr.write(f"gpu-acceptance: {error}\n")
        return 1
    return 0 if row["outcome"] in FINE else 1


def blank(step: Step, outcome: str = LEFT_OUT, why: str = "") -> dict[str, Any]:
    """Return the row of a part that did not run."""
    row = {"name": step.name, "command": step.command[1:], "outcome": outcome, "exit_code": None, "seconds": 0.0}
    return {**row, "why": why, "said": [], "figures": None}


def say(row: dict[str, Any]) -> None:
    """Print how a step ended."""
    why = f": {row['why'][:300]}" if row["why"] else ""
    sys.stdout.write(f"{row['name']}: {row['outcome']} in {row['seconds']:.0f} s{why}\n")
    sys.stdout.flush()


def run_step(step: Step, limit: float, logs: Path, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Run one part for `limit` seconds at most; its standard output, where it is JSON, is its figures.

    Args:
        step: the part.
        limit: seconds; where they are fewer than it is expected to take, it is left out.
        logs: folder for what it prints.
        look: called every second while it runs.

    Raises:
        KeyboardInterrupt: it was interrupted; the command has been ended.
        OSError: its log cannot be written.
    """
    row = blank(step)
    if step.lacks:
        return {**row, "outcome": "absent", "why": f"it needs {', '.join(step.lacks)}"}
    if limit < max(1.0, step.expected):
        return {**row, "why": f"it takes about {step.expected:.0f} s, and {max(0.0, limit):.0f} s are left"}
    logs.mkdir(parents=True, exist_ok=True)
    base = logs / step.name.replace(" ", "-")
    began = time.monotonic()
    # Files, not pipes: nothing that outlives the command can hold its end back, and a kill loses no line.
    with base.with_suffix(".out").open("wb") as output, base.with_suffix(".err").open("wb") as errors:
        try:
            child = subprocess.Popen(
                step.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return {**row, "outcome": "failed", "why": f"cannot be started: {error}"}
        try:
            code = waited(child, limit, look)
        except BaseException:
            end(child, HURRY_SECONDS)
            raise
        end(child, GRACE_SECONDS)
    row |= {"exit_code": code, "seconds": time.monotonic() - began}
    said = text_of(base.with_suffix(".err"))
    found, unread = parsed(step.command, text_of(base.with_suffix(".out")))
    row |= {"said": said.strip().splitlines()[-5:], "figures": figures(step.name, found)}
    if code is None:
        return {**row, "outcome": "timeout", "why": f"ended after {limit:.0f} s"}
    if code == 2 and "not on PATH" in said:  # the tool is not installed on this machine, which is no failure of ours
        return {**row, "outcome": "absent", "why": said.strip().splitlines()[-1]}
    why = "" if unread else complaint(step.name, found)
    if code == SOME_NOT_OK and not why and only_oom_that_may_be(step.name, found):
        return {**row, "outcome": "ok", "why": ""}
    if code != 0:
        why = "; ".join(filter(None, [f"exit code {code}", why or said.strip()[-300:]]))
    why = unread if code == 0 and unread else why
    return {**row, "outcome": "failed" if why else "ok", "why": why}


def waited(child: "subprocess.Popen[bytes]", limit: float, look: Callable[[], None]) -> int | None:
    """Wait for a command, for `limit` seconds at most; return its exit code, None for one that still runs."""
    until = time.monotonic() + limit
    while (left := until - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(min(LOOK_SECONDS, left))
        look()
    return child.poll()


def end(child: "subprocess.Popen[bytes]", grace_seconds: float) -> None:
    """End a command that still runs, politely first: it then writes down what it has and ends its ranks.

    Whatever it has left behind in its session is ended in any case. Raises KeyboardInterrupt, when all that is done.
    """
    interrupted = False
    try:
        if child.poll() is None:
            child.terminate()
            child.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        pass
    except KeyboardInterrupt:
        interrupted = True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if interrupted:
        raise KeyboardInterrupt


def text_of(path: Path) -> str:
    """Return a log as text, of a huge one the beginning."""
    with path.open("rb") as file:
        return file.read(_MOST_OUTPUT).decode("utf-8", errors="replace")


def write_record(out: Path, record: dict[str, Any]) -> None:
    """Write acceptance.json and acceptance.md, each whole or not at all. Raises StorageError."""
    record["throughput"] = measured(out / "run")
    write_text(out / "acceptance.json", json.dumps(record, indent=2) + "\n")
    try:
        page = markdown(record)
    except NOT_AS_EXPECTED as error:  # figures of a step that failed can have any form
        page = f"The record is in acceptance.json; it cannot be shown as tables: {type(error).__name__}: {error}\n"
    write_text(out / "acceptance.md", page)


def packed(out: Path) -> list[str]:
    """Make the tar anew and return what is not in it; that there is none ends nothing."""
    try:
        return pack(out)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gpu-acceptance: no new tar: {error}\n")
        return [f"everything since the last tar: {error}"]


def kept(out: Path, record: dict[str, Any]) -> bool:
    """Try to write the record where things have gone wrong; say so where that fails too."""
    try:
        write_record(out, record)
        packed(out)
    except (StorageError, OSError) as error:
        sys.stderr.write(f"gpu-acceptance: {error}\n")
        return False
    return True


def measured(run: Path) -> list[dict[str, Any]]:
    """Return what every trial of throughput in the run directory came to, those of steps that timed out included."""
    rows = []
    for path in sorted(run.glob("trials/*/result.json"), key=lambda path: path.stat().st_mtime):
        try:
            trial, result = (
                json.loads(file.read_text(encoding="utf-8"), parse_constant=lambda _: None)
                for file in (path.parent / "trial.json", path)
            )
        except (OSError, ValueError):
            continue
        if trial.get("kind") == "throughput":
            rows.append({**{key: trial.get(key) for key in _TRIAL}, **{key: result.get(key) for key in _RESULT}})
    return rows


def versions() -> dict[str, Any]:
    """Return what the figures depend on."""
    import torch

    def said(*command: str) -> str:
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip()

    installed = {}
    for name in ("triton", "transformers", "numpy", "msgspec", "nvtx", "tyro"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "packages": installed,
        "code": code_fingerprint(),
        "gpus": said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines(),
        "commit": said("git", "describe", "--always", "--dirty"),
    }


def code_fingerprint() -> str:
    """Return a hash of what runs: a copy without git has no commit, and a commit says nothing of changes after it."""
    found = hashlib.sha256()
    for folder in ("analysis", "bench", "bert", "common", "records", "tests/gpu", "tests/support"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".json", ".sh"):
                found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def packed_file(tar: tarfile.TarFile, name: str) -> bytes:
    """Return the content of a file in the tar. Raises KeyError where it has none."""
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read()


def publish(out: Path, results: Path) -> int:
    """Write <results>/<date>-<gpu>.json and .md of a run, without the names of its folders, and its main picture.

    `out` is the folder of the run, or its tar alone.
    """
    try:
        picture = None
        with tarfile.open(out if out.is_file() else out / ARCHIVE) as tar:
            text = packed_file(tar, "acceptance.json").decode()
            with contextlib.suppress(KeyError):
                picture = packed_file(tar, "run/report/throughput.png")
        record = json.loads(text)
        folder = str(record["folder"])
        record = json.loads(text.replace(json.dumps(folder)[1:-1], "OUT").replace(json.dumps(str(ROOT))[1:-1], "."))
        page = markdown(record)
        device = (record["versions"]["gpus"] or ["no GPU"])[0]
        name = f"{record['began'][:10]}-{short_name(device)}"
        write_text(results / f"{name}.json", json.dumps(record, indent=2) + "\n")
        if picture is not None:
            (results / f"{name}.png").write_bytes(picture)
            page += f"\n![Samples per second]({name}.png)\n"
        write_text(results / f"{name}.md", page)
    except (OSError, ValueError, KeyError, TypeError, StorageError, tarfile.TarError, EOFError, zlib.error) as error:
        sys.stderr.write(
            f"gpu-acceptance: {out} has no complete run to publish: {str(error).splitlines()[0].rstrip(':')}\n"
        )
        return 2
    sys.stdout.write(f"{results / name}.md\n")
    return 0


def short_name(device: str) -> str:
    """Return "h200" of "NVIDIA H200, 570.86"."""
    words = re.findall(r"[a-z0-9]+", device.partition(",")[0].lower())
    return next((word for word in words if any(letter.isdigit() for letter in word)), "gpu")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
