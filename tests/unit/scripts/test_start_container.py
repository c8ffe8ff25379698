"""start_container.sh: what the engine is asked to run on which machine, and what is refused before."""

import shlex
from dataclasses import dataclass, field

import pytest
from hosts import NVIDIA_RUNTIME, Host, option, options, refused

SCRIPT = "start_container.sh"
CDI_ON = {"FAKE_CDI_DIRS": '["/etc/cdi","/var/run/cdi"]'}
NVIDIA = {"FAKE_RUNTIMES": NVIDIA_RUNTIME}
ROOTLESS = {"FAKE_SECURITY": '["name=seccomp,profile=builtin","name=rootless","name=cgroupns"]'}
SUDO = {"SUDO_UID": "1234", "SUDO_GID": "5678"}
CDI_DEVICE = ["nvidia.com/gpu=all"]
SAFE = "no-new-privileges"
LIMITS = ["memlock=-1", "stack=67108864"]
NEW = "580.65.06"


@dataclass(frozen=True)
class Machine:
    """What a machine has, as the fake tools answer."""

    engine: str = "docker"
    really: str = ""
    gpu: str | None = None
    """The driver's version; None without GPUs."""
    cdi: bool = False
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
        if self.counters is not None:
            host.driver_lets(self.counters)
        return self.variables


# ---- GPUs ----

GPUS = {
    "runtime": (Machine(gpu=NEW, cdi=True, variables={**NVIDIA, **CDI_ON}), {"--gpus": ["all"], "--device": []}),
    "CDI of docker": (Machine(gpu=NEW, cdi=True, variables=CDI_ON), {"--gpus": [], "--device": CDI_DEVICE}),
    "CDI of podman": (Machine("podman", gpu=NEW, cdi=True), {"--gpus": [], "--device": CDI_DEVICE}),
    "podman named docker": (Machine(really="podman", gpu=NEW, cdi=True, variables=NVIDIA), {"--device": CDI_DEVICE}),
}


@pytest.mark.parametrize("case", GPUS)
def test_gpus_come_into_the_container(host: Host, case: str) -> None:
    machine, wanted = GPUS[case]
    words, stderr = host.start(SCRIPT, "data", **machine.make(host))
    assert options(words, wanted) == wanted
    assert words[-1] == "bertbench:cuda" and "CPU only" not in stderr


def test_gpus_are_left_out_where_the_cpu_is_asked_for(host: Host) -> None:
    words, stderr = host.start(SCRIPT, "--cpu", "data", **Machine(gpu=NEW, variables=NVIDIA).make(host))
    assert "--gpus" not in words and words[-1] == "bertbench:cpu" and not stderr


# ---- the user ----

USERS = {
    "caller": (
        Machine(groups="100 27", variables=SUDO),
        {"--user": ["1000:100"], "--group-add": ["100", "27"], "--ulimit": LIMITS, "--security-opt": [SAFE]},
    ),
    "sudo": (
        Machine(root=True, variables={**SUDO, "FAKE_GROUPS_1234": "5678 27"}),
        {"--user": ["1234:5678"], "--group-add": ["5678", "27"]},
    ),
    "root": (Machine(root=True), {"--user": ["0:0"]}),
    "rootless docker": (
        Machine(variables=ROOTLESS),
        {"--user": ["0:0"], "--security-opt": [SAFE], "--ulimit": [], "--group-add": []},
    ),
    "rootless podman": (
        Machine("podman", groups="100 27"),
        {"--user": ["1000:100"], "--userns": ["keep-id"], "--ulimit": ["host"], "--group-add": ["keep-groups"]},
    ),
    "podman of root": (
        Machine("podman", root=True, variables={"SUDO_UID": "1234"}),
        {"--user": ["1234:1234"], "--userns": [], "--ulimit": LIMITS, "--security-opt": [SAFE, "label=disable"]},
    ),
}


@pytest.mark.parametrize("case", USERS)
def test_the_command_runs_as_who_called(host: Host, case: str) -> None:
    machine, wanted = USERS[case]
    assert options(host.start(SCRIPT, "data", **machine.make(host))[0], wanted) == wanted


# ---- --profiling ----

CAPABILITIES = {
    "565.57.01": (Machine(gpu="565.57.01", counters=False), "PERFMON"),
    "99.9": (Machine(gpu="99.9"), "SYS_ADMIN"),
    "unknown driver": (Machine(gpu=""), "SYS_ADMIN"),
}


@pytest.mark.parametrize("case", CAPABILITIES)
def test_profiling_adds_the_one_capability_that_the_driver_asks_for(host: Host, case: str) -> None:
    machine, capability = CAPABILITIES[case]
    words, _ = host.start(SCRIPT, "--profiling", "data", "ncu", **{**NVIDIA, **machine.make(host)})
    assert option(words, "--cap-add") == [capability] and option(words, "--user") == ["0:0"]
    # The entrypoint becomes the caller and keeps this capability, in setpriv's spelling.
    assert option(words, "--env") == ["BERTBENCH_RUN_AS=1000:100:100", f"BERTBENCH_CAPABILITY={capability.lower()}"]


# ---- arguments, folders, image ----


@pytest.fixture
def docker(host: Host) -> Host:
    host.engine("docker")
    return host


def test_data_and_runs_are_mounted_and_the_command_is_passed_on(docker: Host) -> None:
    words, _ = docker.start(SCRIPT, "my data", "bertbench", "data", "a b", "--json", "")
    assert words[:4] == ["docker", "run", "--rm", "--interactive"] and "--tty" not in words
    assert words[-6:] == ["bertbench:cpu", "bertbench", "data", "a b", "--json", ""]
    assert option(words, "--mount") == [
        f"type=bind,source={docker.work}/my data,target=/data",
        f"type=bind,source={docker.work}/runs,target=/workspace/runs",
    ]
    assert option(words, "--ipc") == ["host"] and not {"--shm-size", "--network", "--env"} & set(words)
    assert (docker.work / "my data").is_dir() and (docker.work / "runs").is_dir()
    assert docker.run(SCRIPT, "data", FAKE_EXIT="42").returncode == 42


def test_print_runs_and_creates_nothing_and_can_be_pasted(docker: Host) -> None:
    command = ["my data", "sh", "-c", "a 'b' $c"]
    outcome = docker.run(SCRIPT, "--print", *command, FAKE_IMAGES="")
    assert outcome.returncode == 0 and list(docker.work.iterdir()) == [] and not docker.called()
    assert shlex.split(outcome.stdout) == docker.start(SCRIPT, *command)[0]


@pytest.mark.parametrize(
    ("arguments", "image"),
    [(["data", "--profiling"], None), (["--gpu", "data"], None), ([], None), (["file"], None), (["data"], "")],
)
def test_wrong_arguments_and_a_missing_image_are_refused_before_anything_runs(
    docker: Host, arguments: list[str], image: str | None
) -> None:
    (docker.work / "file").touch()
    refused(docker.run(SCRIPT, *arguments, **({} if image is None else {"FAKE_IMAGES": image})))
    assert not docker.called()


# ---- what is passed on ----


def test_settings_of_devices_nccl_gloo_and_openmp_are_passed_on_and_nothing_else(docker: Host) -> None:
    settings = {"CUDA_VISIBLE_DEVICES": "MIG-1c2d", "NCCL_SOCKET_IFNAME": "eth0 eth1", "NCCL_IB_HCA": ""}
    settings |= {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "4"}
    others = {"CUDA_HOME": "/cuda", "MY_NCCL_DEBUG": "1", "OMP_PLACES": "x", "HF_TOKEN": "secret"}
    words, _ = docker.start(SCRIPT, "data", **settings, **others)
    assert sorted(option(words, "--env")) == sorted(f"{name}={value}" for name, value in settings.items())
    assert "secret" not in " ".join(words)
