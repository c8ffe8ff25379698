"""start_container.sh: what the engine is asked to run on which machine, and what is refused before."""

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hosts import BASH, NVIDIA_RUNTIME, ROOT, SETPRIV, Host, on_terminal, option, options, refused

SCRIPT = "start_container.sh"
TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"
CDI_ON = {"FAKE_CDI_DIRS": '["/etc/cdi","/var/run/cdi"]'}
NVIDIA = {"FAKE_RUNTIMES": NVIDIA_RUNTIME}
ROOTLESS = {"FAKE_SECURITY": '["name=seccomp,profile=builtin","name=rootless","name=cgroupns"]'}
SUDO = {"SUDO_UID": "1234", "SUDO_GID": "5678"}
CDI_DEVICE = ["nvidia.com/gpu=all"]
SAFE = "no-new-privileges"
LIMITS = ["memlock=-1", "stack=67108864"]


@dataclass(frozen=True)
class Machine:
    """What a machine has, as the fake tools answer."""

    engine: str = "docker"
    really: str = ""
    gpu: str | None = None
    """The driver's version; None without GPUs."""
    cdi: bool = False
    hook: bool = False
    root: bool = False
    groups: str = ""
    counters: bool | None = None
    """Whether every user may read the GPUs' counters; None where the driver does not tell."""
    variables: dict[str, str] = field(default_factory=dict)

    def make(self, host: Host) -> dict[str, str]:
        """Set the machine up; return the variables to start with."""
        host.engine(self.engine, really=self.really)
        host.caller(0 if self.root else 1000, 0 if self.root else 100, self.groups)
        if self.gpu is not None:
            host.gpu(self.gpu)
        if self.cdi:
            host.cdi()
        if self.hook:
            host.program("nvidia-container-runtime-hook")
        if self.counters is not None:
            host.driver_lets(self.counters)
        return self.variables


def inside(words: list[str]) -> list[str]:
    """The command that runs in the container."""
    return words[words.index("bertbench:cpu") + 1 :]


# ---- GPUs ----

NEW = "580.65.06"
GPUS = {
    "runtime": (Machine(gpu=NEW, cdi=True, variables={**NVIDIA, **CDI_ON}), {"--gpus": ["all"], "--device": []}),
    "hook without a runtime": (Machine(gpu=NEW, hook=True), {"--gpus": ["all"]}),
    "CDI of docker": (Machine(gpu=NEW, cdi=True, variables=CDI_ON), {"--gpus": [], "--device": CDI_DEVICE}),
    "CDI of podman": (Machine("podman", gpu=NEW, cdi=True), {"--gpus": [], "--device": CDI_DEVICE}),
    "podman named docker": (
        Machine(really="podman", gpu=NEW, cdi=True, variables=NVIDIA),
        {"--gpus": [], "--device": CDI_DEVICE, "--security-opt": [SAFE, "label=disable"]},
    ),
    "podman that knows CDI": (
        Machine("podman", gpu=NEW, cdi=True, variables={"FAKE_VERSION": "4.10.1"}),
        {"--device": CDI_DEVICE},
    ),
    "insisted on": (Machine(variables={"GPUS": "all", **NVIDIA}), {"--gpus": ["all"]}),
}
CPU_ONLY = {
    "no GPU": (Machine(variables=NVIDIA), ["nvidia-smi lists no GPU here"]),
    "not wanted": (Machine(gpu=NEW, variables={"GPUS": "none", **NVIDIA}), ["GPUS=none"]),
    "no toolkit": (
        Machine(gpu=NEW, variables={"FAKE_RUNTIMES": '{"runc":{},"nvidia-other":{}}'}),
        ["docker has neither the NVIDIA runtime nor a CDI specification", TOOLKIT],
    ),
    "docker's CDI off": (Machine(gpu=NEW, cdi=True), ["docker has neither"]),
    "docker's hook for podman": (Machine("podman", gpu=NEW, hook=True, variables=NVIDIA), ["podman has neither"]),
    "no CDI of podman": (
        Machine("podman", gpu=NEW),
        [TOOLKIT, "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"],
    ),
    "old podman": (Machine("podman", gpu=NEW, cdi=True, variables={"FAKE_VERSION": "4.0.2"}), ["4.0.2", "4.1"]),
}  # fmt: skip


@pytest.mark.parametrize("case", GPUS)
def test_gpus_come_into_the_container(host: Host, case: str) -> None:
    machine, wanted = GPUS[case]
    words, said = host.start(SCRIPT, "data", **machine.make(host))
    assert options(words, wanted) == wanted
    assert words[-1] == "bertbench:cuda" and "CPU only" not in said


@pytest.mark.parametrize("case", CPU_ONLY)
def test_a_container_without_gpus_says_why(host: Host, case: str) -> None:
    machine, why = CPU_ONLY[case]
    words, said = host.start(SCRIPT, "data", **machine.make(host))
    assert not {"--gpus", "--device"} & set(words)
    assert words[-1] == "bertbench:cpu"
    (line,) = [line for line in said.splitlines() if "CPU only: " in line]
    assert [text for text in why if text not in line] == []


@pytest.mark.parametrize("smi", ["echo 'NVIDIA-SMI has failed'; exit 9", "echo 'No devices were found'"])
def test_a_driver_that_fails_lists_no_gpu(host: Host, smi: str) -> None:
    host.engine("docker")
    host.program("nvidia-smi", smi)
    assert "nvidia-smi lists no GPU here" in host.start(SCRIPT, "data", **NVIDIA)[1]


def test_cdi_is_looked_for_in_the_folders_given_and_of_nvidia_alone(host: Host) -> None:
    Machine("podman", gpu=NEW, cdi=True).make(host)
    assert "--device" not in host.start(SCRIPT, "data", CDI_SPEC_DIRS=f"{host.folder}/no:{host.work}")[0]
    assert "--device" in host.start(SCRIPT, "data", CDI_SPEC_DIRS=f"{host.folder}/no:{host.folder}/cdi")[0]
    (host.folder / "cdi/nvidia.yaml").write_text("kind: example.com/nic\n", encoding="utf-8")
    assert "--device" not in host.start(SCRIPT, "data")[0]


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_gpus_that_were_insisted_on_or_not_known_are_refused(host: Host, engine: str) -> None:
    Machine(engine, gpu=NEW).make(host)
    refused(host.run(SCRIPT, "data", GPUS="all"), "GPUS=all", f"{engine} has neither", "Container Toolkit")
    refused(host.run(SCRIPT, "data", GPUS="0,1"), "GPUS=0,1", "auto, all or none")
    assert not host.called()


def test_infiniband_is_passed_on_where_there_is_any(host: Host) -> None:
    Machine("podman", gpu=NEW, cdi=True).make(host)
    words, said = host.start(SCRIPT, "data")
    assert option(words, "--device") == CDI_DEVICE and "InfiniBand" not in said
    host.path_of_host("/dev/infiniband")
    words, said = host.start(SCRIPT, "data")
    assert sorted(option(words, "--device")) == ["/dev/infiniband", *CDI_DEVICE]
    assert "InfiniBand: /dev/infiniband is passed on" in said


# ---- the user ----

USERS = {
    "caller": (
        Machine(variables=SUDO),
        {"--user": ["1000:100"], "--ulimit": LIMITS, "--security-opt": [SAFE], "--userns": []},
    ),
    "groups": (Machine(groups="100 27 1005"), {"--group-add": ["100", "27", "1005"]}),
    "sudo": (Machine(root=True, variables=SUDO), {"--user": ["1234:5678"], "--group-add": ["5678"]}),
    "sudo, no group": (
        Machine(root=True, variables={"SUDO_UID": "1234"}),
        {"--user": ["1234:1234"], "--group-add": ["1234"]},
    ),
    "sudo, groups": (
        Machine("podman", root=True, groups="0 7", variables={**SUDO, "FAKE_GROUPS_1234": "5678 27"}),
        {"--group-add": ["5678", "27"]},
    ),
    "root": (Machine(root=True), {"--user": ["0:0"]}),
    "root by sudo": (Machine(root=True, variables={"SUDO_UID": "0", "SUDO_GID": "0"}), {"--user": ["0:0"]}),
    "rootless docker": (
        Machine(variables=ROOTLESS),
        {"--user": ["0:0"], "--security-opt": [SAFE], "--ulimit": [], "--group-add": []},
    ),
    "rootless podman": (
        Machine("podman", groups="100 27"),
        {
            "--user": ["1000:100"], "--userns": ["keep-id"], "--ulimit": ["host"], "--group-add": ["keep-groups"],
            "--security-opt": [SAFE, "label=disable"],
        },
    ),
    "runc keeps no groups": (
        Machine("podman", groups="100 27", variables={"FAKE_OCI_RUNTIME": "runc"}),
        {"--group-add": []},
    ),
    "podman of root": (
        Machine("podman", root=True, variables={"SUDO_UID": "1234"}),
        {
            "--user": ["1234:1234"], "--userns": [], "--ulimit": LIMITS, "--group-add": ["1234"],
            "--security-opt": [SAFE, "label=disable"],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", USERS)
def test_the_command_runs_as_who_called(host: Host, case: str) -> None:
    machine, wanted = USERS[case]
    words, _ = host.start(SCRIPT, "data", **machine.make(host))
    assert options(words, wanted) == wanted
    assert host.calls("chown") == []


def test_the_group_is_given_where_others_are_unknown(host: Host) -> None:
    host.engine("docker")
    host.program("id", "case $1 in -u) echo 1000 ;; -g) echo 100 ;; *) exit 1 ;; esac")
    assert option(host.start(SCRIPT, "data")[0], "--group-add") == ["100"]


def test_under_sudo_folders_are_made_and_judged_as_who_called(host: Host) -> None:
    Machine(root=True).make(host)
    _, said = host.start(SCRIPT, "new/data", **SUDO)
    runs, data = f"{host.work}/runs", f"{host.work}/new/data"
    calls = host.calls("setpriv")
    assert {tuple(call[:6]) for call in calls} == {("--reuid", "1234", "--regid", "5678", "--groups", "5678")}
    made = [["mkdir", "-p", "--", path] for path in (runs, data)]
    assert [call[6:] for call in calls if call[6] == "mkdir"] == made
    judged = [["test", "-w", runs], *(["test", f"-{right}", data] for right in "rxw")]
    assert [call[6:] for call in calls if call[6] == "test"] == judged
    assert Path(runs).is_dir() and Path(data).is_dir() and host.calls("chown") == []
    assert "called by sudo: the command runs as 1234:5678" in said


def test_under_sudo_folders_that_the_caller_cannot_make_are_made_by_root_and_given(host: Host) -> None:
    Machine(root=True).make(host)
    host.program("setpriv", '[[ " $* " != *" mkdir "* ]] || exit 1\n' + SETPRIV)
    host.start(SCRIPT, "new/data", **SUDO)
    assert host.calls("chown") == [["1234:5678", f"{host.work}/runs"], ["1234:5678", f"{host.work}/new/data"]]
    (host.work / "runs").rmdir()
    host.call_file.unlink()
    host.program("chown", "exit 1")
    refused(host.run(SCRIPT, "new/data", **SUDO), "RUNS_DIR 'runs'", "cannot be created")
    assert not host.called()


def really_root(folder: Path) -> Host:
    """A machine on which the user really changes."""
    host = Host(folder)
    Machine(root=True).make(host)
    assert all(host.real(tool) for tool in ("chown", "setpriv", "test"))
    return host


def test_under_sudo_really(open_folder: Path) -> None:
    host = really_root(open_folder)
    (host.work / "data").mkdir(mode=0o755)
    _, said = host.start(SCRIPT, "data", SUDO_UID="54321", SUDO_GID="54322")
    assert "data is not writable for you" in said
    runs = (host.work / "runs").stat()
    assert (runs.st_uid, runs.st_gid, (host.work / "data").stat().st_uid) == (54321, 54322, 0)
    (host.work / "others").mkdir(mode=0o755)
    refused(host.run(SCRIPT, "data", SUDO_UID="54321", RUNS_DIR="others"), "others is not writable for you")
    (host.work / "data").chmod(0o700)
    refused(host.run(SCRIPT, "data", SUDO_UID="54321"), "data cannot be read by you")


def test_under_sudo_a_second_group_really_counts(open_folder: Path) -> None:
    host = really_root(open_folder)
    shared = host.work / "shared"
    shared.mkdir()
    os.chown(shared, 0, 54399)
    shared.chmod(0o770)
    as_caller = {"SUDO_UID": "54321", "SUDO_GID": "54322", "RUNS_DIR": "shared/runs"}
    _, said = host.start(SCRIPT, "shared/new/data", FAKE_GROUPS_54321="54322 54399", **as_caller)
    assert "writable" not in said
    # Made by the caller, with all the folders above.
    assert {path.stat().st_uid for path in (shared / "runs", shared / "new", shared / "new/data")} == {54321}
    refused(host.run(SCRIPT, "shared/new/data", **as_caller), "RUNS_DIR", "not writable for you")


# ---- --profiling ----

AS_CALLER = ["BERTBENCH_RUN_AS=1000:100:100", "BERTBENCH_CAPABILITY=perfmon"]
CAPABILITIES = {
    "565.57.01": (Machine(gpu="565.57.01", counters=False), "PERFMON"),
    "1000.1": (Machine(gpu="1000.1"), "PERFMON"),
    "560.35.03": (Machine(gpu="560.35.03"), "SYS_ADMIN"),
    "99.9": (Machine(gpu="99.9"), "SYS_ADMIN"),
    "unknown driver": (Machine(gpu=""), "SYS_ADMIN"),
    "a driver without a number": (Machine(gpu="[N/A]"), "SYS_ADMIN"),
    "docker 22": (Machine(gpu=NEW, variables={"FAKE_VERSION": "22.06.0"}), "SYS_ADMIN"),
    "docker 23": (Machine(gpu=NEW, variables={"FAKE_VERSION": "23.0.0"}), "PERFMON"),
    "unknown docker": (Machine(gpu=NEW, variables={"FAKE_VERSION": ""}), "PERFMON"),
    "podman 4": (Machine("podman", root=True, gpu=NEW, cdi=True, variables={"FAKE_VERSION": "4.9.4"}), "PERFMON"),
    "given": (Machine(gpu=NEW, variables={"PROFILING_CAPABILITY": "SYS_ADMIN"}), "SYS_ADMIN"),
    "given to an old docker": (
        Machine(gpu=NEW, variables={"FAKE_VERSION": "20.10.25", "PROFILING_CAPABILITY": "PERFMON"}),
        "PERFMON",
    ),
}
NOTHING_TO_PERMIT = {
    "no GPU": (Machine(), "no GPU is passed on"),
    "GPUs left out": (Machine(gpu=NEW, counters=False, variables={"GPUS": "none"}), "no GPU is passed on"),
    "everybody may": (Machine(gpu=NEW, counters=True), "lets every user read the counters"),
    "everybody may, rootless": (Machine(gpu=NEW, counters=True, variables=ROOTLESS), "lets every user read"),
}  # fmt: skip


def profile(host: Host, machine: Machine, **extra: str) -> tuple[list[str], str]:
    return host.start(SCRIPT, "--profiling", "data", "ncu", **{**NVIDIA, **machine.make(host), **extra})


@pytest.mark.parametrize("case", CAPABILITIES)
def test_profiling_adds_the_one_capability_that_the_driver_asks_for(host: Host, case: str) -> None:
    machine, capability = CAPABILITIES[case]
    words, said = profile(host, machine)
    assert option(words, "--cap-add") == [capability]
    assert f"--profiling: adds the capability {capability} (driver {machine.gpu or 'unknown'})\n" in said
    assert option(words, "--user") == ["0:0"]
    if not machine.root:  # the entrypoint becomes the caller and keeps this capability, in setpriv's spelling
        assert option(words, "--env") == [AS_CALLER[0], f"BERTBENCH_CAPABILITY={capability.lower()}"]


@pytest.mark.parametrize("case", NOTHING_TO_PERMIT)
def test_profiling_adds_nothing_where_there_is_nothing_to_permit(host: Host, case: str) -> None:
    machine, why = NOTHING_TO_PERMIT[case]
    words, said = profile(host, machine)
    assert not {"--cap-add", "--env"} & set(words)
    assert "--profiling: " in said and why in said


def test_profiling_is_all_that_it_changes_and_nothing_is_added_unless_asked(host: Host) -> None:
    machine = Machine(root=True, gpu=NEW, counters=False)
    words, _ = profile(host, machine)
    place = words.index("--cap-add")
    plain, said = host.start(SCRIPT, "data", "ncu", **NVIDIA, PROFILING_CAPABILITY="SYS_ADMIN")
    assert words[:place] + words[place + 2 :] == plain
    assert "--env" not in words and "profiling" not in said


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize("driver", [NEW, ""])
def test_profiling_under_a_rootless_engine_is_refused_with_the_remedy(host: Host, engine: str, driver: str) -> None:
    variables = Machine(engine, gpu=driver, cdi=True, counters=False).make(host)
    outcome = host.run(SCRIPT, "--profiling", "data", **variables, **NVIDIA, **ROOTLESS)
    refused(outcome, f"rootless {engine}", "NVreg_RestrictProfilingToAdminUsers=0", "docs/how-to/container.md", "root")
    assert not host.called()


@pytest.mark.parametrize("capability", ["ALL", "sys_admin", "CAP_PERFMON", "SYS_PTRACE", "PERFMON,SYS_ADMIN"])
def test_other_capabilities_are_refused(host: Host, capability: str) -> None:
    variables = {**Machine(gpu=NEW).make(host), **NVIDIA, "PROFILING_CAPABILITY": capability}
    outcome = host.run(SCRIPT, "--profiling", "data", **variables)
    refused(outcome, f"PROFILING_CAPABILITY={capability}", "use PERFMON or SYS_ADMIN")
    assert not host.called()


def test_profiling_tells_the_entrypoint_whom_to_become(host: Host) -> None:
    words, _ = profile(host, Machine(gpu=NEW, groups="100 27 1005"), NCCL_DEBUG="INFO", BERTBENCH_RUN_AS="0:0")
    assert options(words, {"--group-add": [], "--security-opt": []}) == {
        "--group-add": ["100", "27", "1005"], "--security-opt": [SAFE],
    }  # fmt: skip
    assert option(words, "--env")[0] == "BERTBENCH_RUN_AS=1000:100:100,27,1005"
    assert option(words, "--env")[-1] == "NCCL_DEBUG=INFO" and words[-2:] == ["bertbench:cuda", "ncu"]
    sudo = Machine("podman", root=True, gpu=NEW, variables={**SUDO, "FAKE_GROUPS_1234": "5678 27"})
    host.cdi()
    words, _ = profile(host, sudo)
    assert option(words, "--env") == ["BERTBENCH_RUN_AS=1234:5678:5678,27", AS_CALLER[1]]
    assert "--userns" not in words


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize("flags", [[], ["--profiling"]])
def test_a_container_is_never_privileged(host: Host, engine: str, flags: list[str]) -> None:
    variables = Machine(engine, root=True, gpu=NEW, cdi=True, variables={**NVIDIA, "NETWORK": "host"}).make(host)
    host.path_of_host("/dev/infiniband")
    words, _ = host.start(SCRIPT, *flags, "data", **variables)
    assert not {"--privileged", "--security-opt=seccomp=unconfined", "--pid"} & set(words)
    assert option(words, "--security-opt") == [SAFE, *(["label=disable"] if engine == "podman" else [])]
    assert len(option(words, "--cap-add")) == len(flags)
    text = (ROOT / SCRIPT).read_text(encoding="utf-8")
    assert re.findall(r"--privileged|--cap-add[ =]ALL|unconfined|--pid", text) == []


# ---- arguments, folders, image ----


@pytest.fixture
def docker(host: Host) -> Host:
    host.engine("docker")
    return host


def test_data_and_runs_are_mounted_and_the_command_is_passed_on(docker: Host) -> None:
    words, _ = docker.start(SCRIPT, "my data", "bertbench", "data", "a b", "--json", "")
    assert words[:4] == ["docker", "run", "--rm", "--interactive"] and "--tty" not in words
    assert inside(words) == ["bertbench", "data", "a b", "--json", ""]
    assert option(words, "--mount") == [
        f"type=bind,source={docker.work}/my data,target=/data",
        f"type=bind,source={docker.work}/runs,target=/workspace/runs",
    ]
    assert option(words, "--ipc") == ["host"] and not {"--shm-size", "--network", "--env"} & set(words)


@pytest.mark.parametrize(
    ("arguments", "folder", "command"),
    [
        (["data"], "data", []),
        (["--", "data", "--", "id", "--", "x"], "data", ["id", "--", "x"]),
        (["data", "--", "--version"], "data", ["--version"]),
        (["--", "-data", "id"], "-data", ["id"]),
        (["data", "id", "--help"], "data", ["id", "--help"]),
        (["data", "--", "--", "id"], "data", ["--", "id"]),
    ],
)
def test_two_dashes_end_the_options(docker: Host, arguments: list[str], folder: str, command: list[str]) -> None:
    words, _ = docker.start(SCRIPT, *arguments)
    assert option(words, "--mount")[0] == f"type=bind,source={docker.work}/{folder},target=/data"
    assert inside(words) == command


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["data", "--profiling"], ["option '--profiling' stands after DATA_DIR", "after --", "usage"]),
        (["data", "-x"], ["option '-x' stands after DATA_DIR"]),
        (["--gpu", "data"], ["unknown option '--gpu'", "usage"]),
        (["--print=yes", "data"], ["unknown option '--print=yes'"]),
        ([], ["no DATA_DIR given", "usage"]),
        (["--profiling", "--"], ["no DATA_DIR given"]),
        (["", "id"], ["no DATA_DIR given"]),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_made(
    docker: Host, arguments: list[str], texts: list[str]
) -> None:
    refused(docker.run(SCRIPT, *arguments), *texts)
    assert not docker.called() and list(docker.work.iterdir()) == []


def test_exit_code_is_the_commands(docker: Host) -> None:
    assert docker.run(SCRIPT, "data", FAKE_EXIT="42").returncode == 42


def test_print_runs_and_creates_nothing_and_can_be_pasted(docker: Host) -> None:
    command = ["my data", "sh", "-c", "a 'b' $c"]
    outcome = docker.run(SCRIPT, "--print", *command, FAKE_IMAGES="")
    assert (outcome.returncode, outcome.stdout.count("\n")) == (0, 1)
    assert list(docker.work.iterdir()) == [] and not docker.called()
    assert shlex.split(outcome.stdout) == docker.start(SCRIPT, *command)[0]


@pytest.mark.parametrize("whole", [True, False])
def test_a_terminal_is_passed_on_where_it_is_whole(docker: Host, whole: bool) -> None:
    code, shown = on_terminal([BASH, str(ROOT / SCRIPT), "data"], docker.work, docker.variables, output=whole)
    assert code == 0, shown
    assert ("--tty" in docker.call()) == whole


def test_folders_are_created_and_that_is_said_first(docker: Host) -> None:
    words, said = docker.start(SCRIPT, "new/data", RUNS_DIR="new runs/here")
    for name, path in (("DATA_DIR", "new/data"), ("RUNS_DIR", "new runs/here")):
        assert (docker.work / path).is_dir()
        assert f"{name} {docker.work}/{path} does not exist: creating it\n" in said
    assert option(words, "--mount")[1] == f"type=bind,source={docker.work}/new runs/here,target=/workspace/runs"
    assert "_DIR" not in docker.start(SCRIPT, "new", RUNS_DIR="new runs/here")[1]
    (docker.work / "file").touch()
    outcome = docker.run(SCRIPT, "file/data")
    assert "does not exist: creating it" in outcome.stderr.splitlines()[-2]
    refused(outcome, "DATA_DIR 'file/data' does not exist and cannot be created")


def test_an_absolute_folder_and_a_link(docker: Host, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (docker.work / "link").symlink_to(tmp_path / "a b")
    for name in (str(tmp_path / "a b"), "link", f"{tmp_path}/x/../a b/"):
        mounts = option(docker.start(SCRIPT, name)[0], "--mount")
        assert mounts[0] == f"type=bind,source={tmp_path}/a b,target=/data"


@pytest.mark.parametrize("flags", [[], ["--print"]])
def test_files_and_paths_that_mount_cannot_take_are_refused(docker: Host, flags: list[str]) -> None:
    (docker.work / "file").touch()
    refused(docker.run(SCRIPT, *flags, "file"), "DATA_DIR 'file' is a file", "give a folder")
    refused(docker.run(SCRIPT, *flags, "data", RUNS_DIR="file"), "RUNS_DIR 'file' is a file")
    for name in ("a,b", 'a"b'):
        for what, outcome in (
            ("DATA", docker.run(SCRIPT, *flags, name)),
            ("RUNS", docker.run(SCRIPT, *flags, "data", RUNS_DIR=name)),
        ):
            refused(outcome, f"{what}_DIR '{name}'", "comma or a quote", "rename it")
        assert not (docker.work / name).exists()


@pytest.mark.parametrize("mode", [0o000, 0o333, 0o666])
def test_data_that_cannot_be_read_is_refused(docker: Host, mode: int) -> None:
    (docker.work / "data").mkdir()
    (docker.work / "data").chmod(mode)
    refused(docker.run(SCRIPT, "data", unprivileged=True), f"DATA_DIR {docker.work}/data cannot be read by you")
    assert not docker.called()
    assert docker.run(SCRIPT, "--print", "data", unprivileged=True).returncode == 0


def test_folders_that_cannot_be_written(docker: Host) -> None:
    (docker.work / "runs").mkdir(mode=0o555)
    outcome = docker.run(SCRIPT, "data", unprivileged=True)
    refused(outcome, f"RUNS_DIR {docker.work}/runs is not writable for you", "RUNS_DIR=<folder>")
    assert not docker.called() and not (docker.work / "data").exists()
    assert docker.run(SCRIPT, "--print", "data", unprivileged=True).returncode == 0
    (docker.work / "data").mkdir(mode=0o555)
    outcome = docker.run(SCRIPT, "data", RUNS_DIR="other", unprivileged=True)
    assert outcome.returncode == 0
    assert f"DATA_DIR {docker.work}/data is not writable for you: it can be read" in outcome.stderr
    outcome = docker.run(SCRIPT, "data/new", RUNS_DIR="other", unprivileged=True)
    refused(outcome, "DATA_DIR 'data/new'", "cannot be created", "another folder")


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize(
    ("gpus", "image", "flag"), [("all", "bertbench:cuda", ""), ("none", "bertbench:cpu", " --cpu")]
)
def test_a_missing_image_says_how_to_get_it(host: Host, engine: str, gpus: str, image: str, flag: str) -> None:
    variables = {**Machine(engine, cdi=True, variables={"GPUS": gpus}).make(host), **NVIDIA}
    outcome = host.run(SCRIPT, "data", **variables, FAKE_IMAGES="other:1")
    refused(outcome, f"image {image} not found")
    assert outcome.stderr.endswith(f"build it with: bash build_image.sh{flag}\n")
    outcome = host.run(SCRIPT, "data", **variables, IMAGE="mine")
    refused(outcome, "image mine not found", f"{engine} pull mine")
    assert outcome.stderr.endswith(f"build it with: IMAGE=mine bash build_image.sh{flag}\n")
    assert not (host.work / "data").exists() and not host.called()
    assert host.start(SCRIPT, "data", "id", **variables, IMAGE="mine:1", FAKE_IMAGES="mine:1")[0][-2:] == [
        "mine:1",
        "id",
    ]


# ---- what is passed on ----


def test_settings_of_devices_nccl_gloo_and_openmp_are_passed_on_and_nothing_else(docker: Host) -> None:
    settings = {
        "CUDA_VISIBLE_DEVICES": "MIG-1c2d", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0 eth1",
        "NCCL_IB_HCA": "", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "4",
    }  # fmt: skip
    others = {"CUDA_HOME": "/cuda", "MY_NCCL_DEBUG": "1", "OMP_PLACES": "x", "HF_TOKEN": "secret", "GPUS": "none"}
    words, _ = docker.start(SCRIPT, "data", **settings, **others)
    assert sorted(option(words, "--env")) == sorted(f"{name}={value}" for name, value in settings.items())
    assert "secret" not in " ".join(words) and f"source={ROOT}" not in " ".join(words)


def test_shared_memory_and_network_are_those_that_are_given(docker: Host) -> None:
    words, _ = docker.start(SCRIPT, "data", SHM_SIZE="16g", NETWORK="host")
    assert options(words, {"--shm-size": [], "--ipc": [], "--network": []}) == {
        "--shm-size": ["16g"], "--ipc": [], "--network": ["host"],
    }  # fmt: skip
