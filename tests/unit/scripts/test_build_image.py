"""build_image.sh: what the engine is asked to build, and what is refused before."""

import re
import shlex

import pytest
from hosts import ROOT, Host, option

SCRIPT = "build_image.sh"
CPU = {
    "BASE_IMAGE": "docker.io/library/debian:bookworm-slim",
    "TORCH_INDEX": "https://download.pytorch.org/whl/cpu",
    "WITH_NSIGHT": "0",
}


@pytest.fixture(autouse=True)
def docker(host: Host) -> None:
    host.engine("docker")


def given(host: Host, *arguments: str, **extra: str) -> dict[str, str]:
    """The build arguments."""
    pairs = [word.partition("=") for word in option(host.start(SCRIPT, *arguments, **extra)[0], "--build-arg")]
    return {name: value for name, _, value in pairs}


def test_a_plain_build_has_the_callers_uid(host: Host) -> None:
    dockerfile = str(ROOT / "docker/Dockerfile")
    plain = ["docker", "build", "--file", dockerfile, "--tag", "bertbench:cuda", "--build-arg", "USER_ID=1000"]
    assert host.start(SCRIPT)[0] == [*plain, str(ROOT)]
    assert (host.folder / "call.buildkit").read_text(encoding="utf-8") == "1"
    assert option(host.start(SCRIPT, "--cpu")[0], "--tag") == ["bertbench:cpu"]
    assert option(host.start(SCRIPT, IMAGE="mine:1")[0], "--tag") == ["mine:1"]


@pytest.mark.parametrize(
    ("arguments", "extra", "wanted"),
    [
        (["--cpu"], {}, CPU),
        (["--cpu"], {"WITH_NSIGHT": "1", "BASE_IMAGE": "mine"}, {**CPU, "WITH_NSIGHT": "1", "BASE_IMAGE": "mine"}),
        ([], {"TORCH_INDEX": "https://index", "TORCH_VERSION": "2.12.0", "PIP_CERT": "/x"}, {}),
        ([], {"WITH_DEEPSPEED": "1"}, {"BASE_IMAGE": "docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04"}),
        ([], {"WITH_HOROVOD": "1", "BASE_IMAGE": "mine:devel"}, {"BASE_IMAGE": "mine:devel"}),
    ],
)
def test_settings_are_passed_on_with_the_defaults_of_the_kind(
    host: Host, arguments: list[str], extra: dict[str, str], wanted: dict[str, str]
) -> None:
    assert given(host, *arguments, **extra, HTTPS_PROXY="http://proxy") == {"USER_ID": "1000", **extra, **wanted}


def test_every_argument_is_one_of_the_dockerfile(host: Host) -> None:
    text = (ROOT / SCRIPT).read_text(encoding="utf-8")
    (names,) = re.findall(r"for name in (BASE_IMAGE.*?); do", text, re.DOTALL)
    declared = set(re.findall(r"^ARG (\w+)", (ROOT / "docker/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    assert declared == {*names.replace("\\", "").split(), "USER_ID", "REVISION"}


@pytest.mark.parametrize(("extra", "user"), [({}, "10001"), ({"SUDO_UID": "4321"}, "4321"), ({"USER_ID": "7"}, "7")])
def test_the_user_of_an_image_that_root_builds_is_not_root(host: Host, extra: dict[str, str], user: str) -> None:
    host.caller(0, 0)
    assert given(host, **extra)["USER_ID"] == user


def test_the_revision_is_the_checkouts(host: Host) -> None:
    host.program("git", f"[[ $1 == -C && $2 == {shlex.quote(str(ROOT))} ]] && echo abc123-dirty")
    assert given(host)["REVISION"] == "abc123-dirty"


def test_print_runs_nothing_and_can_be_pasted_and_a_failing_build_fails(host: Host) -> None:
    outcome = host.run(SCRIPT, "--print", IMAGE="a b")
    assert outcome.returncode == 0 and not host.called()
    assert shlex.split(outcome.stdout) == host.start(SCRIPT, IMAGE="a b")[0]
    assert host.run(SCRIPT, FAKE_EXIT="17").returncode == 17
