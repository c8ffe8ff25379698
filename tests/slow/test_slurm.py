"""Written batch scripts, in a real Slurm of two nodes on this machine."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench.submit.job import CLUSTERS, ClusterJob, render

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


pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a Slurm"),
    pytest.mark.timeout(600),
]

# Sums ones over the world, writes who it is, and then waits for SIGTERM, where "wait" is given.
RANK = """
import json, os, pathlib, signal, sys, time
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
facts = {"rank": dist.get_rank(), "world": dist.get_world_size(), "sum": ones.item(), "words": sys.argv[3:]}
facts |= {"node": os.environ["SLURMD_NODENAME"], "local_rank": os.environ["LOCAL_RANK"]}
facts["variable"] = os.environ.get("HOSTILE")
folder = pathlib.Path(sys.argv[1])
(folder / f"rank-{facts['rank']}.json").write_text(json.dumps(facts))
while sys.argv[2] == "wait" and not signals:
    time.sleep(0.1)
if signals:
    dist.barrier()
    (folder / f"saved-{facts['rank']}").write_text("saved")
os._exit(0)
"""
# Saves when SIGTERM comes.
SAVER = """
import os, pathlib, signal, sys, time
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
while not signals:
    time.sleep(0.1)
pathlib.Path(sys.argv[1]).write_text(os.environ["SLURM_JOB_ID"])
"""
HOSTILE = "a 'b' \"c\" $(touch evil) `touch evil` \\ *\n#SBATCH --nodes=9\n:"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def submit(slurm: Slurm, folder: Path, job: ClusterJob, *command: str, options: tuple[str, ...] = ()) -> str:
    """Write a script and the programs that it may run into a folder, submit it there, return the job's number."""
    (folder / "rank.py").write_text(RANK, encoding="utf-8")
    (folder / "saver.py").write_text(SAVER, encoding="utf-8")
    script = folder / "job.sbatch"
    script.write_text(render(job, command), encoding="utf-8")
    slurm.run(*CLUSTERS["slurm"].check.split(), str(script))
    return slurm.run("sbatch", "--parsable", f"--chdir={folder}", *options, str(script)).strip()


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.out")))


def ranks(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("rank-*.json"))]


def await_files(folder: Path, pattern: str, count: int, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, logs(folder)
        time.sleep(0.5)


def test_two_nodes_join_and_save_before_the_time_limit(slurm: Slurm, tmp_path: Path) -> None:
    job = ClusterJob(cluster="slurm", nodes=2, cpus=1, minutes=10, env=("GLOO_SOCKET_IFNAME=lo", f"HOSTILE={HOSTILE}"))
    number = submit(slurm, tmp_path, job, "rank.py", str(tmp_path), "wait", HOSTILE, ":")
    await_files(tmp_path, "rank-*.json", 2)
    slurm.run("scancel", "--batch", "--signal=USR1", number)
    assert slurm.ended(number)["ExitCode"] == "0:0", logs(tmp_path)
    found = ranks(tmp_path)
    assert [(one["rank"], one["world"], one["sum"]) for one in found] == [(0, 2, 2.0), (1, 2, 2.0)]
    assert [one["node"] for one in found] == ["n1", "n2"]
    assert all(one["words"] == [HOSTILE, ":"] and one["variable"] == HOSTILE for one in found)
    assert len(list(tmp_path.glob("saved-*"))) == 2
    assert not (tmp_path / "evil").exists()


@pytest.mark.soak
def test_a_heterogeneous_job_joins_one_and_two_processes(slurm: Slurm, tmp_path: Path) -> None:
    job = ClusterJob(cluster="slurm", gpus_per_node=(1, 2), cpus=4, minutes=10, env=("GLOO_SOCKET_IFNAME=lo",))
    number = submit(slurm, tmp_path, job, "rank.py", str(tmp_path), "go", options=("--export=NONE",))
    assert slurm.ended(number)["ExitCode"] == "0:0", logs(tmp_path)
    found = ranks(tmp_path)
    assert [(one["rank"], one["world"], one["sum"], one["local_rank"]) for one in found] == [
        (0, 3, 3.0, "0"),
        (1, 3, 3.0, "0"),
        (2, 3, 3.0, "1"),
    ]
    assert found[0]["node"] != found[1]["node"] == found[2]["node"]


@pytest.mark.soak
def test_a_task_of_an_array_at_its_limit_saves_and_starts_again(slurm: Slurm, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    options = ("--array=3", "--time=1", "--signal=B:USR1@55")
    job = ClusterJob(cluster="slurm", no_launch=True, restarts=1)
    number = submit(slurm, tmp_path, job, sys.executable, "saver.py", str(saved), options=options)
    state = slurm.wait(number, lambda state: state["Restarts"] == "1" and state["JobState"] == "PENDING")
    assert saved.read_text(encoding="utf-8") == number
    assert state["Requeue"] == "1"
    slurm.run("scancel", number)  # so that it does not begin again


def test_a_training_on_two_nodes_saves_before_its_limit_and_resumes(slurm: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = ["bertbench", "train", "pretrain", "--data", "synthetic", "--preset", "tiny", "--device", "cpu"]
    train += ["--micro-batch-size", "2", "--global-batch-size", "4", "--steps", "1000000", "--out", str(run)]
    job = ClusterJob(cluster="slurm", nodes=2, minutes=10, restarts=1, env=("GLOO_SOCKET_IFNAME=lo",))
    number = submit(slurm, tmp_path, job, *train)
    reached = [0]
    for state_at_end in ("PENDING", "COMPLETED"):
        slurm.wait(number, lambda state: last_step(run) > reached[-1] + 2)
        slurm.run("scancel", "--batch", "--signal=USR1", number)
        assert (
            slurm.wait(number, lambda state: state["JobState"] in ("PENDING", "COMPLETED"))["JobState"] == state_at_end
        ), logs(tmp_path)
        checkpoint = json.loads((run / "train.json").read_text(encoding="utf-8"))["checkpoint"]
        assert (run / "checkpoints" / checkpoint).is_dir(), logs(tmp_path)
        reached.append(int(checkpoint.removeprefix("step-")))
        if state_at_end == "PENDING":  # a requeued job waits for two minutes
            slurm.wait(number, lambda state: slurm.idle_nodes() == 2 and not steps())  # its first script has ended
            slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    assert reached == sorted(set(reached)), logs(tmp_path)
    assert slurm.state(number)["ExitCode"] == "0:0"


def steps() -> list[psutil.Process]:
    """Return the processes that run steps of jobs; while one of a job ends, the job fails to start again."""
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] == "slurmstepd"]


def last_step(run: Path) -> int:
    lines = (run / "curve.csv").read_text(encoding="utf-8").splitlines() if (run / "curve.csv").exists() else []
    return int(lines[-1].split(",")[0]) if len(lines) > 1 else 0
