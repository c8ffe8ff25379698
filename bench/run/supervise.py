"""One trial in child processes: started, watched, ended, and its outcome written down."""

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from analysis.load import summarize_trial
from bench.hook.on_path.sitecustomize import NOTES, STOP
from bench.implementations import own_variables
from bench.launch import torchrun
from bench.launch.world import AGENT_STORE_VARIABLE
from bench.machine.devices import Devices
from bench.profilers import load_profiler
from bench.run.inside import Leader, rank_variables
from bench.run.processes import STOP_SIGNALS, descendants, end_guarded, end_in_words, send, start_guarded
from bench.run.resources import oom_kill_count
from bench.run.script import add_to_result, program_variables, remark, settle, why_incomplete
from bench.run.telemetry import Telemetry
from common.atomic import storage_errors
from common.errors import SchemaError
from common.redact import without_secrets
from records.files import read_record, write_record
from records.run import TrialDirectory
from records.trial import Trial

# What a rank meets when another one has ended, as gloo, NCCL and the store of torch.distributed say it.
_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|gloo/transport|remote process exited|recvvalue", re.I
)
# The last line of a traceback, of a rank too; torchrun's own says only that one failed.
_RAISED = re.compile(
    r"(?:\[rank\d+\]: ?)?((?!.*ChildFailedError)(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)(?:: .*)?)$"
)
# Causes of a failure, the strongest first; of two of a kind, the earlier one makes the other ranks fail too.
_OOM, _REFUSED, _FAILED, _LOST = range(4)
_POLL_SECONDS = 0.05
# That a script has to end its step and itself, once it is asked to stop.
_STOP_SECONDS = 10.0
# Of the log, in the reason of a crash.
_TAIL_LINES = 3
# By kind, else by device. Reading sensors costs a core some 2 ms: on a CPU-only machine that core is the trial's.
# Training lasts for days: its readings must not outgrow its checkpoints.
_SAMPLE_SECONDS = {"train": 2.0, "measure": 2.0, "cpu": 1.0, "cuda": 0.05}
_REPOSITORY = Path(__file__).resolve().parents[2]
# What torchrun tells a rank that is the only one. Its store may have any free port, since nobody else connects.
ALONE = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "MASTER_PORT"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"), "1"),
    "MASTER_ADDR": "127.0.0.1",
    AGENT_STORE_VARIABLE: "False",  # torchrun's store, where the harness itself runs in one, is not for this rank
}
# What a rank runs, after "python -u".
_WORKER = ("-m", "bench.run.worker")
# How torchrun ended, where it ran the ranks.
_ENDING = "torchrun.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """How trials are run; none of it changes what they do."""

    timeout_seconds: float | None = 900.0
    """A trial that takes longer is ended; None sets no limit."""
    price_per_hour: float | None = None
    """Price of all devices of a trial together, for the cost columns."""
    program: tuple[str, ...] = ()
    """Of kind measure: the command that runs, in the current folder, in place of ranks of our own."""
    leader: Leader | None = None
    """Of the world whose rank 0 this process is: each trial then joins it. None starts a world for the trial."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the ranks."""
    look: Callable[[Trial, TrialDirectory], None] = lambda trial, directory: None
    """Called some twenty times a second while a trial runs, and once after its end."""
    stop_wanted: Callable[[], bool] = lambda: False
    """Whether the ranks of a training are to save and end."""
    stopped_by: Callable[[], str] = lambda: ""
    """What asks a program to end with the steps that it has made, such as SIGINT; "" while nothing does."""


def run_trial(
    trial: Trial,
    directory: TrialDirectory,
    devices: Devices,
    environment: Mapping[str, Any],
    options: LaunchOptions,
) -> dict[str, Any]:
    """Run `trial` to its end, write its result.json and return it; whatever happens to the ranks is a row.

    An interrupt ends the ranks, keeps what they recorded under status "interrupted", and is raised again.
    """
    with storage_errors(directory.path):
        (directory.profile if trial.profiler else directory.path).mkdir(parents=True, exist_ok=True)
    write_record(directory.trial_json, trial.to_json())
    local_world_size = options.leader.world.local_world_size if options.leader else trial.world_size
    used = devices.gpus if options.program else devices.gpus[:local_world_size]
    interval = _SAMPLE_SECONDS.get(trial.kind) or _SAMPLE_SECONDS[trial.device]
    oom_kills, began = oom_kill_count(), time.perf_counter()
    with Telemetry(directory.telemetry_csv(0), [gpu.uuid for gpu in used if gpu.uuid], interval) as telemetry:
        described = {**environment, "load_average": os.getloadavg(), "telemetry_unavailable": telemetry.unavailable}
        write_record(directory.env_json, described)
        argv, variables, folder = _command(trial, directory, devices, options)
        with storage_errors(directory.log):
            log = directory.log.open("wb")
        with log:
            held = STOP_SIGNALS if trial.kind == "train" else ()
            child = start_guarded(argv, log, held, env=variables, cwd=folder)
        try:
            timed_out = _wait(child, trial, directory, telemetry, options)
        except BaseException as error:
            end_guarded(child)
            if isinstance(error, KeyboardInterrupt):
                status, reason, code = "interrupted", "interrupted by Ctrl-C or SIGTERM", ""
                if options.leader and _reports(directory):  # torchrun ended this rank because another one failed
                    status, reason, code = outcome(trial, directory, options, child.returncode, False, False)
                finish(trial, directory, status, reason, options, code=code)
            raise
    wall_seconds = time.perf_counter() - began
    shutil.rmtree(directory.path / "torchrun", ignore_errors=True)  # its folders for error files
    options.look(trial, directory)
    write_record(directory.env_json, described)  # with the sensors that failed meanwhile
    if options.program:
        trial, directory = settle(trial, directory)
    killed = oom_kill_count() > oom_kills
    status, reason, code = outcome(trial, directory, options, child.returncode, timed_out, killed)
    result = finish(trial, directory, status, reason, options, wall_seconds, code)
    return add_to_result(trial, directory, result, child.returncode) if options.program else result


def _command(
    trial: Trial, directory: TrialDirectory, devices: Devices, options: LaunchOptions
) -> tuple[Sequence[str], dict[str, str], Path | None]:
    """Return what runs the ranks of this node, perhaps under a profiler, its environment, and its folder if another."""
    if options.program:
        return options.program, {**os.environ, **program_variables(trial, directory), **options.variables}, None
    leader = options.leader
    threads = trial.threads_per_rank or (
        leader.world.threads(devices.cpu_cores) if leader else max(1, devices.cpu_cores // trial.ranks)
    )
    variables = {
        **os.environ,
        **(leader.begin(directory, trial) if leader else devices.environment(trial.world_size)),
        **rank_variables(threads, options.timeout_seconds),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
        **own_variables(trial.implementation),
        **options.variables,
    }
    argv = [*_WORKER, str(directory.path)]
    if leader or trial.ranks == 1:  # without torchrun, whose import of torch takes as long as the rank's
        argv = [sys.executable, "-u", *argv]
        variables |= {} if leader else ALONE
    else:
        words = [*torchrun.ONE_NODE, f"--nproc-per-node={trial.ranks}", *argv]
        argv = torchrun.command(words, directory.path / _ENDING)
    if trial.profiler is None:
        return argv, variables, _REPOSITORY
    profiler = load_profiler(trial.profiler, trial.profiler_options)
    wrapped = profiler.wrap(argv, trial, directory.profile)
    variables |= profiler.ENVIRONMENT
    # Tools write the environment into their reports.
    return wrapped, variables if wrapped == argv else without_secrets(variables), _REPOSITORY


def _wait(
    child: "subprocess.Popen[bytes]",
    trial: Trial,
    directory: TrialDirectory,
    telemetry: Telemetry,
    options: LaunchOptions,
) -> bool:
    """Sample sensors until the trial ends; end it at its time limit. Return whether it had reached that."""
    deadline, stopping, timed_out = time.monotonic() + (options.timeout_seconds or math.inf), False, False
    signalled: set[int] = set()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_POLL_SECONDS)
            return timed_out
        options.look(trial, directory)
        telemetry.sample(child.pid)
        if len(signalled) < trial.ranks and options.stop_wanted():
            ranks = _ranks(child.pid) - signalled
            send(ranks, signal.SIGTERM)
            signalled |= ranks
        now = time.monotonic()
        if options.program and not stopping and (now >= deadline or options.stopped_by()):
            (directory.path / NOTES / STOP).touch()
            stopping, timed_out = True, now >= deadline
            deadline = now + (_STOP_SECONDS if directory.ranks() else 0.0)
        elif now >= deadline:
            if not stopping:
                send(_ranks(child.pid), signal.SIGUSR1)  # they write where they hang into the log (faulthandler)
                time.sleep(0.5)
            end_guarded(child)
            return timed_out or not stopping


def _ranks(guard: int) -> set[int]:
    """Return the processes that run a rank; launchers and tools would not survive every signal."""
    import psutil

    ranks = set()
    for pid in descendants(guard):
        with contextlib.suppress(psutil.Error):
            if tuple(psutil.Process(pid).cmdline()[1:4]) == ("-u", *_WORKER):
                ranks.add(pid)
    return ranks


def outcome(
    trial: Trial, directory: TrialDirectory, options: LaunchOptions, exit_code: int, timed_out: bool, oom_killed: bool
) -> tuple[str, str, str]:
    """Return status, reason and the reason's code of a trial whose processes have ended.

    The cause of a failure is what a rank reports about memory or a refusal, else the first rank that failed; a rank
    that only lost its peer counts where there is nothing else.
    """
    stopped_by = options.stopped_by() or ("the time limit" if timed_out and options.program else "")
    if options.program and (stopped_by or exit_code == 0):
        problem, ended = why_incomplete(trial, directory), f"stopped by {stopped_by}" if stopped_by else ""
        if not problem or not timed_out:
            reason = "; ".join(filter(None, [ended, problem or remark(directory)]))
            status = "ok" if not problem else "interrupted" if ended else "refused"
            return status, reason, "run-incomplete" if problem else ""
    causes = _reports(directory)
    steps = {rank: len(directory.read_steps(rank)) for rank in directory.ranks()}
    if trial.profiler and not options.program and not causes and len(directory.read_ranks()) == trial.ranks:
        return "ok", "", ""  # what the tool does after the ranks is not part of the measurement
    if timed_out:
        reached = ", ".join(f"rank {rank} made {count} steps" for rank, count in steps.items()) or "no step recorded"
        reason = f"timeout after {options.timeout_seconds:g} s ({reached}): see log.txt, or raise --timeout-seconds"
        return "timeout", reason, "rank-failed"
    if exit_code:
        causes.append(_exit(trial, directory, options, exit_code, oom_killed))
    if not causes:
        return "ok", "", ""
    kind, _, status, reason, code = min(causes)
    if kind == _LOST and options.leader:
        reason = "lost the connection to another rank, which the launcher names"
    if options.program:
        reason = f"the command failed after {min(steps.values(), default=0)} steps: {reason}"
    return status, reason, code


_Cause = tuple[int, float, str, str, str]
"""Kind, Unix time, status, reason and code."""


def _reports(directory: TrialDirectory) -> list[_Cause]:
    """Return what ranks wrote down before they ended."""
    causes = []
    for path in directory.path.glob("failure-*.json"):
        with contextlib.suppress(SchemaError):
            report = read_record(path)
            status, reason = report["status"], report["reason"]
            kind = {"oom": _OOM, "crashed": _LOST if _LOST_PEER.search(reason) else _FAILED}.get(status, _REFUSED)
            if status != "refused" and not re.match(r"rank \d+:", reason):  # what another rank met says so itself
                reason = f"rank {path.stem.rpartition('-')[2]}: {reason}"
            code = "out-of-memory" if status == "oom" else report.get("code", "rank-failed")
            causes.append((kind, float(report["time"]), status, reason, code))
    return causes


def _exit(trial: Trial, directory: TrialDirectory, options: LaunchOptions, exit_code: int, oom_killed: bool) -> _Cause:
    """Return how the process that failed first ended, whether or not it wrote something down."""
    if (path := directory.path / _ENDING).exists():
        ending = msgspec.json.decode(path.read_bytes(), type=torchrun.Ending)
        text, when, killed = ending.text, ending.time, ending.kind == torchrun.KILLED
    else:
        one_rank = exit_code > 0 and (trial.ranks == 1 or options.leader is not None)
        who = "it" if options.program else "rank 0" if one_rank else "the launcher"
        text = f"{who} {end_in_words(exit_code)}"
        by_signal = not 0 < exit_code <= 128
        when, killed = math.inf, by_signal and exit_code not in (-signal.SIGTERM, 128 + signal.SIGTERM)
    if killed and oom_killed:
        return _FAILED, when, "oom", f"{text}: the machine or cgroup is out of memory", "out-of-memory"
    lines = [line.strip() for line in directory.log.read_text(errors="replace").splitlines() if line.strip(" =-")]
    raised = [match[1] for match in map(_RAISED.match, lines if options.program else ()) if match]
    own = [one for one in raised if not _LOST_PEER.search(one)] or raised
    end = own[-1:] or lines[-_TAIL_LINES:]
    text += f"; log.txt {'has' if own else 'ends'}: {' | '.join(end)[-500:] or '(empty)'}"
    return _FAILED if killed else _LOST, when, "crashed", text, "rank-failed"


def finish(
    trial: Trial,
    directory: TrialDirectory,
    status: str,
    reason: str,
    options: LaunchOptions,
    wall_seconds: float | None = None,
    code: str = "",
) -> dict[str, Any]:
    """Compute what the records of a trial allow, write result.json and return it; `code` of a failure, where known."""
    result = {
        "trial_id": trial.trial_id,
        "status": status,
        "reason": reason,
        **({"code": code} if code else {}),
        "wall_seconds": wall_seconds,
        "timeout_seconds": options.timeout_seconds,
        **(summarize_trial(trial, directory, options.price_per_hour) if status == "ok" else {}),
    }
    if trial.kind == "train":
        result["outcome"] = end = directory.read_ranks().get(0, {}).get("outcome")
        if status == "ok" and end is not None and not end["finished"]:
            result["reason"] = f"stopped on request after step {end['applied_steps']} of {end['total_steps']}"
    write_record(directory.result_json, result)
    return result
