"""start_container.sh: its arguments, the folders it mounts, and what it passes on from this machine."""

import re
import shlex
from pathlib import Path

import pytest
from hosts import BASH, NVIDIA_RUNTIME, ROOT, Host, on_terminal, option, refused

SCRIPT = "start_container.sh"


@pytest.fixture(autouse=True)
def docker(host: Host) -> None:
    host.engine("docker")


def start(host: Host, *arguments: str, **extra: str) -> list[str]:
    """Start a container and return the words of the engine's call."""
    outcome = host.run(SCRIPT, *arguments, **extra)
    assert outcome.returncode == 0, outcome.stderr
    return host.call()


def inside(words: list[str]) -> list[str]:
    """The command that runs in the container."""
    return words[words.index("bertbench:cpu") + 1 :]


def notes(host: Host, *arguments: str, unprivileged: bool = False, **extra: str) -> str:
    outcome = host.run(SCRIPT, *arguments, unprivileged=unprivileged, **extra)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stderr


# ---- arguments ----


def test_data_and_runs_are_mounted_and_the_command_is_passed_on(host: Host) -> None:
    words = start(host, "my data", "bertbench", "data", "a b", "--json", "")
    assert words[:4] == ["docker", "run", "--rm", "--interactive"]
    assert inside(words) == ["bertbench", "data", "a b", "--json", ""]
    assert option(words, "--mount") == [
        f"type=bind,source={host.work}/my data,target=/data",
        f"type=bind,source={host.work}/runs,target=/workspace/runs",
    ]


def test_without_a_command_the_image_gives_its_own(host: Host) -> None:
    assert inside(start(host, "data")) == []


@pytest.mark.parametrize(
    ("arguments", "folder", "command"),
    [
        (["--", "data", "id"], "data", ["id"]),
        (["data", "--", "id"], "data", ["id"]),
        (["--", "data", "--", "id", "--", "x"], "data", ["id", "--", "x"]),
        (["data", "--", "--version"], "data", ["--version"]),
        (["--", "-data", "id"], "-data", ["id"]),
        (["data", "--"], "data", []),
        (["data", "id", "--help"], "data", ["id", "--help"]),
        (["data", "--", "--", "id"], "data", ["--", "id"]),
    ],
)
def test_two_dashes_end_the_options(host: Host, arguments: list[str], folder: str, command: list[str]) -> None:
    words = start(host, *arguments)
    assert option(words, "--mount")[0] == f"type=bind,source={host.work}/{folder},target=/data"
    assert inside(words) == command


@pytest.mark.parametrize("flag", ["--profiling", "--print", "--help", "--gpus", "-x"])
def test_option_after_the_data_folder_is_refused(host: Host, flag: str) -> None:
    outcome = host.run(SCRIPT, "data", flag)
    refused(outcome, f"option '{flag}' stands after DATA_DIR", "come before it", "after --", "usage")
    assert list(host.work.iterdir()) == []


@pytest.mark.parametrize("flag", ["--gpu", "-v", "--print=yes", "-"])
def test_unknown_option_is_refused(host: Host, flag: str) -> None:
    refused(host.run(SCRIPT, flag, "data"), f"unknown option '{flag}'", "usage")


@pytest.mark.parametrize("arguments", [[], ["--print"], ["--profiling"], ["--"], [""], ["", "id"]])
def test_no_data_folder_is_refused(host: Host, arguments: list[str]) -> None:
    refused(host.run(SCRIPT, *arguments), "no DATA_DIR given", "usage")
    assert not host.called()


def test_exit_code_is_the_commands(host: Host) -> None:
    assert host.run(SCRIPT, "data", FAKE_EXIT="42").returncode == 42


def test_print_runs_and_creates_nothing_and_can_be_pasted(host: Host) -> None:
    command = ["my data", "sh", "-c", "a 'b' $c"]
    outcome = host.run(SCRIPT, "--print", *command, FAKE_IMAGES="")
    assert outcome.returncode == 0
    assert outcome.stdout.count("\n") == 1
    assert list(host.work.iterdir()) == []
    assert not host.called()
    assert shlex.split(outcome.stdout) == start(host, *command)


def test_a_terminal_is_passed_on(host: Host) -> None:
    command = [BASH, str(ROOT / SCRIPT), "data"]
    code, shown = on_terminal(command, host.work, host.variables)
    assert code == 0, shown
    assert {"--interactive", "--tty"} <= set(host.call())


def test_half_a_terminal_is_none(host: Host) -> None:
    command = [BASH, str(ROOT / SCRIPT), "data"]
    code, shown = on_terminal(command, host.work, host.variables, output=False)
    assert code == 0, shown
    assert "--tty" not in host.call()
    assert "--tty" not in start(host, "data")


# ---- folders ----


def test_folders_are_created_and_that_is_said(host: Host) -> None:
    said = notes(host, "new/data", RUNS_DIR="new runs/here")
    assert (host.work / "new/data").is_dir()
    assert (host.work / "new runs/here").is_dir()
    assert f"DATA_DIR {host.work}/new/data does not exist: creating it\n" in said
    assert f"RUNS_DIR {host.work}/new runs/here does not exist: creating it\n" in said
    assert option(host.call(), "--mount")[1] == f"type=bind,source={host.work}/new runs/here,target=/workspace/runs"


def test_creating_is_said_before_it_is_done(host: Host) -> None:
    (host.work / "file").touch()
    outcome = host.run(SCRIPT, "file/data")
    assert "does not exist: creating it" in outcome.stderr.splitlines()[-2]
    refused(outcome, "DATA_DIR 'file/data' does not exist and cannot be created")
    assert not host.called()


def test_folders_that_exist_are_not_spoken_of(host: Host) -> None:
    (host.work / "runs").mkdir()
    assert "_DIR" not in notes(host, ".")
    assert host.calls("chown") == []


def test_absolute_data_folder_and_link(host: Host, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (host.work / "link").symlink_to(tmp_path / "a b")
    for name in (str(tmp_path / "a b"), "link", f"{tmp_path}/x/../a b/"):
        assert option(start(host, name), "--mount")[0] == f"type=bind,source={tmp_path}/a b,target=/data"


def test_file_as_data_is_refused(host: Host) -> None:
    (host.work / "book.txt").touch()
    refused(host.run(SCRIPT, "book.txt"), "DATA_DIR 'book.txt' is a file", "give a folder")


def test_file_as_runs_is_refused(host: Host) -> None:
    (host.work / "runs").touch()
    refused(host.run(SCRIPT, "data"), "RUNS_DIR 'runs' is a file")
    refused(host.run(SCRIPT, "--print", "data"), "RUNS_DIR 'runs' is a file")


def test_folder_that_may_not_be_created_is_refused(host: Host) -> None:
    (host.work / "closed").mkdir(mode=0o555)
    outcome = host.run(SCRIPT, "closed/data", unprivileged=True)
    refused(outcome, "DATA_DIR 'closed/data'", "cannot be created", "another folder")


@pytest.mark.parametrize("mode", [0o000, 0o333, 0o666])
def test_data_that_cannot_be_read_is_refused(host: Host, mode: int) -> None:
    (host.work / "data").mkdir()
    (host.work / "data").chmod(mode)
    outcome = host.run(SCRIPT, "data", unprivileged=True)
    refused(outcome, f"DATA_DIR {host.work}/data cannot be read by you", "a folder of yours")
    assert not host.called()
    assert host.run(SCRIPT, "--print", "data", unprivileged=True).returncode == 0


def test_data_that_cannot_be_written_is_only_said(host: Host) -> None:
    (host.work / "data").mkdir(mode=0o555)
    said = notes(host, "data", unprivileged=True)
    assert f"DATA_DIR {host.work}/data is not writable for you: it can be read" in said
    assert host.called()


def test_data_that_can_be_written_is_not_spoken_of(host: Host) -> None:
    assert "not writable" not in notes(host, "data", unprivileged=True)


def test_runs_that_cannot_be_written_are_refused(host: Host) -> None:
    (host.work / "runs").mkdir(mode=0o555)
    outcome = host.run(SCRIPT, "data", unprivileged=True)
    refused(outcome, f"RUNS_DIR {host.work}/runs is not writable for you", "RUNS_DIR=<folder>")
    assert not host.called()
    # It is looked at first: no folder is left behind.
    assert not (host.work / "data").exists()


def test_runs_are_not_needed_writable_to_print(host: Host) -> None:
    (host.work / "runs").mkdir(mode=0o555)
    assert host.run(SCRIPT, "--print", "data", unprivileged=True).returncode == 0


@pytest.mark.parametrize("name", ["a,b", 'a"b'])
def test_path_that_mount_cannot_take_is_refused(host: Host, name: str) -> None:
    for what, outcome in (("DATA", host.run(SCRIPT, name)), ("RUNS", host.run(SCRIPT, "data", RUNS_DIR=name))):
        refused(outcome, f"{what}_DIR '{name}'", "comma or a quote", "rename it")
        # A link would be followed to the same path.
        assert "link" not in outcome.stderr
    assert not (host.work / name).exists()


# ---- image ----


@pytest.mark.parametrize(
    ("gpus", "image", "remedy"),
    [("all", "bertbench:cuda", "bash build_image.sh"), ("none", "bertbench:cpu", "bash build_image.sh --cpu")],
)
def test_missing_image_says_how_to_build_it(host: Host, gpus: str, image: str, remedy: str) -> None:
    outcome = host.run(SCRIPT, "data", GPUS=gpus, FAKE_RUNTIMES=NVIDIA_RUNTIME, FAKE_IMAGES="other:1")
    refused(outcome, f"image {image} not found")
    assert outcome.stderr.endswith(f"build it with: {remedy}\n")
    assert not (host.work / "data").exists()


def test_image_of_ones_own(host: Host) -> None:
    assert start(host, "data", "id", IMAGE="mine:1", FAKE_IMAGES="mine:1")[-2:] == ["mine:1", "id"]
    refused(host.run(SCRIPT, "data", IMAGE="mine:2"), "image mine:2 not found")


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize(("gpus", "flag"), [("all", ""), ("none", " --cpu")])
def test_missing_image_of_ones_own_says_how_to_get_or_build_it(host: Host, engine: str, gpus: str, flag: str) -> None:
    host.engine(engine)
    host.cdi()
    extra = {"ENGINE": engine, "GPUS": gpus, "FAKE_RUNTIMES": NVIDIA_RUNTIME}
    outcome = host.run(SCRIPT, "data", IMAGE="other", **extra)
    refused(outcome, "image other not found", f"{engine} pull other")
    assert outcome.stderr.endswith(f"build it with: IMAGE=other bash build_image.sh{flag}\n")
    assert not host.called()


# ---- what is passed on ----


@pytest.mark.parametrize("devices", ["0,1", "GPU-8932f937", "MIG-1c2d", ""])
def test_visible_devices_are_passed_on(host: Host, devices: str) -> None:
    assert option(start(host, "data", CUDA_VISIBLE_DEVICES=devices), "--env") == [f"CUDA_VISIBLE_DEVICES={devices}"]


def test_settings_of_nccl_gloo_and_openmp_are_passed_on(host: Host) -> None:
    settings = {
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eth0 eth1",
        "NCCL_IB_HCA": "",
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "4",
    }
    assert sorted(option(start(host, "data", **settings), "--env")) == sorted(f"{k}={v}" for k, v in settings.items())


def test_nothing_else_of_the_environment_is_passed_on(host: Host) -> None:
    others = {"CUDA_HOME": "/cuda", "MY_NCCL_DEBUG": "1", "OMP_PLACES": "x", "HF_TOKEN": "secret", "GPUS": "none"}
    words = start(host, "data", **others)
    assert "--env" not in words
    assert "secret" not in " ".join(words)


def test_host_memory_is_shared_unless_a_size_is_given(host: Host) -> None:
    words = start(host, "data")
    assert option(words, "--ipc") == ["host"]
    assert "--shm-size" not in words
    words = start(host, "data", SHM_SIZE="16g")
    assert option(words, "--shm-size") == ["16g"]
    assert "--ipc" not in words


def test_network_is_the_engines_unless_given(host: Host) -> None:
    assert "--network" not in start(host, "data")
    assert option(start(host, "data", NETWORK="host"), "--network") == ["host"]


def test_infiniband_is_passed_on_where_there_is_any(host: Host) -> None:
    assert "InfiniBand" not in notes(host, "data")
    assert "--device" not in host.call()
    host.path_of_host("/dev/infiniband")
    assert "InfiniBand: /dev/infiniband is passed on" in notes(host, "data")
    assert option(host.call(), "--device") == ["/dev/infiniband"]


# ---- nothing that weakens the container ----


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize("flags", [[], ["--profiling"]])
def test_container_is_never_privileged(host: Host, engine: str, flags: list[str]) -> None:
    host.engine(engine)
    host.caller(0, 0)
    host.gpu()
    host.cdi()
    host.path_of_host("/dev/infiniband")
    extra = {"FAKE_RUNTIMES": NVIDIA_RUNTIME, "ENGINE": engine, "NETWORK": "host"}
    words = start(host, *flags, "data", **extra)
    assert not {"--privileged", "--security-opt=seccomp=unconfined", "--pid"} & set(words)
    podmans = ["label=disable"] if engine == "podman" else []
    assert option(words, "--security-opt") == ["no-new-privileges", *podmans]
    assert len(option(words, "--cap-add")) == len(flags)


def test_no_option_of_the_script_is_privileged() -> None:
    text = (ROOT / SCRIPT).read_text(encoding="utf-8")
    assert re.findall(r"--privileged|--cap-add[ =]ALL|unconfined|--pid", text) == []


def test_script_takes_the_folder_of_the_caller_not_of_the_checkout(host: Host) -> None:
    assert option(start(host, "data"), "--mount")[1].startswith(f"type=bind,source={host.work}/runs")
    assert f"source={ROOT}" not in " ".join(host.call())
