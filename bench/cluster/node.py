"""A launch on one node: agree with the other nodes, start torchrun, watch both, and report the result."""

import contextlib
import errno
import hashlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from bench.cluster import BACKEND, GRACE_SECONDS, LISTENER_VARIABLE, RESTARTS_FILE, STOPPING_VARIABLE
from bench.cluster.layout import Layout
from bench.cluster.meeting import Agreement, Hub, Spoke
from bench.cluster.rank import CPUS_VARIABLE, PYTHONPATH_VARIABLE, QUIET_VARIABLE
from bench.cluster.statements import Failure, Report, Statement, Stop, Verdict, restart_in_words
from bench.machine.devices import Devices, core_groups, shares_of_cores
from bench.machine.environment import bounded_spin
from bench.machine.gpu_load import near_cpus
from bench.run.processes import PARENT_VARIABLE, STOP_VARIABLE, StopRequest, end_tree, own_folder, send
from common.atomic import write_text
from common.errors import SchemaError, UsageError
from common.redact import redact_text
from records.files import read_record

_POLL_SECONDS = 0.1
_COMMAND_CHARACTERS = 300
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The job of this node."""

    layout: Layout
    """Processes per node."""
    address: str
    """Address of node 0."""
    port: int
    """Port of node 0 for the launches; on one node, port of the ranks, where 0 means any free port."""
    command: tuple[str, ...]
    """The command line of a rank."""
    given: tuple[str, ...]
    """The command as given, identical on all nodes."""
    own_program: bool
    """Whether the command belongs to the suite."""
    join_timeout: float
    """Seconds for all nodes to join."""
    max_restarts: int
    """Number of restarts of all processes after failures."""


def launch_node(job: Job, devices: Devices, stop: StopRequest, told: Callable[[str], None]) -> Verdict:
    """Run the processes of this node until the whole launch ends.

    Args:
        job: the job to run.
        devices: GPUs of this node in the order of its ranks; none on a CPU.
        stop: stop request, obeyed once all nodes agree.
        told: called with a text for each event.
    """
    layout = job.layout
    own = Statement(
        node_rank=layout.node_rank,
        counts=layout.counts,
        max_restarts=job.max_restarts,
        host=socket.gethostname(),
        process=os.getpid(),
        device=devices.kind,
        command=_shortened(redact_text(shlex.join(job.given))),
        command_hash=hashlib.sha256("\0".join(job.given).encode(errors="surrogateescape")).hexdigest()[:16],
    )
    with contextlib.ExitStack() as stack:
        store: socket.socket | None = None
        link: Hub | Spoke
        if layout.node_rank == 0:
            several = len(layout.counts) > 1
            where = _bindable(job.address, several)
            listener = stack.enter_context(listen(where, job.port)) if several else None
            store = stack.enter_context(listen(where, 0 if several else job.port))
            link = Hub(listener, own, int(store.getsockname()[1]))
        else:
            link = Spoke(job.address, job.port, own)
        stack.callback(link.close)
        agreement = link.agree(job.join_timeout, told)
        folder = stack.enter_context(own_folder("bertbench-launch-"))
        stack.enter_context(stop)
        child = _start(job, devices, agreement, store, link.own_address, folder)
        return _Watch(child, link, stop, own, agreement.nodes, folder, told).to_end()


def _shortened(text: str) -> str:
    return text if len(text) <= _COMMAND_CHARACTERS else f"{text[:_COMMAND_CHARACTERS]}..."


def _bindable(address: str, several: bool) -> str:
    """Return the address on which node 0 listens: its own, or all if its name resolves to loopback."""
    try:
        literal = ip_address(address).is_loopback
    except ValueError:
        literal = address == "localhost"
    if not several or literal:
        return address
    with contextlib.suppress(OSError, ValueError):
        if ip_address(socket.gethostbyname(address)).is_loopback:
            return "0.0.0.0"  # noqa: S104 # nosec B104 # other nodes connect to an address unknown here
    return address


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of this node; port 0 takes any free port."""
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            "option-value", f"--master-addr {address} cannot be resolved ({error}): give an address of node 0"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                "port-in-use",
                f"--master-port {port} is in use, perhaps by another job: give all nodes of this job --master-port "
                f"{_free_port(address, port)}, which is free here",
            ) from error
        raise UsageError(
            "option-value",
            f"cannot listen on {address}:{port} ({error.strerror}): --master-addr must be an address of node 0, which "
            "is this node; other nodes need --node-rank 1 or more",
        ) from error


def _free_port(address: str, taken: int) -> int:
    """Return the next free port above `taken`, or any free port."""
    family, _, _, _, place = socket.getaddrinfo(address, taken, type=socket.SOCK_STREAM)[0]
    for port in [*range(taken + 1, min(taken + 100, 65536)), 0]:
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((place[0], port, *place[2:]))
            return int(probe.getsockname()[1])
    return 0


def interface_of(address: str) -> str | None:
    """Return the network interface with an address, or None."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address.partition("%")[0] == address for found in addresses):
            return name
    return None


def cpus_of_ranks(devices: Devices, count: int) -> list[list[int]]:
    """Return the logical CPUs of each local rank: those near its GPU, or its share of the cores; empty for no binding.

    Ranks whose GPUs are near the same CPUs share them.
    """
    if devices.kind == "cpu":
        return shares_of_cores(count)
    usable = {cpu for group in core_groups() for cpu in group}
    return [sorted(usable.intersection(near_cpus(gpu))) for gpu in devices.gpus[:count]]


def _start(
    job: Job,
    devices: Devices,
    agreement: Agreement,
    store: socket.socket | None,
    own_address: str | None,
    folder: Path,
) -> "subprocess.Popen[bytes]":
    layout = job.layout
    variables = {**os.environ, **_variables(job, devices, own_address, folder)}
    if store is not None:
        variables[LISTENER_VARIABLE] = str(store.fileno())
    torchrun = [
        f"--nproc-per-node={layout.here}",
        f"--nnodes={len(layout.counts)}",
        f"--rdzv-backend={BACKEND}",
        f"--rdzv-endpoint={job.address}:{agreement.store_port}",
        f"--rdzv-id={agreement.run_id}",
        f"--rdzv-conf=node_rank={layout.node_rank},max_restarts={job.max_restarts}",
        f"--max-restarts={job.max_restarts}",
        "--monitor-interval=0.2",
        "--no-python",
        *(sys.executable, "-I", str(Path(__file__).with_name("rank.py"))),
        *job.command,
    ]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.cluster.agent", str(folder / "agent.json"), *torchrun],
        stdin=subprocess.DEVNULL,
        env=variables,
        pass_fds=() if store is None else (store.fileno(),),
        start_new_session=True,  # only the launch receives Ctrl-C; it forwards the signal
    )


def _variables(job: Job, devices: Devices, own_address: str | None, folder: Path) -> dict[str, str]:
    here, several = job.layout.here, len(job.layout.counts) > 1
    path = os.environ.get("PYTHONPATH")
    own_path = os.pathsep.join(filter(None, [str(_REPOSITORY), path]))
    variables = {
        "CUDA_VISIBLE_DEVICES": "",
        **({} if "TORCH_CPP_LOG_LEVEL" in os.environ else {"TORCH_CPP_LOG_LEVEL": "ERROR", QUIET_VARIABLE: "1"}),
        "PYTHONPATH": own_path,
        PYTHONPATH_VARIABLE: own_path if job.own_program else path or "",
        CPUS_VARIABLE: json.dumps(cpus_of_ranks(devices, here)),
        STOPPING_VARIABLE: str(folder / "stopping"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, devices.cpu_cores // here))),
        **bounded_spin(),
        # Seconds that torchrun waits for its ranks after a failure; its default is 30.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", f"{GRACE_SECONDS:.0f}"),
        STOP_VARIABLE: "1",
        PARENT_VARIABLE: str(os.getpid()),
    }
    if devices.kind == "cuda":
        variables |= devices.environment(here)
    # By default gloo uses the address of the host name, which is often loopback.
    interface = interface_of(own_address) if several and own_address else None
    if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        variables["GLOO_SOCKET_IFNAME"] = interface
    return variables


@dataclass(slots=True)
class _Watch:
    """Watches torchrun on this node and the other nodes until all have ended."""

    child: "subprocess.Popen[bytes]"
    link: Hub | Spoke
    stop: StopRequest
    own: Statement
    nodes: dict[int, Statement]
    folder: Path
    told: Callable[[str], None]
    asked: bool = False
    """Whether the other nodes were asked to stop because of `stop`."""
    shown: str = ""
    signalled: set[int] = field(default_factory=set)
    kill_at: float | None = None
    """Time by time.monotonic at which remaining processes are killed; None before a failure."""
    restarts: int = 0
    """Number of reported restarts."""

    def to_end(self) -> Verdict:
        """Return the result of the launch."""
        try:
            while self.child.poll() is None:
                self._look()
                time.sleep(_POLL_SECONDS)
        except BaseException:  # a second signal
            end_tree(self.child.pid)
            self.child.wait()
            self.link.report(Report(False, error="it was killed by a second signal"))
            self.link.look()
            raise
        self.link.report(_report(self.child.returncode, self.folder))
        while self.link.verdict is None:
            self.link.look()
            time.sleep(_POLL_SECONDS)
        return self.link.verdict

    def _look(self) -> None:
        self.link.look()
        self._tell_restarts()
        if self.stop.wanted() and not self.asked:
            self.asked = True
            self.link.ask(f"stopped by {self.stop.why()} on {self.own.name()}")
        if self.link.stop is not None:
            self._end_ranks(self.link.stop)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            end_tree(self.child.pid)

    def _end_ranks(self, stop: Stop) -> None:
        """Send SIGTERM once to each rank; after a failure kill the remaining ranks in GRACE_SECONDS."""
        if stop.why != self.shown:
            self.shown = stop.why
            self.told(f"{stop.why}: stopping the processes of this node")
            write_text(self.folder / "stopping", "" if stop.asked else stop.why)
        fresh = set(_ranks(self.child.pid)) - self.signalled
        send(sorted(fresh), signal.SIGTERM)
        self.signalled |= fresh
        if not stop.asked and self.kill_at is None:
            self.kill_at = time.monotonic() + GRACE_SECONDS

    def _tell_restarts(self) -> None:
        file = self.folder / RESTARTS_FILE
        if not file.exists():
            return
        lines = [line for line in file.read_text(encoding="ascii").splitlines(keepends=True) if line[-1] == "\n"]
        for line in lines[self.restarts :]:
            self.told(restart_in_words(line, self.nodes))
        self.restarts = len(lines)


def _ranks(agent: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(agent).children()]
    except psutil.NoSuchProcess:
        return []


def _report(exit_code: int, folder: Path) -> Report:
    try:
        found = read_record(folder / "agent.json")
    except SchemaError:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        return Report(False, error=f"torchrun ended with {how} before it reported its ranks")
    failures = tuple(Failure(one["rank"], one["exit_code"], float(one["time"])) for one in found["failures"])
    return Report(exit_code == 0, failures, found.get("error", ""))
