"""A real Slurm on this machine: one controller, two nodes, two devices each that pass as GPUs."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")

_CONFIGURATION = """\
ClusterName=bertbench-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
KillWait=5
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8 RealMemory=2000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8 RealMemory=2000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_DEVICES = "NodeName=n[1-2] Name=gpu File=/dev/null\nNodeName=n[1-2] Name=gpu File=/dev/zero\n"


def why_not() -> str:
    """Why no Slurm can run here; empty where one can."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"Slurm is not installed here ({', '.join(absent)}): apt-get install slurm-wlm"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


class Slurm:
    """Commands of one cluster."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def run(self, *words: str, timeout: float = 60) -> str:
        """Run one of Slurm's commands and return what it says."""
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=timeout, check=True
        ).stdout

    def state(self, job: str) -> dict[str, str]:
        """What scontrol says of a job, the first of an array."""
        text = self.run("scontrol", "show", "job", job)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait(self, job: str, reached: Callable[[dict[str, str]], bool], seconds: float = 200) -> dict[str, str]:
        """Wait until a job has reached something and return its state."""
        deadline = time.monotonic() + seconds
        while not reached(state := self.state(job)):
            assert time.monotonic() < deadline, state
            time.sleep(0.5)
        return state

    def ended(self, job: str, seconds: float = 200) -> dict[str, str]:
        """Wait for the end of a job and return its state."""
        ends = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
        return self.wait(job, lambda state: state["JobState"] in ends, seconds)

    def idle_nodes(self) -> int:
        """Count the nodes that run nothing; 0 before the controller answers."""
        words = ["sinfo", "--noheader", "--Node", "--format=%t"]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.split().count("idle")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Start a cluster with all its files in `folder`; nothing of it is left afterwards."""
    controller, first, second = free_ports(3)
    host = socket.gethostname().partition(".")[0]
    (folder / "state").mkdir(parents=True)
    text = _CONFIGURATION.format(host=host, controller=controller, first=first, second=second, folder=folder)
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    (folder / "gres.conf").write_text(_DEVICES, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    slurm = Slurm({**kept, "SLURM_CONF": str(folder / "slurm.conf")})
    daemons = []
    try:
        for words in (["slurmctld", "-c", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
            log = (folder / f"{words[0]}-{words[-1]}.out").open("wb")
            daemons.append(
                subprocess.Popen(words, env=slurm.environment, stdout=log, stderr=log, start_new_session=True)
            )
            log.close()
            time.sleep(1)
        deadline = time.monotonic() + 60
        while slurm.idle_nodes() < 2:
            assert time.monotonic() < deadline, (folder / "controller.log").read_text(encoding="utf-8")
            time.sleep(0.5)
        yield slurm
        subprocess.run(["scancel", "--user=root"], env=slurm.environment, timeout=60, check=False)
        deadline = time.monotonic() + 30
        while slurm.run("squeue", "--noheader").strip() and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
