"""build_image.sh, start_container.sh and the entrypoint, with fake engines that record how they are called."""

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("bash", "dirname", "env", "git", "grep", "id", "mkdir", "realpath", "sed")

ENGINE = """#!{bash}
case $1 in
    --version) echo "{name} version 5" ;;
    ps) [[ -z $PS_ERROR ]] || {{ echo "$PS_ERROR" >&2; exit 1; }} ;;
    info)
        case $3 in
            *Runtimes*) echo "$RUNTIMES" ;;
            *CDISpecDirs*) [[ -n $CDI_DIRS ]] || exit 1; echo "$CDI_DIRS" ;;
            *SecurityOptions*) echo "$SECURITY" ;;
        esac ;;
    image) [[ $2 == inspect && " $IMAGES " == *" $3 "* ]] ;;
    *) printf '%s\\n' {program} "$@" >"$CALL"; exit 7 ;;
esac
"""
NVIDIA_RUNTIME = '{"io.containerd.runc.v2":{},"nvidia":{}}'


@dataclass
class Host:
    """A machine made of a folder: its PATH, its state, and what its engine was asked to run."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        self.work = self.folder / "work"
        self.work.mkdir()
        self.call_file = self.folder / "call"
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, f"these tests need {tool}"
            (self.bin / tool).symlink_to(found)
        self.variables = {"IMAGES": "bertbench:cuda bertbench:cpu", "RUNTIMES": "{}", "CDI_DIRS": "null"}
        self.variables["CDI_SPEC_DIRS"] = str(self.folder / "cdi")

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def engine(self, name: str, really: str | None = None, error: str | None = None) -> None:
        text = ENGINE.format(bash=shutil.which("bash"), name=really or name, program=name)
        if error is not None:
            text = text.replace("\n", f"\nPS_ERROR='{error}'\n", 1)
        self.program(name, text)

    def gpu(self) -> None:
        self.program(
            "nvidia-smi", f"#!{shutil.which('bash')}\n[[ $1 == -L ]] && echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\n"
        )

    def cdi(self) -> None:
        (self.folder / "cdi").mkdir()
        (self.folder / "cdi" / "nvidia.yaml").write_text(
            'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\n', encoding="utf-8"
        )

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        own = {"PATH": str(self.bin), "CALL": str(self.call_file), "HOME": str(self.folder)}
        return {**own, **self.variables, **extra}

    def run(self, script: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "bash"), str(ROOT / script), *arguments]
        return subprocess.run(
            command,
            cwd=self.work,
            env=self.environment(extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def call(self) -> list[str]:
        """The words of the engine's call, the engine's name first; fails when there was none."""
        return self.call_file.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def option(words: list[str], name: str) -> list[str]:
    """All values of an option."""
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def refused(outcome: subprocess.CompletedProcess[str], *texts: str) -> None:
    """The last line of stderr is one message with all of `texts`; exit code 2; nothing on stdout."""
    assert (outcome.returncode, outcome.stdout) == (2, "")
    message = outcome.stderr.splitlines()[-1]
    assert [text for text in texts if text not in message] == [], message


# ---- the engine, the same for both scripts ----

SCRIPTS = {"build_image.sh": [], "start_container.sh": ["data"]}


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_engine_says_what_to_install(host: Host, script: str) -> None:
    refused(host.run(script, *SCRIPTS[script]), "no container engine", "docs.docker.com", "podman.io", "make setup")


@pytest.mark.parametrize("script", SCRIPTS)
def test_permission_denied_names_the_group(host: Host, script: str) -> None:
    host.engine("docker")
    error = "permission denied while trying to connect to the Docker daemon socket"
    refused(host.run(script, *SCRIPTS[script], PS_ERROR=error), "may not use docker", "usermod", error)
    assert not host.call_file.exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_engine_that_does_not_answer_says_how_to_start_it(host: Host, script: str) -> None:
    host.engine("docker")
    error = "Cannot connect to the Docker daemon"
    refused(host.run(script, *SCRIPTS[script], PS_ERROR=error), "does not answer", "systemctl start docker", error)


@pytest.mark.parametrize("script", SCRIPTS)
def test_unknown_engine_is_refused(host: Host, script: str) -> None:
    refused(host.run(script, *SCRIPTS[script], ENGINE="lxc"), "ENGINE=lxc", "docker", "podman")


@pytest.mark.parametrize("script", SCRIPTS)
def test_first_engine_that_answers_is_used(host: Host, script: str) -> None:
    host.engine("docker", error="down")
    host.engine("podman")
    assert host.run(script, *SCRIPTS[script]).returncode == 7
    assert host.call()[0] == "podman"


@pytest.mark.parametrize("script", SCRIPTS)
def test_docker_is_used_where_both_answer(host: Host, script: str) -> None:
    host.engine("docker")
    host.engine("podman")
    host.run(script, *SCRIPTS[script])
    assert host.call()[0] == "docker"


@pytest.mark.parametrize("script", SCRIPTS)
def test_reason_of_the_first_engine_is_told_where_none_answers(host: Host, script: str) -> None:
    host.engine("docker", error="docker is asleep")
    host.engine("podman", error="podman is asleep")
    refused(host.run(script, *SCRIPTS[script]), "docker is installed", "docker is asleep")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_engine_is_chosen_by_environment(host: Host, script: str, engine: str) -> None:
    host.engine("docker")
    host.engine("podman")
    host.run(script, *SCRIPTS[script], ENGINE=engine)
    assert host.call()[0] == engine


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_no_engine_and_names_every_variable(host: Host, script: str) -> None:
    outcome = host.run(script, "--help")
    assert outcome.returncode == 0
    text = (ROOT / script).read_text(encoding="utf-8") + (ROOT / "docker/engine.sh").read_text(encoding="utf-8")
    read = set(re.findall(r"\$\{([A-Z_]{3,})[:+-]", text)) - {"BASH_SOURCE", "ENGINE_ERROR"}
    assert len(read) >= 4
    assert [name for name in sorted(read) if name not in outcome.stdout] == []
    assert "set -euo pipefail" not in outcome.stdout


# ---- build_image.sh ----


def test_build_targets_cuda(host: Host) -> None:
    host.engine("docker")
    assert host.run("build_image.sh").returncode == 7
    words = host.call()
    assert words[:2] == ["docker", "build"]
    assert option(words, "--target") == ["cuda"]
    assert option(words, "--tag") == ["bertbench:cuda"]
    assert option(words, "--file") == [str(ROOT / "docker/Dockerfile")]
    assert words[-1] == str(ROOT)


def test_build_cpu_with_every_option(host: Host) -> None:
    host.engine("docker")
    host.run("build_image.sh", "--cpu", IMAGE="mine:1", BASE_IMAGE="debian:x", TORCH_INDEX="https://index/cpu")
    words = host.call()
    assert option(words, "--target") == ["cpu"]
    assert option(words, "--tag") == ["mine:1"]
    assert {"CPU_IMAGE=debian:x", "TORCH_INDEX=https://index/cpu"} <= set(option(words, "--build-arg"))


def test_build_base_image_of_cuda(host: Host) -> None:
    host.engine("docker")
    host.run("build_image.sh", BASE_IMAGE="nvidia/cuda:y")
    assert "CUDA_IMAGE=nvidia/cuda:y" in option(host.call(), "--build-arg")


def test_build_labels_the_revision(host: Host) -> None:
    host.engine("docker")
    host.program("git", f"#!{shutil.which('bash')}\n[[ $* == *rev-parse* ]] && echo abc123\n")
    host.run("build_image.sh")
    assert option(host.call(), "--build-arg") == ["REVISION=abc123"]


def test_build_outside_of_a_checkout(host: Host) -> None:
    host.engine("docker")
    host.program("git", f"#!{shutil.which('bash')}\nexit 128\n")
    host.run("build_image.sh")
    assert option(host.call(), "--build-arg") == []


def test_build_print_runs_nothing(host: Host) -> None:
    host.engine("docker")
    outcome = host.run("build_image.sh", "--print", PS_ERROR="down", IMAGE="a b")
    assert outcome.returncode == 0
    assert outcome.stdout.startswith("docker build ")
    assert r"--tag a\ b" in outcome.stdout
    assert not host.call_file.exists()


def test_build_refuses_other_arguments(host: Host) -> None:
    refused(host.run("build_image.sh", "gpu"), "'gpu'", "usage")


def test_dockerfile_has_what_the_script_gives_it() -> None:
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    assert {"CUDA_IMAGE", "CPU_IMAGE", "TORCH_INDEX", "REVISION"} == set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    stages = re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE)
    assert {"cuda", "cpu"} <= set(stages)
    assert stages[-1] == "cuda"
    assert set(re.findall(r"^USER (.+)$", text, re.MULTILINE)) == {"10001"}
    wanted = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ranges = set(re.findall(r"'(torch[^']+)'", text))
    assert len(ranges) == 1
    assert f'"{ranges.pop()}"' in wanted


# ---- start_container.sh ----


def start(host: Host, *arguments: str, **extra: str) -> list[str]:
    """Start a container and return the words of the engine's call."""
    outcome = host.run("start_container.sh", *arguments, **extra)
    assert outcome.returncode == 7, outcome.stderr
    return host.call()


def test_start_mounts_data_and_runs_and_passes_the_command_on(host: Host) -> None:
    host.engine("docker")
    (host.work / "my data").mkdir()
    words = start(host, "my data", "bertbench", "data", "a b", "--json")
    assert words[:3] == ["docker", "run", "--rm"]
    assert words[-5:] == ["bertbench:cpu", "bertbench", "data", "a b", "--json"]
    assert option(words, "--mount") == [
        f"type=bind,source={host.work}/my data,target=/data",
        f"type=bind,source={host.work}/runs,target=/workspace/runs",
    ]
    assert (host.work / "runs").is_dir()
    assert "--tty" not in words
    assert "--privileged" not in words


def test_start_creates_folders_and_says_so(host: Host) -> None:
    host.engine("docker")
    outcome = host.run("start_container.sh", "new/data", RUNS_DIR="new/runs")
    assert (host.work / "new/data").is_dir()
    assert (host.work / "new/runs").is_dir()
    assert f"created DATA_DIR {host.work}/new/data" in outcome.stderr
    assert f"created RUNS_DIR {host.work}/new/runs" in outcome.stderr


def test_start_keeps_quiet_about_folders_that_exist(host: Host) -> None:
    host.engine("docker")
    (host.work / "runs").mkdir()
    assert "created" not in host.run("start_container.sh", ".").stderr


def test_start_runs_as_the_caller_without_limits_on_locked_memory(host: Host) -> None:
    host.engine("docker")
    words = start(host, "data")
    assert option(words, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert option(words, "--ulimit") == ["memlock=-1", "stack=67108864"]
    assert option(words, "--ipc") == ["host"]


def test_start_with_private_shared_memory(host: Host) -> None:
    host.engine("docker")
    words = start(host, "data", SHM_SIZE="16g")
    assert option(words, "--shm-size") == ["16g"]
    assert "--ipc" not in words


def test_start_passes_gpus_by_the_nvidia_runtime(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    words = start(host, "data", RUNTIMES=NVIDIA_RUNTIME)
    assert option(words, "--gpus") == ["all"]
    assert words[-1] == "bertbench:cuda"


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_start_passes_gpus_by_cdi(host: Host, engine: str) -> None:
    host.engine(engine)
    host.gpu()
    host.cdi()
    words = start(host, "data", CDI_DIRS='["/etc/cdi","/var/run/cdi"]')
    assert option(words, "--device") == ["nvidia.com/gpu=all"]
    assert "--gpus" not in words


@pytest.mark.parametrize("folders", ["null", "[]", ""])
def test_start_does_not_use_cdi_where_docker_has_it_off(host: Host, folders: str) -> None:
    host.engine("docker")
    host.gpu()
    host.cdi()
    words = start(host, "data", CDI_DIRS=folders)
    assert "--device" not in words


def test_start_without_toolkit_says_cpu_only_and_why(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    outcome = host.run("start_container.sh", "data")
    assert outcome.returncode == 7
    assert "CPU only: docker has neither the NVIDIA runtime nor a CDI specification" in outcome.stderr
    assert "container-toolkit" in outcome.stderr
    assert not {"--gpus", "--device"} & set(host.call())


def test_start_without_gpu_says_cpu_only(host: Host) -> None:
    host.engine("docker")
    outcome = host.run("start_container.sh", "data", RUNTIMES=NVIDIA_RUNTIME)
    assert "CPU only: nvidia-smi lists no GPU" in outcome.stderr
    assert "--gpus" not in host.call()


def test_start_with_a_failing_nvidia_smi_is_cpu_only(host: Host) -> None:
    host.engine("docker")
    host.program("nvidia-smi", f"#!{shutil.which('bash')}\necho 'NVIDIA-SMI has failed' ; exit 9\n")
    assert "--gpus" not in start(host, "data", RUNTIMES=NVIDIA_RUNTIME)


def test_start_gpus_all_insists(host: Host) -> None:
    host.engine("docker")
    assert option(start(host, "data", GPUS="all", RUNTIMES=NVIDIA_RUNTIME), "--gpus") == ["all"]


def test_start_gpus_all_fails_where_the_engine_cannot(host: Host) -> None:
    host.engine("podman")
    host.gpu()
    refused(host.run("start_container.sh", "data", GPUS="all"), "GPUS=all", "podman", "Container Toolkit")


def test_start_gpus_none_leaves_them_out(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    outcome = host.run("start_container.sh", "data", GPUS="none", RUNTIMES=NVIDIA_RUNTIME)
    assert "CPU only: GPUS=none" in outcome.stderr
    assert "--gpus" not in host.call()


def test_start_refuses_other_gpus(host: Host) -> None:
    host.engine("docker")
    refused(host.run("start_container.sh", "data", GPUS="2"), "GPUS=2", "auto, all or none")


@pytest.mark.parametrize("devices", ["0,1", "GPU-8932f937", "MIG-1c2d", ""])
def test_start_passes_visible_devices_on(host: Host, devices: str) -> None:
    host.engine("docker")
    words = start(host, "data", CUDA_VISIBLE_DEVICES=devices)
    assert option(words, "--env") == [f"CUDA_VISIBLE_DEVICES={devices}"]


def test_start_sets_no_visible_devices_of_its_own(host: Host) -> None:
    host.engine("docker")
    assert "--env" not in start(host, "data")


def test_start_under_rootless_docker(host: Host) -> None:
    host.engine("docker")
    words = start(host, "data", SECURITY='["name=seccomp,profile=builtin","name=rootless"]')
    assert option(words, "--user") == ["0:0"]
    assert "--ulimit" not in words


def test_start_under_rootless_podman(host: Host) -> None:
    host.engine("podman")
    host.program("id", f"#!{shutil.which('bash')}\n[[ $1 == -u ]] && echo 1000 || echo 100\n")
    words = start(host, "data")
    assert option(words, "--user") == ["1000:100"]
    assert option(words, "--userns") == ["keep-id"]
    assert option(words, "--ulimit") == ["host"]
    assert option(words, "--security-opt") == ["label=disable"]


def test_start_under_podman_as_root(host: Host) -> None:
    host.engine("podman")
    host.program("id", f"#!{shutil.which('bash')}\necho 0\n")
    words = start(host, "data")
    assert option(words, "--user") == ["0:0"]
    assert "--userns" not in words
    assert option(words, "--ulimit") == ["memlock=-1", "stack=67108864"]


def test_start_sees_podman_behind_the_name_docker(host: Host) -> None:
    host.engine("docker", really="podman")
    host.gpu()
    host.cdi()
    words = start(host, "data")
    assert option(words, "--security-opt") == ["label=disable"]
    assert option(words, "--device") == ["nvidia.com/gpu=all"]


@pytest.mark.parametrize(("gpus", "remedy"), [("all", "bash build_image.sh"), ("none", "bash build_image.sh --cpu")])
def test_start_without_image_says_how_to_build_it(host: Host, gpus: str, remedy: str) -> None:
    host.engine("docker")
    outcome = host.run("start_container.sh", "data", GPUS=gpus, RUNTIMES=NVIDIA_RUNTIME, IMAGES="")
    refused(outcome, "not found", "bertbench:")
    assert outcome.stderr.endswith(f"build it with: {remedy}\n")
    assert not (host.work / "data").exists()


def test_start_with_an_image_of_ones_own(host: Host) -> None:
    host.engine("docker")
    assert start(host, "data", "id", IMAGE="mine:1", IMAGES="mine:1")[-2:] == ["mine:1", "id"]


def test_start_print_runs_and_creates_nothing(host: Host) -> None:
    host.engine("docker")
    outcome = host.run("start_container.sh", "--print", "my data", "sh", "-c", "a b", PS_ERROR="down", IMAGES="")
    assert outcome.returncode == 0
    assert outcome.stdout.startswith("docker run ")
    assert outcome.stdout.endswith("bertbench:cpu sh -c a\\ b\n")
    assert list(host.work.iterdir()) == []
    assert not host.call_file.exists()


@pytest.mark.parametrize("arguments", [[], ["--print"], [""]])
def test_start_needs_a_data_folder(host: Host, arguments: list[str]) -> None:
    refused(host.run("start_container.sh", *arguments), "no DATA_DIR given", "usage")


def test_start_refuses_unknown_options(host: Host) -> None:
    refused(host.run("start_container.sh", "--gpu", "data"), "unknown option '--gpu'", "usage")


def test_start_refuses_a_file_as_data(host: Host) -> None:
    host.engine("docker")
    (host.work / "book.txt").write_text("x", encoding="utf-8")
    refused(host.run("start_container.sh", "book.txt"), "DATA_DIR 'book.txt' is a file", "give a folder")


def test_start_refuses_a_file_as_runs(host: Host) -> None:
    host.engine("docker")
    (host.work / "runs").write_text("x", encoding="utf-8")
    refused(host.run("start_container.sh", "data"), "RUNS_DIR 'runs' is a file")


def test_start_says_when_a_folder_cannot_be_created(host: Host) -> None:
    host.engine("docker")
    (host.work / "file").write_text("x", encoding="utf-8")
    refused(host.run("start_container.sh", "file/data"), "DATA_DIR 'file/data'", "cannot be created")


@pytest.mark.parametrize("name", ["a,b", 'a"b'])
def test_start_refuses_a_path_that_mount_cannot_take(host: Host, name: str) -> None:
    host.engine("docker")
    refused(host.run("start_container.sh", name), "comma or a quote")
    assert list(host.work.iterdir()) == []


def test_start_on_a_terminal_is_a_terminal(host: Host) -> None:
    host.engine("docker")
    master, slave = pty.openpty()
    try:
        command = [str(host.bin / "bash"), str(ROOT / "start_container.sh"), "data"]
        code = subprocess.run(
            command, cwd=host.work, env=host.environment({}), stdin=slave, stdout=slave, check=False, timeout=30
        ).returncode
    finally:
        os.close(master)
        os.close(slave)
    assert code == 7
    assert {"--interactive", "--tty"} <= set(host.call())


# ---- docker/entrypoint.sh ----


def enter(tmp_path: Path, variables: Mapping[str, str], runs: bool = True) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "workspace" / "docker"
    folder.mkdir(parents=True)
    if runs:
        (folder.parent / "runs").mkdir()
    shutil.copy(ROOT / "docker/entrypoint.sh", folder)
    return subprocess.run(
        ["bash", str(folder / "entrypoint.sh"), "bash", "-c", 'echo "$HOME|$USER|$LOGNAME|$1"; exit 5', "x", "a b"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_entrypoint_becomes_the_command(tmp_path: Path) -> None:
    outcome = enter(tmp_path, {"HOME": str(tmp_path), "USER": "ada", "LOGNAME": "ada"})
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (5, f"{tmp_path}|ada|ada|a b\n", "")


def test_entrypoint_gives_a_home_and_a_name(tmp_path: Path) -> None:
    outcome = enter(tmp_path, {"HOME": "/", "TMPDIR": str(tmp_path)})
    home, user, logname, _ = outcome.stdout.split("|")
    assert home == f"{tmp_path}/home-{os.getuid()}"
    assert os.access(home, os.W_OK)
    assert user == logname != ""


def test_entrypoint_warns_when_runs_cannot_be_written(tmp_path: Path) -> None:
    outcome = enter(tmp_path, {"HOME": str(tmp_path)}, runs=False)
    assert outcome.returncode == 5
    assert "cannot be written" in outcome.stderr
