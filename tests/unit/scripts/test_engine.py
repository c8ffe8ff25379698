"""The container engine, the same for build_image.sh and start_container.sh."""

import re
import subprocess

import pytest
from hosts import ROOT, Host, refused

ARGUMENTS = {"build_image.sh": [], "start_container.sh": ["data"]}
# Set by sudo, and by these tests.
NOT_FOR_USERS = {"SUDO_UID", "SUDO_GID", "TEST_HOST", "ENGINE_ERROR"}

pytestmark = pytest.mark.parametrize("script", ARGUMENTS)


def run(host: Host, script: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return host.run(script, *ARGUMENTS[script], **extra)


def test_no_engine_says_what_to_install(host: Host, script: str) -> None:
    refused(run(host, script), "no container engine", "docs.docker.com", "podman.io", "make setup")


DENIED = "permission denied while trying to connect to the Docker daemon socket"
REFUSALS = {
    "denied": ({"docker": DENIED}, {}, ["may not use docker", "usermod -aG docker", "ENGINE=podman", DENIED]),
    "denied in two lines": ({"docker": "Got Permission Denied\na second line"}, {}, ["may not use docker", "Got Perm"]),
    "down": ({"docker": "no route"}, {}, ["does not answer", "systemctl start docker", "ENGINE=", "no route"]),
    "both down": ({"docker": "docker sleeps", "podman": "podman sleeps"}, {}, ["docker is installed", "docker sleeps"]),
    "unknown": ({"docker": ""}, {"ENGINE": "lxc"}, ["ENGINE=lxc", "ENGINE=docker or ENGINE=podman"]),
    "a path": ({"docker": ""}, {"ENGINE": "/usr/bin/docker"}, ["ENGINE=/usr/bin/docker"]),
    "chosen, absent": ({"docker": ""}, {"ENGINE": "podman"}, ["no container engine: podman not found"]),
    "chosen, down": ({"docker": "", "podman": "down"}, {"ENGINE": "podman"}, ["podman is installed but", "down"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_an_engine_that_cannot_be_used_is_refused_with_the_remedy(host: Host, script: str, case: str) -> None:
    engines, variables, texts = REFUSALS[case]
    for name, error in engines.items():
        host.engine(name, error=error)
    outcome = run(host, script, **variables)
    refused(outcome, *texts)
    assert not host.called() and "second line" not in outcome.stderr and "20 s" not in outcome.stderr


CHOICES = {
    "both": ({"docker": "", "podman": ""}, {}, "docker"),
    "chosen docker": ({"docker": "", "podman": ""}, {"ENGINE": "docker"}, "docker"),
    "chosen podman": ({"docker": "", "podman": ""}, {"ENGINE": "podman"}, "podman"),
    "first down": ({"docker": "down", "podman": ""}, {}, "podman"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_the_engine_is_the_chosen_one_or_the_first_that_answers(host: Host, script: str, case: str) -> None:
    engines, variables, chosen = CHOICES[case]
    for name, error in engines.items():
        host.engine(name, error=error)
    assert host.start(script, *ARGUMENTS[script], **variables)[0][0] == chosen


def test_an_engine_that_hangs_is_given_up_for_another(host: Host, script: str) -> None:
    host.engine("docker")
    host.program("timeout", "exit 124")
    refused(run(host, script), "docker is installed but does not answer", "It said: nothing, for 20 s")
    assert host.calls("timeout") == [["20", "docker", "ps", "--quiet"]] and not host.called()
    host.engine("podman")
    host.program("timeout", '[[ $2 != docker ]] || exit 124\nshift\nexec "$@"')
    assert host.start(script, *ARGUMENTS[script])[0][0] == "podman"


def test_print_needs_an_engine_that_neither_answers_nor_is_new(host: Host, script: str) -> None:
    host.engine("docker", error="down")
    outcome = host.run(script, "--print", *ARGUMENTS[script], FAKE_VERSION="1.0")
    assert (outcome.returncode, outcome.stdout.split()[0]) == (0, "docker")
    assert not host.called()


def test_help_needs_no_engine_and_names_every_variable_that_is_read(host: Host, script: str) -> None:
    outcome = host.run(script, "--help")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == host.run(script, "-h").stdout
    assert f"bash {script}" in outcome.stdout
    assert "set -euo pipefail" not in outcome.stdout and "#" not in outcome.stdout
    assert {"--help", "--print"} <= set(re.findall(r"--[a-z]+", outcome.stdout))
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in (script, "docker/engine.sh"))
    read = set(re.findall(r"\$\{!?([A-Z_]{3,})[:+@-]", text))
    for names in re.findall(r"for name in (.*?); do", text):
        read |= set(re.findall(r"\b[A-Z][A-Z_]+\b", names))  # NSIGHT and the like stand for WITH_NSIGHT
    assert {"ENGINE", "IMAGE"} < read and len(read) >= 10
    unnamed = [name for name in read - NOT_FOR_USERS if not re.search(rf"\b(WITH_)?{name}\b", outcome.stdout)]
    assert unnamed == []
