"""Two network namespaces of this machine, joined by a link, as two hosts (Debian's iproute2; needs root)."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.cli import ROOT

ADDRESSES = ("10.97.0.1", "10.97.0.2")


def lacking() -> str:
    """Return why there can be no namespaces here; nothing where there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (iproute2, util-linux)"
    probe = subprocess.run(["ip", "netns", "add", f"bb{os.getpid()}"], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"no network namespace can be made here: {probe.stderr.strip()}"
    _ip("netns", "del", f"bb{os.getpid()}")
    return ""


@dataclass
class Hosts:
    """Two hosts, node-a and node-b."""

    names: tuple[str, str]
    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def launch(self, host: int, *words: str, rank: int | None = None) -> "subprocess.Popen[str]":
        """Start `bertbench launch` on a host, as the node of its number or `rank`; its output goes to a file each."""
        options = ("--node-rank", str(host if rank is None else rank), "--master-addr", ADDRESSES[0])
        command = [sys.executable, "-m", "bench.cli.main", "launch", *options, *words]
        shell = 'hostname "$1"; shift; exec "$@"'
        argv = ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", shell, "sh"]
        with self._output(len(self.started)).open("w") as output:
            process = subprocess.Popen(
                [*argv, f"node-{'ab'[host]}", *command],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
                text=True,
            )
        self.started.append(process)
        return process

    def said(self, process: "subprocess.Popen[str]") -> str:
        """Return what a launch has said so far."""
        return self._output(self.started.index(process)).read_text()

    def _output(self, number: int) -> Path:
        return self.folder / f"launch-{number}.txt"

    def end(self, *processes: "subprocess.Popen[str]", seconds: float = 120) -> list[int]:
        """Wait for launches to end; return their exit codes."""
        deadline = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            raise AssertionError("\n--\n".join(self.said(process) for process in processes)) from None

    def cut(self) -> None:
        """Cut the link: nothing arrives any more, and nobody is told."""
        _ip("-n", self.names[1], "link", "set", "eth0", "down")


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Two hosts for as long as the block lasts; what was launched on them is then killed."""
    names = (f"bb{os.getpid()}a", f"bb{os.getpid()}b")
    hosts = Hosts(names, folder)
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield hosts
    finally:
        for process in hosts.started:
            process.kill()
            process.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
