"""`bertbench submit`: what the files hold, what their commands run, and that no word of a command becomes another."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import result
from support.refusals import refused

from bench.submit.job import CLUSTERS
from common.errors import Code

IMAGE = ["--image", "registry.example/bertbench:1"]
HOSTILE = ["", "a b", "'", '"', "$(id)", "`id`", "\\", "*", ":", "--", "#", "a\nb", "\t", "é", "\x7f", "!", "{}", "%s"]
HOSTILE += ["$$x", "$(HOME)", "${{inputs.data}}", "'${{x}}'", "\n#SBATCH --nodes=9", "1e-5", "yes", "\U0001f600"]
SHOW = f"#!{sys.executable}\nimport json, os, sys\n" + (
    'print(json.dumps({"words": sys.argv[1:], "environment": dict(os.environ)}), flush=True)\n'
)

# Runs the tasks of every component of a job here, one after the other, or as the one task of the job.
SRUN = f"""#!{sys.executable}
import os, subprocess, sys
components, rank = [[]], 0
for word in sys.argv[1:]:
    components.append([]) if word == ":" else components[-1].append(word)
for words in components:
    (count,) = (int(word.removeprefix("--nodes=")) for word in words if word.startswith("--nodes="))
    for _ in range(count):
        task = subprocess.Popen(words[words.index("bash"):], env={{**os.environ, "SLURM_NODEID": str(rank)}})
        open("task", "w").write(str(task.pid))
        rank += 1
        if task.wait():
            sys.exit(task.returncode)
"""
# Signals the task alone, as Slurm does where it tracks processes by cgroup, or all of its processes.
SCANCEL = f"""#!{sys.executable}
import os, psutil, signal, sys
task = psutil.Process(int(open("task").read()))
for process in [task, *(task.children(recursive=True) if os.environ["SIGNALS"] == "all" else [])]:
    process.send_signal(signal.Signals["SIG" + sys.argv[1].partition("=")[2]])
"""
# Counts the SIGTERMs of a second after the first one.
COUNTER = """
import os, signal, sys, time
count = 0
def more(*_):
    global count
    count += 1
signal.signal(signal.SIGTERM, more)
open("started", "w").close()
while not count:
    time.sleep(0.01)
time.sleep(1)
open("count", "w").write(str(count))
sys.exit(int(sys.argv[1]))
"""


def rendered(*argv: str) -> str:
    return result("submit", *argv).raw


def programs(folder: Path, **contents: str) -> dict[str, str]:
    """Write executables and return an environment that finds them."""
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


def run(words: list[str], folder: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Run a program, which may start SHOW several times, and return what it shows."""
    done = subprocess.run(words, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def directives(script: str) -> list[list[str]]:
    """Return the options for sbatch, per component of a heterogeneous job."""
    head = script.partition("\nset -e")[0]
    components = re.split(r"^#SBATCH hetjob$", head, flags=re.MULTILINE)
    return [re.findall(r"^#SBATCH (.*)$", lines, re.MULTILINE) for lines in components]


def test_slurm_gets_the_resources_of_every_component() -> None:
    resources = "--gpus-per-node 4 8 8 --cpus 32 --memory-gib 200 --minutes 90 --queue gpu --restarts 3"
    first, second = directives(rendered(*f"slurm --name squad {resources} -- train.py".split()))
    shared = {"--ntasks-per-node=1", "--mem=200G", "--cpus-per-task=32", "--time=90", "--partition=gpu"}
    own = "--job-name=squad --output=%x-%j.out --open-mode=append --signal=B:USR1@120 --requeue"
    assert set(first) == {*own.split(), "--nodes=1", "--gpus-per-node=4", *shared}
    assert set(second) == {"--nodes=2", "--gpus-per-node=8", *shared}


def test_slurm_starts_a_launch_per_node_and_passes_words_unchanged(tmp_path: Path) -> None:
    environment = programs(tmp_path, srun=SRUN, bertbench=SHOW)
    value = "".join(HOSTILE)
    argv = ["slurm", *IMAGE, "--mounts", "/a b:/data:ro", "/out:/out", "--gpus-per-node", "4", "8", "8"]
    (tmp_path / "job").write_text(rendered(*argv, "--env", f"VALUE={value}", "--", "program", *HOSTILE))
    nodes = run(["bash", "job"], tmp_path, environment)
    launches = [node["words"] for node in nodes]
    assert all(words[-len(HOSTILE) - 3 :] == ["--no-python", "--", "program", *HOSTILE] for words in launches)
    assert all(node["environment"]["VALUE"] == value for node in nodes)
    assert [option(words, "--node-rank") for words in launches] == ["0", "1", "2"]
    assert [option(words, "--here-gpus") for words in launches] == ["4", "8", "8"]
    others = [words[words.index("--other-gpus") + 1 : words.index("--join-timeout")] for words in launches]
    assert others == [["8", "8"], ["4", "8"], ["4", "8"]]
    assert {option(words, "--master-addr") for words in launches} == {os.uname().nodename}
    assert {option(words, "--master-port") for words in launches} == {"15007"}


@pytest.mark.parametrize(
    ("image", "part"),
    [
        ("a b.sif", ["apptainer", "exec", "--nv", "--bind", "/a b:/c:ro", "--bind", "/d:/d", "a b.sif", "bertbench"]),
        ("host/a:1", ["--container-image=host/a:1", "--container-mounts=/a b:/c:ro,/d:/d", "bash"]),
    ],
)
def test_containers_of_slurm(image: str, part: list[str]) -> None:
    script = rendered("slurm", "--image", image, "--mounts", "/a b:/c:ro", "/d:/d", "--gpus-per-node", "1", "--", "x")
    words = shlex.split(script.replace("\\\n", ""), comments=True)
    place = words.index(part[0])
    assert words[place : place + len(part)] == part


@pytest.mark.parametrize(
    ("signals", "status", "restarts", "requeued"), [("task", 0, 1, True), ("all", 3, 1, True), ("all", 0, 0, False)]
)
def test_a_job_at_its_limit_sends_sigterm_once_and_starts_again(
    signals: str, status: int, restarts: int, requeued: bool, tmp_path: Path
) -> None:
    scontrol = '#!/bin/sh\necho "$@" > requeued\n'
    environment = programs(tmp_path, srun=SRUN, scancel=SCANCEL, scontrol=scontrol)
    environment |= {"SIGNALS": signals, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    command = ["--", sys.executable, "-c", COUNTER, str(status)]
    (tmp_path / "job").write_text(rendered("slurm", "--no-launch", "--restarts", str(restarts), *command))
    with subprocess.Popen(["bash", "job"], env=environment, cwd=tmp_path) as job:
        while not (tmp_path / "started").exists():
            assert job.poll() is None
        job.send_signal(10)  # SIGUSR1
        assert job.wait(20) == status
    assert (tmp_path / "count").read_text() == "1"
    assert (tmp_path / "requeued").exists() == requeued
    assert not requeued or (tmp_path / "requeued").read_text() == "requeue 7_2\n"


def job_set(*argv: str) -> dict[str, Any]:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="the published schemas are not installed")
    manifest = yaml.safe_load(rendered("kubernetes", *IMAGE, *argv))
    assert models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest  # drops what the schema does not have
    return dict(manifest)


def test_kubernetes_gets_a_replicated_job_per_kind_of_node() -> None:
    resources = "--gpus-per-node 4 8 8 --cpus 64 --memory-gib 500 --minutes 90 --restarts 2"
    mounts = "--mounts claim:/data /scratch:/scratch:ro"
    manifest = job_set(*f"--name squad --queue team {resources} {mounts} -- train.py".split())
    assert manifest["metadata"] == {"name": "squad", "labels": {"kueue.x-k8s.io/queue-name": "team"}}
    assert manifest["spec"]["failurePolicy"] == {"maxRestarts": 2}
    jobs = [one["template"]["spec"] for one in manifest["spec"]["replicatedJobs"]]
    assert [(job["parallelism"], job["completions"], job["backoffLimit"]) for job in jobs] == [(1, 1, 0), (2, 2, 0)]
    assert {job["activeDeadlineSeconds"] for job in jobs} == {5400}
    pods = [job["template"]["spec"] for job in jobs]
    assert {pod["terminationGracePeriodSeconds"] for pod in pods} == {120}
    assert pods[0]["volumes"][1]["persistentVolumeClaim"] == {"claimName": "claim"}
    assert pods[0]["volumes"][2]["hostPath"] == {"path": "/scratch"}
    containers = [pod["containers"][0] for pod in pods]
    assert [one["resources"] for one in containers] == [
        {"requests": {"cpu": 64}, "limits": {"nvidia.com/gpu": gpus, "memory": "500Gi"}} for gpus in (4, 8)
    ]
    folders = [(one["mountPath"], one["readOnly"]) for one in containers[0]["volumeMounts"][1:]]
    assert folders == [("/data", False), ("/scratch", True)]
    assert {"name": "MASTER_ADDR", "value": "squad-nodes0-0-0.squad"} in containers[0]["env"]


def test_pods_start_a_launch_and_pass_words_unchanged(tmp_path: Path) -> None:
    value = "".join(HOSTILE)
    argv = ["--gpus-per-node", "4", "8", "8", "--env", f"VALUE={value}", "--", "program", *HOSTILE]
    environment = programs(tmp_path, bertbench=SHOW) | {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    launches = []
    for job, index in ((0, 0), (1, 0), (1, 1)):
        pod = job_set(*argv)["spec"]["replicatedJobs"][job]["template"]["spec"]["template"]["spec"]
        command = [word.replace("$$", "$") for word in pod["containers"][0]["command"]]  # as Kubernetes does
        assert pod["containers"][0]["env"][-1] == {"name": "VALUE", "value": value.replace("$", "$$")}
        (node,) = run(command, tmp_path, environment | {"JOB_COMPLETION_INDEX": str(index)})
        launches.append(node["words"])
    assert all(words[-len(HOSTILE) - 3 :] == ["--no-python", "--", "program", *HOSTILE] for words in launches)
    assert [option(words, "--node-rank") for words in launches] == ["0", "1", "2"]
    assert [option(words, "--here-gpus") for words in launches] == ["4", "8", "8"]
    assert {option(words, "--master-addr") for words in launches} == {"localhost"}


def test_azure_gets_the_fields_of_a_command_job() -> None:
    resources = "--queue a100 --nodes 2 --gpus-per-node 4 --minutes 90 --env RATE=1e-5"
    mounts = "--mounts azureml:squad:1:/data:ro azureml://datastores/a/paths/b:/runs"
    job = yaml.safe_load(rendered("azureml", *IMAGE, *f"--name squad {resources} {mounts} -- train.py".split()))
    assert job["command"].endswith("-- train.py") and job.pop("command")
    assert job == {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        "display_name": "squad",
        "experiment_name": "squad",
        "environment": {"image": IMAGE[1]},
        "compute": "azureml:a100",
        "resources": {"instance_count": 2, "shm_size": "16g"},
        "distribution": {"type": "pytorch", "process_count_per_instance": 1},
        "limits": {"timeout": 5400},
        "environment_variables": {"RATE": "1e-5"},
        "inputs": {"mount_0": {"type": "uri_folder", "mode": "ro_mount", "path": "azureml:squad:1"}},
        "outputs": {"mount_1": {"type": "uri_folder", "mode": "rw_mount", "path": "azureml://datastores/a/paths/b"}},
    }
    named = yaml.safe_load(rendered("azureml", "--image", "azureml:bert@latest", "--", "train.py"))
    assert named["environment"] == "azureml:bert@latest" and not {"compute", "distribution"} & set(named)


def test_azure_mounts_folders_at_their_paths_and_passes_words_unchanged(tmp_path: Path) -> None:
    target = tmp_path / "a b" / "data"
    argv = ["azureml", *IMAGE, "--nodes", "2", "--mounts", f"azureml:squad:1:{target}", "--", "program", *HOSTILE]
    line = yaml.safe_load(rendered(*argv))["command"]
    assert re.findall(r"\$\{\{.*?\}\}", line) == ["${{outputs.mount_0}}"]  # no word is an expression of AzureML
    line = line.replace("${{outputs.mount_0}}", str(tmp_path))
    environment = programs(tmp_path, bertbench=SHOW) | {"NODE_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "5"}
    (node,) = run(["bash", "-c", line], tmp_path, environment)
    assert node["words"][-len(HOSTILE) :] == HOSTILE
    assert option(node["words"], "--node-rank") == "1" and option(node["words"], "--master-addr") == "here"
    assert target.resolve() == tmp_path.resolve()


@pytest.mark.parametrize(
    ("argv", "code", "fact"),
    [
        (["lsf", "--", "x"], "option-choice", "lsf"),
        (["slurm", "--nodes", "0", "--", "x"], "option-value", "--nodes"),
        (["slurm", "--nodes", "3", "--gpus-per-node", "4", "8", "--", "x"], "option-value", "4 8"),
        (["slurm", "--name", "a\n#SBATCH -N9", "--", "x"], "option-value", "--name"),
        (["slurm", "--mounts", "/a:/b", "--", "x"], "option-missing", "--image"),
        (["kubernetes", "--", "x"], "option-missing", "--image"),
        (["azureml", *IMAGE, "--gpus-per-node", "1", "2", "--", "x"], "option-value", "--gpus-per-node"),
        (["azureml", *IMAGE, "--memory-gib", "1", "--", "x"], "option-not-applicable", "--memory-gib"),
    ],
)
def test_what_no_file_can_hold_is_refused(argv: list[str], code: Code, fact: str) -> None:
    with refused(code, fact):
        result("submit", *argv)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_written_file_names_its_check_and_is_not_replaced(cluster: str, tmp_path: Path) -> None:
    out = tmp_path / "a b;id"
    done = result("submit", cluster, *IMAGE, "--out", out, "--", "train.py")
    assert done.written == [out] and out.read_text(encoding="utf-8") == rendered(cluster, *IMAGE, "--", "train.py")
    check, submit = (shlex.split(note.partition(": ")[2]) for note in done.notes)
    assert check == [*CLUSTERS[cluster].check.split(), str(out)]
    assert submit == [*CLUSTERS[cluster].submit.split(), str(out)]
    with refused("folder-occupied", out):
        result("submit", cluster, *IMAGE, "--out", out, "--", "other.py")
