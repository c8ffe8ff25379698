"""Rendered batch scripts, and the job array of the documentation, in a real Slurm of two nodes on this machine."""

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import ROOT
from support.real_text import CORPUS, VOCABULARY, prepare
from support.slurm_cluster import Slurm, cluster, why_not

from bench.cluster.schedulers.slurm import Slurm as Scheduler
from bench.cluster.schedulers.slurm import SlurmOptions

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a Slurm"),
    pytest.mark.timeout(600),
]

# Sums ones over the world, writes who it is, and then waits for SIGTERM, where it is told to.
RANK = """
import json, os, pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
found = {"rank": dist.get_rank(), "world": dist.get_world_size(), "sum": ones.item(), "words": sys.argv[3:]}
found |= {"node": os.environ["SLURMD_NODENAME"], "local_rank": os.environ["LOCAL_RANK"]}
found |= {"devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "hostile": os.environ.get("HOSTILE")}
found |= {"threads": os.environ["OMP_NUM_THREADS"]}
folder = pathlib.Path(sys.argv[1])
(folder / f"rank-{found['rank']}.json").write_text(json.dumps(found))
while sys.argv[2] == "wait" and not asked:
    time.sleep(0.1)
if asked:
    dist.barrier()
    (folder / f"saved-{found['rank']}").write_text(str(len(asked)))
os._exit(0)
"""
# Saves when SIGTERM comes.
SAVER = """
import os, pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
while not asked:
    time.sleep(0.1)
pathlib.Path(sys.argv[1]).write_text(os.environ["SLURM_JOB_ID"])
"""
HOSTILE = "a 'b' \"c\" $(touch evil) `touch evil` \\ *\n#SBATCH --nodes=9\r\n:"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def write_job(folder: Path, options: SlurmOptions, *command: str) -> Path:
    """Write a rendered script and the programs it may run."""
    (folder / "rank.py").write_text(RANK, encoding="utf-8")
    (folder / "saver.py").write_text(SAVER, encoding="utf-8")
    script = folder / "job.sbatch"
    script.write_text(Scheduler().render(options, command).text, encoding="utf-8")
    return script


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.out")))


def ranks(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("rank-*.json"))]


def await_files(folder: Path, pattern: str, count: int, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, logs(folder)
        time.sleep(0.5)


def test_two_nodes_join_and_save_when_they_are_told_to(slurm: Slurm, tmp_path: Path) -> None:
    options = SlurmOptions(
        nodes=2,
        processes_per_node=(1,),
        cpus=1,
        time_limit="10",
        log_dir=tmp_path,
        chdir=tmp_path,
        env=("GLOO_SOCKET_IFNAME=lo", f"HOSTILE={HOSTILE}"),
    )
    job = slurm.submit(write_job(tmp_path, options, "rank.py", str(tmp_path), "wait", HOSTILE, ":"))
    await_files(tmp_path, "rank-*.json", 2)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    assert slurm.ended(job)["ExitCode"] == "0:0", logs(tmp_path)
    found = ranks(tmp_path)
    assert [(one["rank"], one["world"], one["sum"]) for one in found] == [(0, 2, 2.0), (1, 2, 2.0)]
    assert [one["node"] for one in found] == ["n1", "n2"]
    assert all(one["words"] == [HOSTILE, ":"] and one["hostile"] == HOSTILE for one in found)
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    assert not (tmp_path / "evil").exists()
    assert "exit code 0" in logs(tmp_path)


@pytest.mark.soak
def test_a_heterogeneous_job_joins_one_and_two_processes(slurm: Slurm, tmp_path: Path) -> None:
    options = SlurmOptions(
        gpus_per_node=(1, 2), cpus=4, time_limit="10", log_dir=tmp_path, chdir=tmp_path, env=("GLOO_SOCKET_IFNAME=lo",)
    )
    job = slurm.submit(write_job(tmp_path, options, "rank.py", str(tmp_path), "go"))
    assert slurm.ended(job)["ExitCode"] == "0:0", logs(tmp_path)
    found = ranks(tmp_path)
    assert [(one["rank"], one["world"], one["sum"], one["local_rank"]) for one in found] == [
        (0, 3, 3.0, "0"),
        (1, 3, 3.0, "0"),
        (2, 3, 3.0, "1"),
    ]
    assert [one["devices"] for one in found] == ["0", "0,1", "0,1"]
    assert [one["threads"] for one in found] == ["4", "2", "2"]
    assert found[0]["node"] != found[1]["node"] == found[2]["node"]


def test_an_array_gives_every_task_its_combination(slurm: Slurm, tmp_path: Path) -> None:
    program = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(' '.join(sys.argv[2:]))"
    options = SlurmOptions(
        launcher="none", sweep=("rate=1e-5,3e-5", "word=a b,$(touch evil)"), log_dir=tmp_path, chdir=tmp_path
    )
    words = [sys.executable, "-c", program, str(tmp_path / "task-{array_index}"), "{rate}", "<{word}>", '{"json": 1}']
    job = slurm.submit(write_job(tmp_path, options, *words))
    await_files(tmp_path, "task-*", 4)
    slurm.wait(job, lambda state: not slurm.run("squeue", "--noheader", "--jobs", job).strip())
    texts = [path.read_text(encoding="utf-8") for path in sorted(tmp_path.glob("task-*"))]
    assert texts == [f'{rate} <{word}> {{"json": 1}}' for rate in ("1e-5", "3e-5") for word in ("a b", "$(touch evil)")]
    assert not (tmp_path / "evil").exists()


def test_one_task_submitted_again_without_the_environment_knows_the_whole_array(slurm: Slurm, tmp_path: Path) -> None:
    program = "import os, sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2] + os.environ['VALUE'])"
    options = SlurmOptions(launcher="none", array="0-3", log_dir=tmp_path, chdir=tmp_path, env=("VALUE=x",))
    words = [sys.executable, "-c", program, str(tmp_path / "task-{array_index}"), "{array_index}/{array_count}"]
    script = write_job(tmp_path, options, *words)
    for number, exported in enumerate(("NONE", "FOO=1")):
        slurm.run("sbatch", f"--array={number}", f"--export={exported}", str(script))
        await_files(tmp_path, f"task-{number}", 1)
    assert [(tmp_path / f"task-{number}").read_text() for number in (0, 1)] == ["0/4x", "1/4x"]


@pytest.mark.soak
def test_a_sweep_that_is_interrupted_before_its_limit_goes_back_into_the_queue(slurm: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sweep = ["throughput", "pretrain", "--preset", "tiny", "--device", "cpu", "--devices", "1", "--seq-len", "32"]
    sweep += ["--batch-size", "2", "--start", "5", "--stop", "10000000", "--out", str(run)]
    options = SlurmOptions(launcher="none", time_limit="10", requeues=1, log_dir=tmp_path, chdir=ROOT)
    job = slurm.submit(write_job(tmp_path, options, sys.executable, "-m", "bench.cli.main", *sweep))
    await_files(run, "trials/*/steps-0.csv", 1)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    slurm.wait(job, lambda state: state["Restarts"] == "1" and state["JobState"] == "PENDING")
    assert "requeuing the job" in logs(tmp_path)
    slurm.run("scancel", job)  # so that it does not begin again


@pytest.mark.soak
def test_a_job_at_its_limit_saves_and_goes_back_into_the_queue(slurm: Slurm, tmp_path: Path) -> None:
    options = SlurmOptions(
        launcher="none", array="3", time_limit="1", stop_seconds=55, requeues=1, log_dir=tmp_path, chdir=tmp_path
    )
    saved = tmp_path / "saved"
    job = slurm.submit(write_job(tmp_path, options, sys.executable, "saver.py", str(saved)))
    state = slurm.wait(job, lambda state: state["Restarts"] == "1" and state["JobState"] == "PENDING")
    assert saved.read_text(encoding="utf-8") == job
    assert "requeuing the job" in logs(tmp_path)
    assert state["Requeue"] == "1"
    slurm.run("scancel", job)  # so that it does not begin again


def test_training_saves_before_its_limit(slurm: Slurm, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train = ["train", "pretrain", "--data", "synthetic", "--preset", "tiny", "--device", "cpu", "--devices", "1"]
    train += ["--micro-batch-size", "2", "--global-batch-size", "2", "--steps", "1000000", "--out", str(run)]
    options = SlurmOptions(launcher="none", time_limit="10", log_dir=tmp_path, chdir=ROOT)
    job = slurm.submit(write_job(tmp_path, options, sys.executable, "-m", "bench.cli.main", *train))
    await_files(run, "trials/*/steps-0.csv", 1)
    time.sleep(2)
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    state = slurm.ended(job)
    assert state["ExitCode"] == "0:0", logs(tmp_path)
    reached = json.loads((run / "train.json").read_text(encoding="utf-8"))
    assert (run / "checkpoints" / reached["checkpoint"]).is_dir()
    assert re.search(r"stopped by SIGTERM after step ", logs(tmp_path))


def preparation_array(folder: Path, dumps: Path, parts: int) -> Path:
    """Write the batch script of docs/explanation/pretraining-data.md for these dumps and as many tasks."""
    page = (ROOT / "docs/explanation/pretraining-data.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```\n(#!/bin/bash\n#SBATCH.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for written, here in (
        ("0-15 --cpus-per-task=8", f"0-{parts - 1} --output={folder}/%A-%a.out"),
        ("/16 --workers 8", f"/{parts} --workers 1"),
        ("bertbench data", f"{sys.executable} -m bench.cli.main data"),
        ("/data/dumps", str(dumps)),
        ("/data/wiki", str(folder / "out")),
        ("/data/vocab.txt", str(VOCABULARY)),
    ):
        assert text.count(written) == 1, written
        text = text.replace(written, here)
    script = folder / "prepare.sh"
    script.write_text(text, encoding="utf-8")
    return script


@pytest.mark.soak
@pytest.mark.public
def test_a_job_array_with_a_killed_task_prepares_what_one_command_does(slurm: Slurm, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for number in range(3):
        shutil.copy(CORPUS / "wiki/enwiki-sample.xml.bz2", dumps / f"pages-{number}.xml.bz2")
    script = preparation_array(tmp_path, dumps, 3)

    def submit(stage: str, *words: str) -> str:
        return slurm.run("sbatch", "--parsable", f"--export=ALL,STAGE={stage}", *words, str(script)).strip()

    def gone(job: str) -> None:
        slurm.wait(job, lambda state: not slurm.run("squeue", "--noheader", "--jobs", job).strip(), 400)

    first = submit("extract", f"--chdir={ROOT}")
    await_files(tmp_path, f"{first}-1.out", 1)
    slurm.run("scancel", "--signal=KILL", "--full", f"{first}_1")
    gone(first)
    states = [slurm.state(f"{first}_{task}")["JobState"] for task in range(3)]
    assert states == ["COMPLETED", "CANCELLED", "COMPLETED"], logs(tmp_path)

    after = submit("extract", f"--chdir={ROOT}", "--array=1")
    for stage, words in (("sentences", []), ("shard", ["--array=0"]), ("hdf5", [])):
        after = submit(stage, f"--chdir={ROOT}", f"--dependency=afterok:{after}", *words)
    gone(after)
    assert slurm.state(after)["JobState"] == "COMPLETED", logs(tmp_path)
    whole = tmp_path / "whole"
    prepare(whole, 128, 512, corpus=dumps, dataset="wikipedia")

    def shards(folder: Path) -> dict[str, str]:
        paths = sorted(folder.glob("hdf5_*/*/*.hdf5"))
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}

    assert shards(whole)
    assert shards(tmp_path / "out") == shards(whole)
