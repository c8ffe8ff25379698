"""The container engine, the same for build_image.sh and start_container.sh."""

import re
import subprocess
from pathlib import Path

import pytest
from hosts import ROOT, Host, refused

ARGUMENTS = {"build_image.sh": [], "start_container.sh": ["data"]}
# Set by sudo, and by these tests.
NOT_FOR_USERS = {"SUDO_UID", "SUDO_GID", "TEST_HOST", "ENGINE_ERROR"}

pytestmark = pytest.mark.parametrize("script", ARGUMENTS)


def run(host: Host, script: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return host.run(script, *ARGUMENTS[script], **extra)


def accepted(host: Host, script: str, **extra: str) -> str:
    """The engine that was given the work."""
    outcome = run(host, script, **extra)
    assert outcome.returncode == 0, outcome.stderr
    return host.call()[0]


def test_no_engine_says_what_to_install(host: Host, script: str) -> None:
    refused(run(host, script), "no container engine", "docs.docker.com", "podman.io", "make setup")


def test_permission_denied_names_the_group(host: Host, script: str) -> None:
    error = "permission denied while trying to connect to the Docker daemon socket"
    host.engine("docker", error=error)
    refused(run(host, script), "may not use docker", "usermod -aG docker", "ENGINE=podman", error)
    assert not host.called()


def test_permission_denied_is_known_in_any_case_and_told_in_one_line(host: Host, script: str) -> None:
    host.engine("docker", error="Got Permission Denied\nand a second line")
    outcome = run(host, script)
    refused(outcome, "may not use docker", "Got Permission Denied")
    assert "second line" not in outcome.stderr


def test_engine_that_does_not_answer_says_how_to_start_it(host: Host, script: str) -> None:
    error = "Cannot connect to the Docker daemon"
    host.engine("docker", error=error)
    refused(run(host, script), "docker is installed but does not answer", "systemctl start docker", "ENGINE=", error)
    assert not host.called()


def test_engine_that_hangs_is_given_up(host: Host, script: str) -> None:
    host.engine("docker")
    host.program("timeout", "exit 124")
    refused(run(host, script), "docker is installed but does not answer", "It said: nothing, for 20 s")
    assert host.calls("timeout") == [["20", "docker", "ps", "--quiet"]]
    assert not host.called()


def test_engine_that_answers_is_used_where_another_hangs(host: Host, script: str) -> None:
    host.engine("docker")
    host.engine("podman")
    host.program("timeout", '[[ $2 != docker ]] || exit 124\nshift\nexec "$@"')
    assert accepted(host, script) == "podman"


def test_error_of_an_engine_is_no_hang(host: Host, script: str) -> None:
    host.engine("docker", error="down")
    outcome = run(host, script)
    refused(outcome, "It said: down")
    assert "20 s" not in outcome.stderr


@pytest.mark.parametrize(
    ("version", "enough"), [("3 2", False), ("4 3", False), ("4 4", True), ("5 0", True), ("10 1", True)]
)
def test_old_bash_is_refused(host: Host, script: str, tmp_path: Path, version: str, enough: bool) -> None:
    """The true scripts, told of another bash."""
    text = (ROOT / "docker/engine.sh").read_text(encoding="utf-8")
    assert "BASH_VERSINFO" in text
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/engine.sh").write_text(
        f"told=({version})\n" + text.replace("BASH_VERSINFO", "told"), encoding="utf-8"
    )
    (tmp_path / script).write_text((ROOT / script).read_text(encoding="utf-8"), encoding="utf-8")
    outcome = host.run(tmp_path / script, "--help")
    if enough:
        assert (outcome.returncode, outcome.stderr) == (0, "")
    else:
        refused(outcome, "is too old", "4.4 or newer")


@pytest.mark.parametrize("name", ["lxc", "Docker", "/usr/bin/docker"])
def test_unknown_engine_is_refused(host: Host, script: str, name: str) -> None:
    host.engine("docker")
    refused(run(host, script, ENGINE=name), f"ENGINE={name}", "ENGINE=docker or ENGINE=podman")


def test_chosen_engine_that_is_not_installed_is_refused(host: Host, script: str) -> None:
    host.engine("docker")
    outcome = run(host, script, ENGINE="podman")
    refused(outcome, "no container engine: podman not found")


def test_chosen_engine_that_does_not_answer_is_not_replaced(host: Host, script: str) -> None:
    host.engine("docker")
    host.engine("podman", error="down")
    refused(run(host, script, ENGINE="podman"), "podman is installed but does not answer", "down")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_engine_is_chosen_by_environment(host: Host, script: str, engine: str) -> None:
    host.engine("docker")
    host.engine("podman")
    assert accepted(host, script, ENGINE=engine) == engine


def test_docker_is_used_where_both_answer(host: Host, script: str) -> None:
    host.engine("docker")
    host.engine("podman")
    assert accepted(host, script) == "docker"


def test_first_engine_that_answers_is_used(host: Host, script: str) -> None:
    host.engine("docker", error="down")
    host.engine("podman")
    assert accepted(host, script) == "podman"


def test_reason_of_the_first_engine_is_told_where_none_answers(host: Host, script: str) -> None:
    host.engine("docker", error="docker is asleep")
    host.engine("podman", error="podman is asleep")
    refused(run(host, script), "docker is installed", "docker is asleep")


@pytest.mark.parametrize(
    ("engine", "version", "oldest"),
    [("docker", "19.03.15", "20.10"), ("docker", "9.1", "20.10"), ("podman", "3.3.1", "3.4"), ("podman", "3", "3.4")],
)
def test_old_engine_is_refused_with_both_versions(
    host: Host, script: str, engine: str, version: str, oldest: str
) -> None:
    host.engine(engine)
    wanted = (f"{engine} {version} is too old", f"{oldest} or newer", "update", "ENGINE=docker or ENGINE=podman")
    refused(run(host, script, FAKE_VERSION=version), *wanted)
    assert not host.called()


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        *(("docker", version) for version in ("20.10", "20.10.25+dfsg1", "23.0.1", "100.0.0")),
        *(("podman", version) for version in ("3.4", "3.4.4", "3.10.0", "4.9.4-rhel", "5.2.2")),
    ],
)
def test_engine_that_is_new_enough_is_used(host: Host, script: str, engine: str, version: str) -> None:
    host.engine(engine)
    assert accepted(host, script, FAKE_VERSION=version) == engine


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_engine_that_tells_no_version_is_used(host: Host, script: str, engine: str) -> None:
    host.engine(engine)
    assert accepted(host, script, FAKE_VERSION="") == engine


def test_podman_behind_the_name_docker_is_held_to_podmans_versions(host: Host, script: str) -> None:
    host.engine("docker", really="podman")
    assert accepted(host, script, FAKE_VERSION="4.0.0") == "docker"
    refused(run(host, script, FAKE_VERSION="3.3.1"), "docker 3.3.1 is too old", "3.4 or newer")


def test_print_needs_an_engine_that_neither_answers_nor_is_new(host: Host, script: str) -> None:
    host.engine("docker", error="down")
    outcome = host.run(script, "--print", *ARGUMENTS[script], FAKE_VERSION="1.0")
    assert (outcome.returncode, outcome.stdout.split()[0]) == (0, "docker")
    assert not host.called()


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_needs_no_engine_and_shows_the_comment_on_top_alone(host: Host, script: str, flag: str) -> None:
    outcome = host.run(script, flag)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert f"bash {script}" in outcome.stdout
    assert "set -euo pipefail" not in outcome.stdout
    assert "#" not in outcome.stdout
    assert {"--help", "--print"} <= set(re.findall(r"--[a-z]+", outcome.stdout))


def test_help_names_every_environment_variable_that_is_read(host: Host, script: str) -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in (script, "docker/engine.sh"))
    read = set(re.findall(r"\$\{!?([A-Z_]{3,})[:+@-]", text))
    for names in re.findall(r"for name in (.*?); do", text):
        read |= set(re.findall(r"\b[A-Z][A-Z_]+\b", names))  # NSIGHT and the like stand for WITH_NSIGHT
    assert {"ENGINE", "IMAGE"} < read
    assert len(read) >= 10
    helped = host.run(script, "--help").stdout
    unnamed = [name for name in read - NOT_FOR_USERS if not re.search(rf"\b(WITH_)?{name}\b", helped)]
    assert unnamed == []
