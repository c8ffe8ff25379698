"""start_container.sh: how the GPUs get into the container."""

import pytest
from hosts import NVIDIA_RUNTIME, Host, option, refused

SCRIPT = "start_container.sh"
SAFE = "no-new-privileges"
CDI_ON = '["/etc/cdi","/var/run/cdi"]'


def start(host: Host, *arguments: str, **extra: str) -> list[str]:
    """Start a container and return the words of the engine's call."""
    outcome = host.run(SCRIPT, *(arguments or ("data",)), **extra)
    assert outcome.returncode == 0, outcome.stderr
    return host.call()


def cpu_only(host: Host, **extra: str) -> str:
    """What is said of a container without GPUs."""
    outcome = host.run(SCRIPT, "data", **extra)
    assert outcome.returncode == 0, outcome.stderr
    assert not {"--gpus", "--device"} & set(host.call())
    assert host.call()[-1] == "bertbench:cpu"
    return next(line for line in outcome.stderr.splitlines() if "CPU only: " in line)


def test_gpus_come_by_the_nvidia_runtime(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    host.cdi()
    outcome = host.run(SCRIPT, "data", FAKE_RUNTIMES=NVIDIA_RUNTIME, FAKE_CDI_DIRS=CDI_ON)
    words = host.call()
    assert option(words, "--gpus") == ["all"]
    assert "--device" not in words
    assert words[-1] == "bertbench:cuda"
    assert "CPU only" not in outcome.stderr


def test_gpus_come_by_the_nvidia_hook_where_no_runtime_is_registered(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    host.program("nvidia-container-runtime-hook")
    words = start(host)
    assert option(words, "--gpus") == ["all"]
    assert words[-1] == "bertbench:cuda"
    assert host.calls("nvidia-container-runtime-hook") == []


def test_podman_is_not_asked_for_dockers_gpus_by_the_hook(host: Host) -> None:
    host.engine("podman")
    host.gpu()
    host.program("nvidia-container-runtime-hook")
    assert "podman has neither" in cpu_only(host)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_gpus_come_by_cdi(host: Host, engine: str) -> None:
    host.engine(engine)
    host.gpu()
    host.cdi()
    words = start(host, FAKE_CDI_DIRS=CDI_ON)
    assert option(words, "--device") == ["nvidia.com/gpu=all"]
    assert "--gpus" not in words
    assert words[-1] == "bertbench:cuda"


def test_gpus_come_with_infiniband(host: Host) -> None:
    host.engine("podman")
    host.gpu()
    host.cdi()
    host.path_of_host("/dev/infiniband")
    assert sorted(option(start(host), "--device")) == ["/dev/infiniband", "nvidia.com/gpu=all"]


@pytest.mark.parametrize("folders", ["null", "[]", ""])
def test_cdi_is_not_used_where_docker_has_it_off(host: Host, folders: str) -> None:
    host.engine("docker")
    host.gpu()
    host.cdi()
    assert "docker has neither" in cpu_only(host, FAKE_CDI_DIRS=folders)


def test_cdi_is_looked_for_in_the_folders_given(host: Host) -> None:
    host.engine("podman")
    host.gpu()
    host.cdi()
    cpu_only(host, CDI_SPEC_DIRS=f"{host.folder}/no:{host.work}")
    assert "--device" in start(host, CDI_SPEC_DIRS=f"{host.folder}/no:{host.folder}/cdi")


@pytest.mark.parametrize(("version", "known"), [("4.0.2", False), ("4.1.0", True), ("4.10.1", True), ("", True)])
def test_cdi_is_used_where_podman_knows_it(host: Host, version: str, known: bool) -> None:
    host.engine("podman")
    host.gpu()
    host.cdi()
    words = start(host, FAKE_VERSION=version)
    assert option(words, "--device") == (["nvidia.com/gpu=all"] if known else [])


def test_podman_that_is_too_old_for_cdi_is_told_apart_from_a_missing_toolkit(host: Host) -> None:
    host.engine("podman")
    host.gpu()
    host.cdi()
    said = cpu_only(host, FAKE_VERSION="4.0.2")
    assert "4.0.2" in said
    assert "4.1" in said


def test_cdi_of_another_vendor_gives_no_gpu(host: Host) -> None:
    host.engine("podman")
    host.gpu()
    host.cdi()
    (host.folder / "cdi/nvidia.yaml").write_text("kind: example.com/nic\n", encoding="utf-8")
    cpu_only(host)


def test_podman_is_not_asked_for_dockers_gpus(host: Host) -> None:
    host.engine("podman")
    host.gpu()
    assert "podman has neither" in cpu_only(host, FAKE_RUNTIMES=NVIDIA_RUNTIME)


def test_engine_without_toolkit_is_cpu_only_and_says_what_to_install(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    said = cpu_only(host, FAKE_RUNTIMES='{"runc":{},"nvidia-other":{}}')
    assert "docker has neither the NVIDIA runtime nor a CDI specification" in said
    assert "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/" in said
    assert "nvidia-ctk" not in said


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_podman_without_a_cdi_specification_says_how_to_make_one(host: Host, name: str) -> None:
    host.engine(name, really="podman")
    host.gpu()
    said = cpu_only(host)
    assert "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/" in said
    assert "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml" in said


@pytest.mark.parametrize("smi", ["", "echo 'NVIDIA-SMI has failed'; exit 9", "echo 'No devices were found'"])
def test_machine_without_gpu_is_cpu_only(host: Host, smi: str) -> None:
    host.engine("docker")
    if smi:
        host.program("nvidia-smi", smi)
    assert "nvidia-smi lists no GPU here" in cpu_only(host, FAKE_RUNTIMES=NVIDIA_RUNTIME)


def test_gpus_all_insists(host: Host) -> None:
    host.engine("docker")
    assert option(start(host, GPUS="all", FAKE_RUNTIMES=NVIDIA_RUNTIME), "--gpus") == ["all"]


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_gpus_all_fails_where_the_engine_cannot(host: Host, engine: str) -> None:
    host.engine(engine)
    host.gpu()
    refused(host.run(SCRIPT, "data", GPUS="all"), "GPUS=all", f"{engine} has neither", "Container Toolkit")
    assert not host.called()


def test_gpus_none_leaves_them_out(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    assert "CPU only: GPUS=none" in cpu_only(host, GPUS="none", FAKE_RUNTIMES=NVIDIA_RUNTIME)


@pytest.mark.parametrize("value", ["2", "0,1", "ALL"])
def test_other_gpus_are_refused(host: Host, value: str) -> None:
    host.engine("docker")
    refused(host.run(SCRIPT, "data", GPUS=value), f"GPUS={value}", "auto, all or none")


def test_podman_behind_the_name_docker_gets_podmans_options(host: Host) -> None:
    host.engine("docker", really="podman")
    host.gpu()
    host.cdi()
    words = start(host, FAKE_RUNTIMES=NVIDIA_RUNTIME)
    assert words[0] == "docker"
    assert option(words, "--security-opt") == [SAFE, "label=disable"]
    assert option(words, "--device") == ["nvidia.com/gpu=all"]
    assert "--gpus" not in words
