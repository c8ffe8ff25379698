"""`bertbench submit`: what is rendered, what is refused, and that no word of a command becomes anything else.

The manifests of tests/golden/submit are written afresh by UPDATE_GOLDEN=1 pytest tests/unit/bench/test_submit.py.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support.commands import result, text
from support.refusals import refused

from bench.cluster.schedulers import SCHEDULERS, load_scheduler
from bench.cluster.schedulers.azureml import _distribution
from bench.cluster.schedulers.words import fill, kubernetes_memory, places, quote, time_limit_seconds, to_yaml
from common.errors import Code

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "submit"
TRAIN = ["--", "bertbench", "train", "squad", "--learning-rate", "3e-5"]
IMAGE = ["--image", "registry.example/bertbench:1"]
CASES: dict[str, list[str]] = {
    "slurm-two-nodes.sbatch": [
        "slurm", "--name", "squad", "--nodes", "2", "--gpus-per-node", "4", "--gpu-type", "a100", "--cpus", "32",
        "--memory", "200G", "--time-limit", "12:00:00", "--partition", "gpu", "--account", "lab", "--requeues", "3",
        "--log-dir", "logs", "--chdir", "/work", "--python", "python3", "--env", "NCCL_DEBUG=WARN", "TEXT=a $(b) 'c'",
        "--setup", "module load cuda", *TRAIN,
    ],
    "slurm-unequal-nodes.sbatch": [
        "slurm", "--gpus-per-node", "4", "8", "8", "--chdir", "/work", "--python", "python3", "--", "train.py", "a b",
    ],
    "slurm-sweep.sbatch": [
        "slurm", "--gpus-per-node", "1", "--chdir", "/work", *IMAGE, "--mounts", "/data:/data", "--sweep",
        "rate=1e-5,3e-5", "seed=1,2,3", "--at-once", "2", "--module", "--", "project.train", "--rate={rate}", "{seed}",
        "runs/{array_index}",
    ],
    "slurm-shards.sbatch": [
        "slurm", "--launcher", "none", "--array", "0-99%10", "--chdir", "/work", *IMAGE, "--container", "apptainer",
        "--", "bertbench", "data", "pretrain", "--input", "part-{array_index}-of-{array_count}.txt",
    ],
    "kubernetes-trainjob.yaml": [
        "kubernetes", *IMAGE, "--name", "squad", "--namespace", "ml", "--nodes", "2", "--gpus-per-node", "8", "--cpus",
        "64", "--memory", "500G", "--shared-memory", "64G", "--time-limit", "1-00:00:00", "--claim", "data:/data",
        "--env", "RATE=1e-5", "--queue", "team", *TRAIN, "$(HOME)",
    ],
    "kubernetes-jobset.yaml": [
        "kubernetes", *IMAGE, "--kind", "jobset", "--gpus-per-node", "4", "8", "8", "--max-restarts", "2", *TRAIN,
    ],
    "azureml-command.yaml": [
        "azureml", "--compute", "a100", "--environment", "bert@latest", "--nodes", "2", "--gpus-per-node", "4",
        "--input", "data=azureml:squad:1", "--output", "run", "--services", "tensorboard", "jupyter", "vscode",
        "--time-limit", "120", "--", "train.py", "{data}", "{run}/x", "it's ${{inputs.other}} $(id)",
    ],
    "azureml-sweep.yaml": [
        "azureml", "--compute", "a100", *IMAGE, "--gpus-per-node", "1", "--sweep", "rate=loguniform(1e-5,1e-4)",
        "size=8,16", "--objective", "maximize:f1", "--early-stop", "--", "train.py", "{rate}", "{size}",
    ],
}  # fmt: skip
HOSTILE = [
    "",
    "a b",
    "'",
    '"',
    "$(id)",
    "`id`",
    "\\",
    "*",
    ":",
    "--",
    "#",
    "a\nb",
    "\r\n",
    "\t",
    "é",
    "\x7f",
    "!",
    "{}",
    "%s",
]


def rendered(argv: list[str]) -> str:
    found = result("submit", *argv)
    assert found.code == 0
    return found.raw


@pytest.mark.parametrize("name", CASES)
def test_jobs_are_the_golden_ones(name: str) -> None:
    script = rendered(CASES[name])
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(script, encoding="utf-8")
    assert script == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(".sbatch")])
def test_scripts_pass_shellcheck(name: str) -> None:
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    if not Path(shellcheck).exists():
        pytest.skip("shellcheck is not installed here")
    # 2016: words of the user's; 2329: a trap calls the function.
    done = subprocess.run([shellcheck, "--exclude=SC2016,SC2329", str(GOLDEN / name)], capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("kubernetes")])
def test_manifests_fit_the_published_schema(name: str) -> None:
    pytest.importorskip("kubeflow_trainer_api", reason="kubeflow-trainer-api, which has the schemas, is not installed")
    from kubeflow_trainer_api import models

    kinds = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}
    manifest = yaml.safe_load((GOLDEN / name).read_text(encoding="utf-8"))
    # What the schema does not know is dropped on the way.
    assert kinds[manifest["kind"]].from_dict(manifest).to_dict() == manifest


def test_a_time_limit_of_azure_says_that_no_time_to_save_comes_before_it() -> None:
    job = ["azureml", "--compute", "a", *IMAGE, "--gpus-per-node", "1", "--stop-seconds", "300"]
    assert not any("--stop-seconds" in note for note in result("submit", *job, *TRAIN).notes)
    notes = result("submit", *job, "--time-limit", "60", *TRAIN).notes
    assert any("--stop-seconds" in note and "--max-seconds" in note for note in notes)


@pytest.mark.parametrize("page", ["slurm", "kubernetes", "azureml"])
def test_commands_of_the_page_render(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (GOLDEN.parents[2] / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^bertbench submit (.*)$", content, re.MULTILINE)
    assert lines
    monkeypatch.chdir(tmp_path)
    assert [result("submit", *shlex.split(line)).code for line in lines] == [0] * len(lines)


def fakes(folder: Path) -> dict[str, str]:
    """An srun that runs its program here, and a scontrol that knows one node."""
    programs = {
        "srun": 'while [[ $1 == --* ]]; do shift; done\nexport SLURM_NODEID=0\nexec "$@"',
        "scontrol": 'if [[ $2 == hostnames ]]; then echo here; else echo "NodeAddr=127.0.0.1 x"; fi',
    }
    for name, body in programs.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "here"}


def test_hostile_words_reach_the_command_unchanged(tmp_path: Path) -> None:
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['VALUE']]))"
    value = "".join(HOSTILE)
    argv = ["slurm", "--launcher", "none", "--time-limit", "9", "--array", "3", "--env", f"VALUE={value}"]
    argv += ["--chdir", str(tmp_path), "--", sys.executable, "-c", show, *HOSTILE, "x{array_index}'y"]
    script = tmp_path / "job.sbatch"
    script.write_text(rendered(argv), encoding="utf-8")
    lines = script.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("#SBATCH") for line in lines) == 9
    environment = fakes(tmp_path) | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "1"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[*HOSTILE, "x3'y"], value]


@pytest.mark.parametrize(("array", "count"), [("0-3", 4), ("7", 1), ("1,3,5%2", 3), ("0-99:10", 10), ("0-3,2-5", 6)])
def test_the_count_is_that_of_the_whole_array_where_one_task_is_submitted_again(
    array: str, count: int, tmp_path: Path
) -> None:
    argv = ["slurm", "--launcher", "none", "--array", array, "--chdir", str(tmp_path), "--", "echo"]
    script = tmp_path / "job.sbatch"
    script.write_text(rendered([*argv, "{array_index}/{array_count}"]), encoding="utf-8")
    environment = fakes(tmp_path) | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "1"}
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"3/{count}\n"
    said = result("submit", *argv, "{array_index}/{array_count}").notes
    assert any("{array_count}" in note for note in said) == (array in ("7", "1,3,5%2", "0-99:10"))


@pytest.mark.parametrize(
    ("status", "signalled", "requeued"),
    [(0, True, True), (130, True, True), (3, True, False), (0, False, False), (130, False, False)],
)
def test_only_a_job_that_stopped_on_the_signal_before_its_limit_is_requeued(
    status: int, signalled: bool, requeued: bool, tmp_path: Path
) -> None:
    environment = fakes(tmp_path)
    programs = {
        "srun": f"touch started\nuntil [[ -e stop ]]; do sleep 0.02; done\nexit {status}",
        "scancel": "touch stop",
        "scontrol": 'echo "$1" > requeued',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    argv = ["slurm", "--launcher", "none", "--time-limit", "9", "--requeues", "2", "--chdir", str(tmp_path)]
    script = tmp_path / "job.sbatch"
    script.write_text(rendered([*argv, "--", "bertbench", "throughput"]), encoding="utf-8")
    with subprocess.Popen(["bash", str(script)], env=environment) as job:
        while not (tmp_path / "started").exists():
            assert job.poll() is None
            time.sleep(0.01)
        if signalled:
            job.send_signal(signal.SIGUSR1)
        else:
            (tmp_path / "stop").touch()
        assert job.wait(10) == status
    assert (tmp_path / "requeued").exists() == requeued


def test_every_step_gets_the_variables_of_the_script_whatever_sbatch_exports() -> None:
    script = rendered(["slurm", "--gpus-per-node", "1", "2", "--option", "export=NONE", "--", "x"])
    assert script.count("--nodes=1 --ntasks=1") == script.count("--export=ALL") == 2


def test_torchrun_gets_hostile_words_unchanged(tmp_path: Path) -> None:
    python = tmp_path / "a python"
    python.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@"\n'
    )
    python.chmod(0o755)
    argv = ["slurm", "--processes-per-node", "3", "--python", str(python), "--chdir", str(tmp_path)]
    script = tmp_path / "job.sbatch"
    script.write_text(rendered([*argv, "--", "program", *HOSTILE]), encoding="utf-8")
    done = subprocess.run(["bash", str(script)], env=fakes(tmp_path), capture_output=True, text=True, check=True)
    words = json.loads(done.stdout)
    assert words[-len(HOSTILE) - 2 :] == ["--no-python", "program", *HOSTILE]
    assert words[words.index("--node-rank") + 1] == "0"
    assert words[words.index("--nproc-per-node") + 1] == "3"
    assert words[words.index("--master-addr") + 1] == "127.0.0.1"


def test_hostile_words_survive_kubernetes_expansion() -> None:
    argv = ["kubernetes", *IMAGE, "--gpus-per-node", "1", "--", "program", *HOSTILE, "$(HOME)", "$$x"]
    args = yaml.safe_load(rendered(argv))["spec"]["trainer"]["args"]
    assert [word.replace("$$", "$") for word in args[4:]] == [*HOSTILE, "$(HOME)", "$$x"]


def test_hostile_words_survive_azure(tmp_path: Path) -> None:
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    words = [*HOSTILE, "${{inputs.data}}", "'${{x}}'"]
    argv = ["azureml", "--compute", "c", *IMAGE, "--launcher", "none", "--", sys.executable, "-c", show, *words]
    line = yaml.safe_load(rendered(argv))["command"]
    assert "${{" not in line
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == words


def test_text_stays_text_in_every_yaml() -> None:
    words = [
        "1e-5",
        "012",
        "1:30",
        "yes",
        "NO",
        "~",
        "null",
        "0x1f",
        ".5",
        "=",
        "nan",
        "true",
        "",
        "1_000",
        "plain-word",
    ]
    made = to_yaml([{"words": words}], "header")
    assert yaml.safe_load(made) == {"words": words}
    assert [line.startswith('- "') for line in made.splitlines()[2:]] == [True] * (len(words) - 1) + [False]


@pytest.mark.parametrize(
    ("argv", "code", "fact"),
    [
        (["slurm", "--", "train.py"], "option-missing", "--gpus-per-node N"),
        (["slurm", "--gpus-per-node", "1"], "option-missing", "-- bertbench"),
        (["slurm", "--gpus-per-node", "1", "--"], "option-missing", "-- bertbench"),
        (["slurm", "--gpus-per-node", "0", "--", "x"], "option-missing", "--gpus-per-node N"),
        (["slurm", "--gpus-per-node", "4", "0", "--", "x"], "option-value", "--gpus-per-node"),
        (["slurm", "--gpus-per-node", "-1", "--", "x"], "option-value", "--gpus-per-node -1"),
        (["slurm", "--nodes", "3", "--gpus-per-node", "4", "8", "--", "x"], "option-value", "2 numbers for 3 nodes"),
        (["slurm", "--nodes", "0", "--gpus-per-node", "4", "--", "x"], "option-value", "--nodes 0"),
        (["slurm", "--gpus-per-node", "1", "--time-limit", "soon", "--", "x"], "option-value", "--time-limit 'soon'"),
        (["slurm", "--gpus-per-node", "1", "--time-limit", "0", "--", "x"], "option-value", "--time-limit '0'"),
        (["slurm", "--gpus-per-node", "1", "--time-limit", "2", "--", "x"], "option-conflict", "--stop-seconds 120"),
        (["slurm", "--gpus-per-node", "1", "--memory", "64", "--", "x"], "option-value", "'64'"),
        (["slurm", "--gpus-per-node", "1", "--name", "a b", "--", "x"], "option-value", "--name 'a b'"),
        (["slurm", "--gpus-per-node", "1", "--partition", "a\n#SBATCH -N9", "--", "x"], "option-value", "--partition"),
        (["slurm", "--gpus-per-node", "1", "--log-dir", "a b", "--", "x"], "option-value", "--log-dir 'a b'"),
        (["slurm", "--gpus-per-node", "1", "--array", "all", "--", "x"], "option-value", "--array 'all'"),
        (["slurm", "--gpus-per-node", "1", "--array", "5-1", "--", "x"], "option-value", "5-1 "),
        (["slurm", "--gpus-per-node", "1", "--array", "0-3,9-7:2%4", "--", "x"], "option-value", "9-7"),
        (["slurm", "--gpus-per-node", "1", "--array", "4000001", "--", "x"], "option-value", "4000001"),
        (["slurm", "--gpus-per-node", "1", "--at-once", "2", "--", "x"], "option-not-applicable", "--at-once"),
        (["slurm", "--gpus-per-node", "1", "--time-limit", "1:99:99", "--", "x"], "option-value", "'1:99:99'"),
        (["slurm", "--gpus-per-node", "1", "--time-limit", "90:60", "--", "x"], "option-value", "--time-limit '90:60'"),
        (["slurm", "--gpus-per-node", "1", "--time-limit", "1-24", "--", "x"], "option-value", "'1-24'"),
        (["slurm", *IMAGE, "--gpus-per-node", "1", "--mounts", "foo", "--", "x"], "option-value", "--mounts 'foo'"),
        (["slurm", *IMAGE, "--gpus-per-node", "1", "--mounts", "/a:b", "--", "x"], "option-value", "--mounts '/a:b'"),
        (["slurm", "--gpus-per-node", "1", "--mounts", "/a:/b", "--", "x"], "option-missing", "--mounts"),
        (["slurm", "--gpus-per-node", "1", "--container", "apptainer", "--", "x"], "option-missing", "--image"),
        (
            ["slurm", "--gpus-per-node", "1", "--array", "1", "--sweep", "a=1", "--", "{a}"],
            "option-conflict", "--array and --sweep",
        ),
        (["slurm", "--gpus-per-node", "1", "--sweep", "a=1,2", "--", "x"], "option-value", "{a}"),
        (["slurm", "--gpus-per-node", "1", "--sweep", "a=1,1", "--", "{a}"], "option-value", "1,1"),
        (["slurm", "--gpus-per-node", "1", "--sweep", "A=1", "--", "{A}"], "option-value", "--sweep 'A=1'"),
        (["slurm", "--gpus-per-node", "1", "--", "{array_index}"], "option-missing", "{array_index}"),
        (["slurm", "--gpus-per-node", "1", "2", "--array", "1", "--", "x"], "unsupported-combination", "GPUs"),
        (["slurm", "--gpus-per-node", "1", "--requeues", "1", "--", "x"], "option-missing", "--requeues"),
        (["slurm", "--gpus-per-node", "1", "--env", "A-B=1", "--", "x"], "option-value", "--env 'A-B=1'"),
        (["slurm", "--gpus-per-node", "1", "--module", "--no-python", "--", "x"], "option-conflict", "--module"),
        (
            ["slurm", "--launcher", "none", "--nodes", "2", "--", "bertbench", "throughput", "pretrain"],
            "unsupported-combination", "--gpus-per-node N",
        ),
        (
            ["slurm", "--launcher", "none", "--gpus-per-node", "1", "2", "--", "/bin/bertbench", "profile"],
            "unsupported-combination", "one node",
        ),
        (["kubernetes", "--gpus-per-node", "1", "--", "x"], "option-missing", "--image"),
        (["kubernetes", *IMAGE, "--gpus-per-node", "1", "2", "--", "x"], "unsupported-combination", "--kind jobset"),
        (
            ["kubernetes", *IMAGE, "--gpus-per-node", "1", "--max-restarts", "1", "--", "x"],
            "option-not-applicable", "jobset",
        ),
        (["kubernetes", *IMAGE, "--gpus-per-node", "1", "--name", "Big_Job", "--", "x"], "option-value", "'Big_Job'"),
        (["kubernetes", *IMAGE, "--gpus-per-node", "1", "--claim", "data", "--", "x"], "option-value", "'data'"),
        (["kubernetes", *IMAGE, "--gpus-per-node", "1", "--", "\udcff"], "option-value", "UTF-8"),
        (["azureml", *IMAGE, "--gpus-per-node", "1", "--", "x"], "option-missing", "--compute"),
        (["azureml", "--compute", "c", "--gpus-per-node", "1", "--", "x"], "option-missing", "--environment"),
        (
            ["azureml", "--compute", "c", *IMAGE, "--gpus-per-node", "1", "2", "--", "x"],
            "unsupported-combination", "GPUs",
        ),
        (
            ["azureml", "--compute", "c", *IMAGE, "--gpus-per-node", "1", "--input", "d=x", "--", "x"],
            "option-value", "{d}",
        ),
        (
            ["azureml", "--compute", "c", *IMAGE, "--gpus-per-node", "1", "--sweep", "a=1", "--", "{a}"],
            "option-missing", "--objective",
        ),
        (
            ["azureml", "--compute", "c", *IMAGE, "--gpus-per-node", "1", "--sweep", "a=uniform(2,1)", "--objective",
             "maximize:f1", "--", "{a}"],
            "option-value", "uniform(2,1)",
        ),
        (
            ["azureml", "--compute", "c", *IMAGE, "--gpus-per-node", "1", "--sweep", 'a=1,"`id`', "--objective",
             "maximize:f1", "--", "{a}"],
            "option-value", "$",
        ),
        (["lsf", "--", "x"], "option-choice", "'lsf'"),
        (["--nodes", "2"], "option-missing", "scheduler"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(argv: list[str], code: Code, fact: str) -> None:
    with refused(code, fact):
        result("submit", *argv)


@pytest.mark.parametrize(
    ("option", "own"),
    [
        ("nodes=4", "--nodes"),
        ("ntasks=4", "--processes-per-node"),
        ("ntasks-per-node=4", "--processes-per-node"),
        ("cpus-per-task=4", "--cpus"),
        ("gpus-per-node=4", "--gpus-per-node"),
        ("time=5", "--time-limit"),
        ("signal=B:USR2@9", "--stop-seconds"),
        ("array=0-3", "--array"),
        ("arr=0-3", "--array"),
        ("requeue", "--requeues"),
        ("no-requeue", "--requeues"),
        ("open-mode=truncate", "omit it"),
    ],
)
def test_options_on_which_the_script_depends_are_refused(option: str, own: str) -> None:
    with refused("option-conflict", f"--option {option}", own):
        result("submit", "slurm", "--gpus-per-node", "1", "--option", option, "--", "x")


def test_other_options_and_commands_that_run_on_every_node_are_accepted() -> None:
    options = ["nodelist=a", "mail-type=END", "error=x.err", "time-min=1", "ntasks-per-core=1", "mem-per-cpu=1G"]
    script = rendered(["slurm", "--gpus-per-node", "1", "--option", *options, "--", "x"])
    assert [option for option in options if f"#SBATCH --{option}\n" not in script] == []
    for command in (["bertbench", "tune", "squad"], ["bertbench", "doctor"], ["bertbench"], ["throughput"]):
        rendered(["slurm", "--launcher", "none", "--nodes", "2", "--", *command])
    rendered(["slurm", "--launcher", "none", "--", "bertbench", "throughput"])


def test_the_type_of_a_gpu_is_one_word_of_the_script(tmp_path: Path) -> None:
    argv = ["slurm", "--gpus-per-node", "1", "--gpu-type", "a|touch", "--chdir", str(tmp_path), "--", "x"]
    words = shlex.split(next(line for line in rendered(argv).splitlines() if line.startswith("srun")))
    assert "--gpus-per-node=a|touch:1" in words
    bare = shlex.shlex(f"srun {' '.join(words)}", punctuation_chars=True)
    assert "|" in list(bare), "unquoted, it would be a pipe"


def test_the_command_to_submit_can_be_pasted(tmp_path: Path) -> None:
    out = tmp_path / "a b;id.sbatch"
    said = result("submit", "slurm", "--gpus-per-node", "1", "--out", out, "--", "x").notes[-1]
    assert shlex.split(said.partition("to submit: ")[2]) == ["sbatch", str(out)]


@pytest.mark.parametrize(("scheduler", "extra"), [
    ("slurm", []), ("kubernetes", IMAGE), ("azureml", ["--compute", "c", *IMAGE]),
])  # fmt: skip
def test_submitting_without_the_tool_names_the_remedy(
    scheduler: str, extra: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with refused("tool-missing", load_scheduler(scheduler).tool, "--out FILE"):
        result("submit", scheduler, *extra, "--gpus-per-node", "1", "--submit", "--", "x")
    assert list(tmp_path.iterdir()) == []


def test_submitting_writes_the_file_and_calls_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho "got $1"; exit "${CODE:-0}"\n', encoding="utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    argv = ["slurm", "--gpus-per-node", "1", "--log-dir", "logs", "--submit", "--", "train.py"]
    assert text(result("submit", *argv).blocks) == "got bertbench.sbatch"
    assert (tmp_path / "logs").is_dir()
    monkeypatch.setenv("CODE", "3")
    done = result("submit", *argv)
    assert done.code == 1 and "exit code 3" in done.problems[-1] and "got bertbench.sbatch" in done.problems[-1]


def test_the_folder_of_the_logs_is_there_when_the_script_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["slurm", "--gpus-per-node", "1", "--log-dir", "logs/squad"]
    assert "mkdir -p logs/squad" in result("submit", *argv, "--", "train.py").notes[-1]
    result("submit", *argv, "--out", "squad.sbatch", "--", "train.py")
    assert (tmp_path / "logs" / "squad").is_dir()
    assert not [note for note in result("submit", *argv, "--", "train.py").notes if "mkdir" in note]


def test_setup_lines_may_read_variables_that_are_not_set_and_end_the_job_where_they_fail(
    tmp_path: Path,
) -> None:
    script = tmp_path / "job.sbatch"

    def run(*setup: str) -> subprocess.CompletedProcess[str]:
        argv = [
            "slurm",
            "--launcher",
            "none",
            "--chdir",
            str(tmp_path),
            "--setup",
            *setup,
            "--",
            "sh",
            "-c",
            "echo ran",
        ]
        script.write_text(rendered(argv), encoding="utf-8")
        return subprocess.run(["bash", str(script)], env=fakes(tmp_path), capture_output=True, text=True)

    done = run('PS1="(env) $PS1"', "export FOUND=${CONDA_PREFIX}x", '[[ -z "$MODULEPATH" ]]')
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert "\nset +u\n" in script.read_text() and "\nset -u\n" in script.read_text()
    failed = run("false")
    assert failed.returncode == 1 and failed.stdout == ""


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine.sh"
    mine.write_text("precious\n", encoding="utf-8")
    with refused("folder-occupied", mine):
        result("submit", "slurm", "--gpus-per-node", "1", "--out", mine, "--", "train.py")
    assert mine.read_text(encoding="utf-8") == "precious\n"
    for word in ("a", "b"):
        result("submit", "slurm", "--gpus-per-node", "1", "--out", tmp_path / "job", "--", word)
    assert "--no-python" in (tmp_path / "job").read_text(encoding="utf-8")


def test_a_secret_in_the_file_is_noticed() -> None:
    done = result("submit", "slurm", "--gpus-per-node", "1", "--env", "HF_TOKEN=abc", "--", "train.py")
    assert "HF_TOKEN" in done.notes[-1]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("48:00:00", 172800),
        ("1:30", 90),
        ("12:00:00", 43200),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("2-01:02:03", 176523),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(given: str, seconds: int) -> None:
    assert time_limit_seconds(given) == seconds


def test_words() -> None:
    assert kubernetes_memory("64G") == "64Gi"
    assert places(["--x={lr}", '{"json": 1}', "{B}"]) == {"lr"}
    assert fill("a{x}b{y}", ["x"], quote, lambda name: f"<{name}>") == "a<x>'b{y}'"
    assert quote("a\nb'") == "$'a\\x0ab\\''"


def test_every_scheduler_has_a_line_of_help() -> None:
    shown = text(result("submit", "--help").blocks)
    assert [name for name in SCHEDULERS if f"  {name}" not in shown] == []


def test_a_swept_value_reaches_the_command_as_it_was_written() -> None:
    found = _distribution("a", "1,-2,0.5,1e-5,0.10,007,3.10,x")
    assert found["values"] == [1, -2, 0.5, 1e-5, "0.10", "007", "3.10", "x"]
