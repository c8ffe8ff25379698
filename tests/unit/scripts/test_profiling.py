"""start_container.sh --profiling: the one capability that reading the GPUs' counters takes, and no more."""

import subprocess

import pytest
from hosts import NVIDIA_RUNTIME, Host, option, refused

SCRIPT = "start_container.sh"
ROOTLESS = '["name=seccomp,profile=builtin","name=rootless"]'
AS_CALLER = ["BERTBENCH_RUN_AS=1000:100:100", "BERTBENCH_CAPABILITY=perfmon"]


def profile(host: Host, *flags: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return host.run(SCRIPT, *(flags or ("--profiling",)), "data", "ncu", FAKE_RUNTIMES=NVIDIA_RUNTIME, **extra)


def permitted(host: Host, **extra: str) -> str:
    """The one capability that is added."""
    outcome = profile(host, **extra)
    assert outcome.returncode == 0, outcome.stderr
    (capability,) = option(host.call(), "--cap-add")
    assert f"--profiling: adds the capability {capability}" in outcome.stderr
    return capability


def nothing_added(host: Host, *flags: str, **extra: str) -> str:
    """What is said where the container starts as it does without --profiling."""
    outcome = profile(host, *flags, **extra)
    assert outcome.returncode == 0, outcome.stderr
    words = host.call()
    assert not {"--cap-add", "--env"} & set(words)
    assert option(words, "--user") == ["1000:100"]
    return outcome.stderr


def params(host: Host, value: int) -> None:
    """The driver's setting: 0 lets every user read the counters."""
    text = f'ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {value}\nRmMsg: ""\n'
    (host.path_of_host("/proc/driver/nvidia") / "params").write_text(text, encoding="utf-8")


def test_nothing_is_added_unless_asked(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    params(host, 1)
    outcome = host.run(SCRIPT, "data", FAKE_RUNTIMES=NVIDIA_RUNTIME, PROFILING_CAPABILITY="SYS_ADMIN")
    assert outcome.returncode == 0
    assert not {"--cap-add", "--env"} & set(host.call())
    assert "profiling" not in outcome.stderr


def test_without_gpu_there_is_nothing_to_permit(host: Host) -> None:
    host.engine("docker")
    assert "--profiling: no GPU is passed on" in nothing_added(host)


def test_gpus_none_leaves_nothing_to_permit(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    params(host, 1)
    assert "--profiling: no GPU is passed on" in nothing_added(host, GPUS="none")


@pytest.mark.parametrize("extra", [{}, {"FAKE_SECURITY": ROOTLESS}])
def test_driver_that_permits_every_user_needs_no_capability(host: Host, extra: dict[str, str]) -> None:
    host.engine("docker")
    host.gpu()
    params(host, 0)
    outcome = profile(host, **extra)
    assert outcome.returncode == 0, outcome.stderr
    assert not {"--cap-add", "--env"} & set(host.call())
    assert "this machine's driver lets every user read the counters" in outcome.stderr


def test_driver_that_permits_only_root_gets_the_capability(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    params(host, 1)
    assert permitted(host) == "PERFMON"


def test_driver_that_says_nothing_gets_the_capability(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    assert permitted(host) == "PERFMON"


@pytest.mark.parametrize(
    ("driver", "capability"),
    [
        ("565.57.01", "PERFMON"),
        ("580.65.06", "PERFMON"),
        ("1000.1", "PERFMON"),
        ("560.35.03", "SYS_ADMIN"),
        ("99.9", "SYS_ADMIN"),
        ("", "SYS_ADMIN"),
        ("[N/A]", "SYS_ADMIN"),
    ],
)
def test_capability_is_the_one_that_the_driver_asks_for(host: Host, driver: str, capability: str) -> None:
    host.engine("docker")
    host.gpu(driver)
    assert permitted(host) == capability


@pytest.mark.parametrize(
    ("version", "capability"),
    [("20.10.25", "SYS_ADMIN"), ("22.06.0", "SYS_ADMIN"), ("23.0.0", "PERFMON"), ("100.1", "PERFMON"), ("", "PERFMON")],
)
def test_docker_that_does_not_know_the_new_capability_gets_the_old_one(
    host: Host, version: str, capability: str
) -> None:
    host.engine("docker")
    host.gpu("580.65.06")
    assert permitted(host, FAKE_VERSION=version) == capability
    assert permitted(host, FAKE_VERSION=version, PROFILING_CAPABILITY="PERFMON") == "PERFMON"


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_podmans_version_is_not_held_to_dockers(host: Host, name: str) -> None:
    host.engine(name, really="podman")
    host.caller(0, 0)
    host.gpu("580.65.06")
    host.cdi()
    assert permitted(host, FAKE_VERSION="4.9.4") == "PERFMON"


def test_driver_is_told_once_or_as_unknown(host: Host) -> None:
    host.engine("docker")
    host.gpu("580.65.06")
    assert "(driver 580.65.06)\n" in profile(host).stderr
    host.gpu("")
    assert "(driver unknown)\n" in profile(host).stderr


@pytest.mark.parametrize(("driver", "capability"), [("580.65.06", "SYS_ADMIN"), ("535.1", "PERFMON")])
def test_capability_given_is_taken(host: Host, driver: str, capability: str) -> None:
    host.engine("docker")
    host.gpu(driver)
    assert permitted(host, PROFILING_CAPABILITY=capability) == capability


@pytest.mark.parametrize("capability", ["ALL", "sys_admin", "CAP_PERFMON", "SYS_PTRACE", "PERFMON,SYS_ADMIN"])
def test_other_capabilities_are_refused(host: Host, capability: str) -> None:
    host.engine("docker")
    host.gpu()
    outcome = profile(host, PROFILING_CAPABILITY=capability)
    refused(outcome, f"PROFILING_CAPABILITY={capability}", "use PERFMON or SYS_ADMIN")
    assert not host.called()


@pytest.mark.parametrize("driver", ["580.65.06", ""])
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_rootless_engine_is_refused_with_the_remedy(host: Host, engine: str, driver: str) -> None:
    host.engine(engine)
    host.gpu(driver)
    host.cdi()
    params(host, 1)
    outcome = profile(host, FAKE_SECURITY=ROOTLESS)
    refused(outcome, f"rootless {engine}", "NVreg_RestrictProfilingToAdminUsers=0", "docs/how-to/container.md", "root")
    assert not host.called()


def test_callers_container_starts_as_root_and_is_told_whom_to_become(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    assert permitted(host) == "PERFMON"
    words = host.call()
    assert option(words, "--user") == ["0:0"]
    assert option(words, "--env") == AS_CALLER
    assert words[-2:] == ["bertbench:cuda", "ncu"]


def test_capability_is_told_to_the_entrypoint_in_setprivs_spelling(host: Host) -> None:
    host.engine("docker")
    host.gpu("535.1")
    assert permitted(host) == "SYS_ADMIN"
    assert option(host.call(), "--env") == [AS_CALLER[0], "BERTBENCH_CAPABILITY=sys_admin"]


def test_callers_groups_are_told_to_the_entrypoint(host: Host) -> None:
    host.engine("docker")
    host.caller(1000, 100, "100 27 1005")
    host.gpu()
    permitted(host)
    words = host.call()
    assert option(words, "--user") == ["0:0"]
    assert option(words, "--env")[0] == "BERTBENCH_RUN_AS=1000:100:100,27,1005"
    assert option(words, "--group-add") == ["100", "27", "1005"]
    assert option(words, "--security-opt") == ["no-new-privileges"]


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_under_sudo_the_entrypoint_becomes_who_called_it(host: Host, engine: str) -> None:
    host.engine(engine)
    host.caller(0, 0)
    host.gpu()
    host.cdi()
    permitted(host, SUDO_UID="1234", SUDO_GID="5678", FAKE_GROUPS_1234="5678 27")
    words = host.call()
    assert option(words, "--user") == ["0:0"]
    assert option(words, "--env") == ["BERTBENCH_RUN_AS=1234:5678:5678,27", "BERTBENCH_CAPABILITY=perfmon"]
    assert "--userns" not in words


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_root_stays_root_and_only_gets_the_capability(host: Host, engine: str) -> None:
    host.engine(engine)
    host.caller(0, 0)
    host.gpu()
    host.cdi()
    permitted(host)
    words = host.call()
    assert option(words, "--user") == ["0:0"]
    assert "--env" not in words


def test_capability_is_all_that_profiling_changes(host: Host) -> None:
    host.engine("docker")
    host.caller(0, 0)
    host.gpu()
    permitted(host)
    words = host.call()
    assert host.run(SCRIPT, "data", "ncu", FAKE_RUNTIMES=NVIDIA_RUNTIME).returncode == 0
    place = words.index("--cap-add")
    assert words[:place] + words[place + 2 :] == host.call()


def test_callers_environment_comes_on_top(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    permitted(host, NCCL_DEBUG="INFO", BERTBENCH_RUN_AS="0:0", BERTBENCH_CAPABILITY="all")
    assert sorted(option(host.call(), "--env")) == sorted([*AS_CALLER, "NCCL_DEBUG=INFO"])


def test_print_shows_the_capability_and_runs_nothing(host: Host) -> None:
    host.engine("docker")
    host.gpu()
    outcome = profile(host, "--profiling", "--print")
    assert outcome.returncode == 0
    assert outcome.stdout.count("--cap-add PERFMON ") == 1
    assert not host.called()
