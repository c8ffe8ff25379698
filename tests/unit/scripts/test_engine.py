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


REFUSALS = {
    "none": ({}, {}, ["no container engine", "make setup"]),
    "down": ({"docker": "no route\na second line"}, {}, ["docker does not answer", "no route"]),
    "chosen, absent": ({"docker": ""}, {"ENGINE": "podman"}, ["no container engine"]),
    "chosen, down": ({"docker": "", "podman": "down"}, {"ENGINE": "podman"}, ["podman does not answer"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_an_engine_that_cannot_be_used_is_refused_in_one_line(host: Host, script: str, case: str) -> None:
    engines, variables, texts = REFUSALS[case]
    for name, error in engines.items():
        host.engine(name, error=error)
    refused(run(host, script, **variables), *texts)
    assert not host.called()


@pytest.mark.parametrize(
    ("docker", "engine", "chosen"),
    [("", "", "docker"), ("", "podman", "podman"), ("down", "", "podman")],
)
def test_the_engine_is_the_chosen_one_or_the_first_that_answers(
    host: Host, script: str, docker: str, engine: str, chosen: str
) -> None:
    host.engine("docker", error=docker)
    host.engine("podman")
    assert host.start(script, *ARGUMENTS[script], ENGINE=engine)[0][0] == chosen


def test_help_names_every_variable_that_is_read(host: Host, script: str) -> None:
    outcome = host.run(script, "--help")
    assert outcome.returncode == 0 and f"bash {script}" in outcome.stdout
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in (script, "docker/engine.sh"))
    read = set(re.findall(r"\$\{!?([A-Z_]{3,})[:+@-]", text))
    for names in re.findall(r"for name in (.*?); do", text, re.DOTALL):
        read |= set(re.findall(r"\b[A-Z][A-Z_]+\b", names))
    assert {"ENGINE", "IMAGE"} < read
    assert [name for name in read - NOT_FOR_USERS if name not in outcome.stdout] == []
