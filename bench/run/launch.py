"""One trial in a child process: started, watched, ended, and its outcome written down."""

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from analysis.load import summarize_trial
from bench.implementations.own import own_variables
from bench.launch.world import World
from bench.machine.devices import Devices
from bench.machine.environment import bounded_spin
from bench.run.processes import (
    HARNESS_VARIABLE,
    MARK_VARIABLE,
    PARENT_VARIABLE,
    STOP_VARIABLE,
    TRIAL_FOLDER,
    clear_stale,
    death_in_words,
    descendants,
    end_marked,
    end_tree,
    ranks_of,
    send,
    stopped_ranks,
)
from bench.run.resources import allocator_environment, oom_kill_count, under_memory_limit
from bench.run.script import NOTHING_STEPPED, add_to_result, settle, start_program, why_incomplete
from bench.run.telemetry import Telemetry, telemetry_writer
from bert.parallel import JOIN_TIMEOUT_VARIABLE
from common.atomic import storage_errors
from common.errors import SchemaError, UsageError
from common.redact import without_secrets
from records.files import read_record, write_record
from records.kinds import read_measurements
from records.run import TrialDirectory
from records.trial import Trial

# What a rank meets when another one has ended, as gloo, NCCL and the store of torch.distributed say it.
_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|gloo/transport|remote process exited|recvvalue", re.I
)


def lost_peer(reason: str) -> bool:
    """Whether a rank that failed for this reason only lost another one, which had ended before."""
    return bool(_LOST_PEER.search(reason))


_AGENT_JSON = "agent.json"
_POLL_SECONDS = 0.05
# Of the log, in the reason of a crash.
_TAIL_LINES = 3
# Reading sensors costs a core some 2 ms: on a CPU-only machine that core is the trial's.
_SAMPLE_SECONDS = {"cpu": 1.0, "cuda": 0.05}
# Training lasts for days: its readings must not outgrow its checkpoints.
_SAMPLE_SECONDS_OF_TRAINING = 2.0
# Without a limit on a trial, how long a rank waits for the others, such as for one that writes a checkpoint.
_LONGEST_WAIT_SECONDS = 3600
# A profiler's own processes may end a little after its command.
_TOOL_GRACE_SECONDS = 5.0
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """How trials are run; none of it changes what they do."""

    timeout_seconds: float | None = 900.0
    """A trial that takes longer is ended; None sets no limit."""
    price_per_hour: float | None = None
    """Price of all devices of a trial together, for the cost columns."""
    program: tuple[str, ...] = ()
    """Of kind measure: the command that runs, in the current folder, in place of ranks of our own."""
    world: World | None = None
    """The world whose rank 0 this process is: the trial then joins it as that rank. None starts one for the trial."""
    begun: Callable[[TrialDirectory], None] | None = None
    """Called with the trial's folder once its rank 0 has been started, for the other ranks of `world`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of the ranks."""
    look: Callable[[Trial, TrialDirectory], None] | None = None
    """Called some twenty times a second while a trial runs, to show how far it is."""

    def __post_init__(self) -> None:
        """Refuse limits and prices that mean nothing."""
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds < math.inf:
            raise UsageError("option-value", f"--timeout-seconds {self.timeout_seconds} must be above 0 and finite")
        if self.price_per_hour is not None and not 0 < self.price_per_hour < math.inf:
            raise UsageError("option-value", f"--price-per-hour {self.price_per_hour} must be above 0")


class Watcher(Protocol):
    """Looks after a trial while it runs, from the harness."""

    def begin(self, directory: TrialDirectory) -> None:
        """Called when the trial's folder is there, before its ranks start."""

    def look(self) -> None:
        """Do what is to be done now and then; called some twenty times a second, and once after the end."""

    def stop_wanted(self) -> bool:
        """Whether the ranks of a training are to save and end."""


def run_trial(
    trial: Trial,
    directory: TrialDirectory,
    devices: Devices,
    environment: Mapping[str, Any],
    options: LaunchOptions,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Run `trial` to its end, write its result.json and return it.

    Whatever happens to the ranks stays in the child: it ends as a status and a reason. An interrupt ends the child,
    keeps what it had recorded under status "interrupted", and is raised again.
    """
    with storage_errors(directory.path):
        (directory.profile if trial.profiler else directory.path).mkdir(parents=True, exist_ok=True)
    write_record(directory.trial_json, trial.to_json())
    local_world_size = trial.world_size if options.world is None else options.world.local_world_size
    used = devices.gpus if options.program else devices.gpus[:local_world_size]
    telemetry = Telemetry([gpu.uuid for gpu in used if gpu.uuid])
    described = {**environment, "load_average": list(os.getloadavg())}
    write_record(directory.env_json, {**described, "telemetry_unavailable": telemetry.unavailable})
    oom_kills = oom_kill_count()
    if watcher is not None:
        watcher.begin(directory)
    began = time.perf_counter()
    stopped: list[int] | None = None
    mark = uuid.uuid4().hex
    with storage_errors(directory.log):
        log = directory.log.open("w", encoding="utf-8")
    with log:
        child = _start(trial, directory, devices, options, log.fileno(), mark)
        try:
            if options.begun is not None:
                options.begun(directory)
            stopped = _wait(child, trial, directory, telemetry, options, watcher)
            if trial.profiler is not None or options.program:
                end_marked(mark, grace_seconds=_TOOL_GRACE_SECONDS)
            elif child.returncode:  # ranks end a moment after an agent that was killed
                end_marked(mark)
        except BaseException:
            end_tree(child.pid)
            end_marked(mark)
            child.wait()
            if isinstance(sys.exc_info()[1], KeyboardInterrupt):
                what = {"train": "training", "measure": "measurement"}.get(trial.kind, "sweep")
                finish(trial, directory, "interrupted", f"the {what} was interrupted", options)
            raise
        finally:
            clear_stale(TRIAL_FOLDER)  # of processes that were killed
    wall_seconds = time.perf_counter() - began
    if options.world is not None and child.returncode:  # what an agent would have written
        failure = {"rank": 0, "exit_code": child.returncode, "time": time.time()}
        write_record(directory.path / _AGENT_JSON, {"failures": [failure]})
    if watcher is not None:
        watcher.look()
    write_record(directory.env_json, {**described, "telemetry_unavailable": telemetry.unavailable})
    if options.program:
        trial, directory = settle(trial, directory)
    killed = oom_kill_count() > oom_kills
    status, reason, code = _ending(trial, directory, options, child.returncode, stopped, killed)
    result = finish(trial, directory, status, reason, options, wall_seconds, code)
    return add_to_result(trial, directory, result, child.returncode) if options.program else result


def _ending(
    trial: Trial,
    directory: TrialDirectory,
    options: LaunchOptions,
    exit_code: int | None,
    stopped: list[int] | None,
    oom_killed: bool,
) -> tuple[str, str, str]:
    if trial.profiler is not None and _ranks_ended_well(directory):
        # What the tool did after that is its own affair: what the ranks measured stands.
        return "ok", "", ""
    if stopped is not None:
        return "timeout", _timeout_reason(directory, options, stopped), "rank-failed"
    if options.program:
        return _outcome_of_program(trial, directory, exit_code or 0, oom_killed)
    return _outcome(directory, exit_code, oom_killed, joined=options.world is not None)


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
    metrics = summarize_trial(trial, directory, options.price_per_hour) if status == "ok" else {}
    result = {
        "trial_id": trial.trial_id,
        "status": status,
        "reason": reason,
        **({"code": code} if code else {}),
        "wall_seconds": wall_seconds,
        "timeout_seconds": options.timeout_seconds,
        **metrics,
    }
    if trial.kind == "train":
        result["outcome"] = told = directory.read_ranks().get(0, {}).get("outcome")
        if status == "ok" and told is not None and not told["finished"]:
            result["reason"] = f"stopped on request after step {told['applied_steps']} of {told['total_steps']}"
    write_record(directory.result_json, result)
    return result


def _start(
    trial: Trial, directory: TrialDirectory, devices: Devices, options: LaunchOptions, output: int, mark: str
) -> "subprocess.Popen[bytes]":
    world = options.world
    if options.program:
        return start_program(options.program, trial, directory, output, mark)
    threads = trial.threads_per_rank or (
        max(1, devices.cpu_cores // trial.ranks) if world is None else world.threads(devices.cpu_cores)
    )
    variables = {
        **os.environ,
        **(devices.environment(trial.world_size) if world is None else {}),
        **rank_variables(threads, options.timeout_seconds),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
        **allocator_environment(trial.allocator, trial.device),
        **own_variables(trial.implementation),
        **options.variables,
    }
    rank = ["-m", "bench.run.worker", str(directory.path)]
    agent = ["-m", "bench.run.agent", str(directory.path / _AGENT_JSON), str(trial.ranks)] if world is None else []
    argv = ranks = [sys.executable, *agent, *rank]
    if trial.profiler is not None:
        from bench.profilers import load_profiler
        from bench.profilers.base import Scope

        profiler = load_profiler(trial.profiler, trial.profiler_options)
        scope = Scope(trial=trial, directory=directory.profile)
        variables |= profiler.environment(scope)
        argv = profiler.wrap(ranks, scope)
    variables = {name: value for name, value in variables.items() if name not in (PARENT_VARIABLE, STOP_VARIABLE)}
    if trial.kind == "train":
        variables[STOP_VARIABLE] = "1"
    variables |= {MARK_VARIABLE: mark, HARNESS_VARIABLE: str(os.getpid())}
    if argv is ranks:
        variables[PARENT_VARIABLE] = str(os.getpid())
    else:  # the agent's parent is the tool, which a process between it and the harness watches
        variables = without_secrets(variables)  # tools write the environment into their reports
        argv = [sys.executable, "-m", "bench.run.processes", *argv]
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=variables,
        cwd=_REPOSITORY,
        start_new_session=True,  # Ctrl-C in the terminal reaches the harness alone, which ends the child itself
    )


def rank_variables(threads: int, timeout_seconds: float | None) -> dict[str, str]:
    """Return the environment variables of every rank, however it is started."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **bounded_spin(),
        # The launcher's limit decides what a hang is, not the process group's own, which would look like a crash.
        JOIN_TIMEOUT_VARIABLE: str(int(timeout_seconds or _LONGEST_WAIT_SECONDS) + 60),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _wait(
    child: "subprocess.Popen[bytes]",
    trial: Trial,
    directory: TrialDirectory,
    telemetry: Telemetry,
    options: LaunchOptions,
    watcher: Watcher | None,
) -> list[int] | None:
    """Sample sensors until the child ends; where its time ran out, end it and return the ranks that were stopped."""
    deadline = time.monotonic() + (options.timeout_seconds or math.inf)
    next_sample = next_census = time.monotonic()
    endless = trial.kind in ("train", "measure")
    interval = _SAMPLE_SECONDS_OF_TRAINING if endless else _SAMPLE_SECONDS[trial.device]
    members: list[int] = []
    told: set[int] = set()
    with telemetry_writer(directory.telemetry_csv(0)) as writer:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.001, min(_POLL_SECONDS, next_sample - time.monotonic())))
                return None
            now = time.monotonic()
            if options.look is not None:
                options.look(trial, directory)
            if watcher is not None:
                watcher.look()
                if len(told) < trial.ranks and watcher.stop_wanted():
                    fresh = set(ranks_of([child.pid, *descendants(child.pid)])) - told
                    send(sorted(fresh), signal.SIGTERM)
                    told |= fresh
            if now >= deadline:
                # The ranks write where they hang into the log (faulthandler) before they are killed.
                ranks = ranks_of([child.pid, *descendants(child.pid)])
                stopped = stopped_ranks(ranks)
                send(ranks, signal.SIGUSR1)
                time.sleep(0.5)
                end_tree(child.pid)
                child.wait()
                return stopped
            if now >= next_census:  # walks all of /proc
                members = [child.pid, *descendants(child.pid)]
                next_census = now + 1.0
            if now >= next_sample:
                telemetry.sample(writer, members)
                # Keeps the interval; missed samples are skipped.
                next_sample = max(next_sample, now - interval) + interval


def _timeout_reason(directory: TrialDirectory, options: LaunchOptions, stopped: list[int]) -> str:
    sizes = {row["size_bytes"] for row in read_measurements(directory)}
    reached = [f"{len(sizes)} sizes were measured"] if sizes else []
    reached += [f"rank {rank} made {len(directory.read_steps(rank))} steps" for rank in directory.ranks()]
    reached += [f"rank {rank} is stopped, by SIGSTOP or a debugger, and the others wait for it" for rank in stopped]
    nothing = NOTHING_STEPPED if options.program else "no rank had started"
    stacks = "" if options.program else "log.txt has the stacks of the ranks; "
    return (
        f"timeout after {options.timeout_seconds:g} s ({', '.join(reached) or nothing}); "
        f"{stacks}--timeout-seconds raises the limit"
    )


def _outcome_of_program(
    trial: Trial, directory: TrialDirectory, exit_code: int, oom_killed: bool
) -> tuple[str, str, str]:
    """Return status, reason and the reason's code of a command that is not ours, from its exit code and its records.

    A process that steps writes down the exception that ends it.
    """
    if exit_code == 0:
        why = why_incomplete(trial, directory)
        return ("refused", why, "run-incomplete") if why else ("ok", "", "")
    made = min((len(directory.read_steps(rank)) for rank in directory.ranks()), default=0)
    after = f"after {made} steps" if made else f"({NOTHING_STEPPED})"
    number = exit_code - 128 if exit_code > 128 else 0  # as a shell, and bench.run.processes, report a signal
    explained = sorted(_failures(directory), key=lambda failure: float(failure["time"]))
    if explained:
        first = next((failure for failure in explained if failure["status"] == "oom"), explained[0])
        code = "out-of-memory" if first["status"] == "oom" else "rank-failed"
        return str(first["status"]), f"the command failed {after}: {_said(first)}", code
    if number == signal.SIGKILL and oom_killed:
        said = f"the command was killed by the kernel {after}: the machine or cgroup is out of memory"
        return "oom", said, "out-of-memory"
    how = death_in_words(number) if number else f"ended with exit code {exit_code}"
    return "crashed", f"the command {how} {after}{_log_tail(directory)}", "rank-failed"


def _outcome(
    directory: TrialDirectory, exit_code: int | None, oom_killed: bool, joined: bool = False
) -> tuple[str, str, str]:
    """Return status, reason and the reason's code, from what the ranks and the agent wrote down.

    One rank's end makes the others fail too: what a rank reports about memory or a refusal is the cause; else a rank
    that a signal ended (not the agent's own SIGTERM); else whichever failed first.
    """
    explained = sorted(_failures(directory), key=lambda failure: float(failure["time"]))
    for failure in sorted(explained, key=lambda failure: failure["status"] != "oom"):
        if failure["status"] != "crashed":
            code = "out-of-memory" if failure["status"] == "oom" else str(failure["code"])
            return str(failure["status"]), _said(failure), code
    failed = sorted(_agent_failures(directory), key=lambda failure: float(failure["time"]))
    for failure in failed:
        number = -int(failure["exit_code"])
        if number > 0 and number != signal.SIGTERM:
            if number == signal.SIGKILL and oom_killed:
                said = f"rank {failure['rank']} was killed by the kernel: the machine or cgroup is out of memory"
                return "oom", said, "out-of-memory"
            how = death_in_words(number) + ("" if number == signal.SIGKILL else under_memory_limit())
            return "crashed", f"rank {failure['rank']} {how}{_log_tail(directory)}", "rank-failed"
    if explained and joined and all(lost_peer(str(failure["reason"])) for failure in explained):
        return "crashed", "lost the connection to another rank, which the launcher names", "rank-failed"
    if explained:
        return "crashed", _said(explained[0]), str(explained[0]["code"])
    if exit_code == 0:
        return "ok", "", ""
    if failed:
        said = "rank {rank} ended with exit code {exit_code}".format(**failed[0])
        return "crashed", said + under_memory_limit() + _log_tail(directory), "rank-failed"
    how = death_in_words(-exit_code) if exit_code and exit_code < 0 else f"ended with exit code {exit_code}"
    return "crashed", f"the launcher {how}{_log_tail(directory)}", "rank-failed"


def _said(failure: Mapping[str, Any]) -> str:
    reason = str(failure["reason"])
    # What another rank met says so itself.
    told = failure["status"] == "refused" or re.match(r"rank \d+:", reason)
    return reason if told else f"rank {failure['rank']}: {reason}"


def _failures(directory: TrialDirectory) -> list[dict[str, Any]]:
    found = []
    for path in sorted(directory.path.glob("failure-*.json")):
        with contextlib.suppress(SchemaError):
            found.append({"code": "rank-failed", **read_record(path), "rank": path.stem.rsplit("-", 1)[1]})
    return found


def _agent_failures(directory: TrialDirectory) -> list[dict[str, Any]]:
    try:
        return list(read_record(directory.path / _AGENT_JSON)["failures"])
    except SchemaError:
        return []


def _ranks_ended_well(directory: TrialDirectory) -> bool:
    try:
        return not read_record(directory.path / _AGENT_JSON)["failures"]
    except SchemaError:
        return False


def _log_tail(directory: TrialDirectory) -> str:
    text = directory.log.read_text(encoding="utf-8", errors="replace")
    useful = [line.strip() for line in text.splitlines() if line.strip() and not set(line.strip()) <= set("=-")]
    return "; log.txt ends: " + (" | ".join(useful[-_TAIL_LINES:])[-500:] or "(empty)")
