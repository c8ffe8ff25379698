"""build_image.sh: what the engine is asked to build, and what is refused before."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hosts import ROOT, Host, option, refused

SCRIPT = "build_image.sh"
EXTRAS = ("NSIGHT", "DEEPSPEED", "HOROVOD", "DLPROF")
PASSED_ON = {
    "TORCH_INDEX": "https://index.example/cu126",
    "TORCH_VERSION": "2.12.0",
    "PIP_INDEX_URL": "https://pip.example/simple",
    "PIP_EXTRA_INDEX_URL": "https://one.example https://two.example",
    "PIP_FIND_LINKS": "/wheels",
    "PIP_TRUSTED_HOST": "pip.example",
    "PIP_CERT": "/etc/ssl/certs/ca.crt",
}
BASE = "nvcr.io/nvidia/pytorch:26.02-py3"


@pytest.fixture(autouse=True)
def docker(host: Host) -> None:
    host.engine("docker")


def given(host: Host, *arguments: str, **extra: str) -> dict[str, str]:
    """The build arguments."""
    pairs = [word.partition("=") for word in option(host.start(SCRIPT, *arguments, **extra)[0], "--build-arg")]
    values = {name: value for name, _, value in pairs}
    assert len(values) == len(pairs), "a build argument is given twice"
    return values


def copy_of_the_scripts(folder: Path) -> Path:
    """A checkout that a test may write to: build_image.sh and what it reads."""
    for name in (SCRIPT, "docker/engine.sh", "docker/Dockerfile"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "docker" / "installers").mkdir()
    return folder


@pytest.mark.parametrize(("arguments", "target", "parts"), [([], "cuda", "torch NSIGHT"), (["--cpu"], "cpu", "torch")])
def test_a_plain_build_is_of_its_target_with_the_callers_uid(
    host: Host, arguments: list[str], target: str, parts: str
) -> None:
    words, said = host.start(SCRIPT, *arguments)
    assert words == [
        *("docker", "build", "--file", str(ROOT / "docker/Dockerfile"), "--target", target),
        *("--tag", f"bertbench:{target}", "--build-arg", "USER_ID=1000", str(ROOT)),
    ]
    assert f"with docker; in it: {parts}\n" in said
    assert said.endswith("next: bash start_container.sh <data directory>\n")
    words, said = host.start(SCRIPT, *arguments, IMAGE="mine:1")
    assert option(words, "--tag") == ["mine:1"] and "built mine:1" in said
    host.engine("podman")
    assert host.start(SCRIPT, *arguments, ENGINE="podman")[0][:2] == ["podman", "build"]
    assert (host.folder / "call.buildkit").read_text(encoding="utf-8") == "unset"


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ([], PASSED_ON),
        ([], {f"WITH_{name}": "0" for name in EXTRAS}),
        (["--cpu"], {"WITH_HOROVOD": "1", "WITH_NSIGHT": "1"}),
        ([], {"WITH_DLPROF": "1"}),
    ],
)
def test_what_is_set_is_passed_on_and_nothing_else(host: Host, arguments: list[str], extra: dict[str, str]) -> None:
    others = {"PIP_NO_INDEX": "1", "HTTPS_PROXY": "http://proxy", "CUDA_IMAGE": "x"}
    assert given(host, *arguments, **extra, **others) == {"USER_ID": "1000", **extra}
    assert given(host, *arguments, **dict.fromkeys(extra, "")) == {"USER_ID": "1000"}


@pytest.mark.parametrize(
    ("arguments", "extra", "name", "base"),
    [
        ([], {"BASE_IMAGE": BASE}, "CUDA_IMAGE", BASE),
        (["--cpu"], {"BASE_IMAGE": BASE}, "CPU_IMAGE", BASE),
        ([], {"BASE_IMAGE": "mine:devel", "WITH_DEEPSPEED": "1"}, "CUDA_IMAGE", "mine:devel"),
        *(([], {f"WITH_{name}": "1"}, "CUDA_IMAGE", "-devel-") for name in ("DEEPSPEED", "HOROVOD")),
    ],
)
def test_the_base_is_the_one_given_or_the_devel_flavour_where_something_compiles_for_cuda(
    host: Host, arguments: list[str], extra: dict[str, str], name: str, base: str
) -> None:
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    (own,) = re.findall(r"^ARG CUDA_IMAGE=(\S+)$", text, re.MULTILINE)
    assert own.count("-base-") == 1
    assert given(host, *arguments, **extra)[name] == (own.replace("-base-", base) if base == "-devel-" else base)


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        *(({f"WITH_{name}": "yes"}, [f"WITH_{name}=yes", "use 1 or 0"]) for name in EXTRAS),
        ({"WITH_NSIGHT": " 1"}, ["WITH_NSIGHT= 1"]),
        *(
            ({"USER_ID": user}, [f"USER_ID={user}", "a user who is not root"])
            for user in ("0", "00", "ada", "-1", "1e3")
        ),
    ],
)
def test_other_values_are_refused(host: Host, variables: dict[str, str], texts: list[str]) -> None:
    for flags in ([], ["--print"]):
        refused(host.run(SCRIPT, *flags, **variables), *texts)
    assert not host.called()


def test_other_arguments_are_refused(host: Host) -> None:
    for argument in ("gpu", "--gpu", "", "."):
        refused(host.run(SCRIPT, argument), f"'{argument}'", "usage: bash build_image.sh")
    assert not host.called()


@pytest.mark.parametrize(
    ("caller", "extra", "user"),
    [
        ((4321, 1), {}, "4321"),
        ((0, 0), {"SUDO_UID": "4321"}, "4321"),
        ((0, 0), {}, "10001"),
        ((0, 0), {"SUDO_UID": "0"}, "10001"),
        ((0, 0), {"SUDO_UID": "4321", "USER_ID": "2000"}, "2000"),
    ],
)
def test_the_images_user_is_the_caller_but_never_root(
    host: Host, caller: tuple[int, int], extra: dict[str, str], user: str
) -> None:
    host.caller(*caller)
    assert given(host, **extra) == {"USER_ID": user}


@pytest.mark.parametrize("name", ["NsightSystems-linux-public-2025.3.1.deb", "nsight-compute-linux-2025.3.1.run"])
def test_installers_in_the_wrong_folder_are_refused(host: Host, tmp_path: Path, name: str) -> None:
    copy = copy_of_the_scripts(tmp_path / "my copy")
    (copy / "docker" / name).touch()
    refused(host.run(copy / SCRIPT), f"{name} lies in docker/", "move installers to docker/installers/")
    assert not host.called()
    (copy / "docker" / name).rename(copy / "docker" / "installers" / name)
    words, _ = host.start(copy / SCRIPT)
    assert words[-1] == str(copy) and option(words, "--file") == [f"{copy}/docker/Dockerfile"]


def test_the_revision_is_the_checkouts_and_left_out_without_git(host: Host) -> None:
    host.program("git", f"[[ $1 == -C && $2 == {shlex.quote(str(ROOT))} ]] && echo abc123-dirty")
    assert given(host) == {"USER_ID": "1000", "REVISION": "abc123-dirty"}
    (host.bin / "git").unlink()
    assert "REVISION" not in given(host)


def test_the_revision_is_a_hash_even_of_a_tag_and_says_what_was_changed(host: Host, tmp_path: Path) -> None:
    if not host.real("git"):
        pytest.skip("there is no git here")
    copy = copy_of_the_scripts(tmp_path / "copy")
    identity = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CEILING_DIRECTORIES": "/"}
    for name in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{name}_NAME": "a", f"GIT_{name}_EMAIL": "a@example.org"}

    def git(*words: str) -> str:
        command = ["git", "-C", str(copy), *words]
        environment = {**os.environ, **identity}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "-am", "v1", "v1"]):
        git(*words)
    commit = git("rev-parse", "--short=12", "HEAD")
    revisions = []
    for _ in range(2):
        words, _ = host.start(copy / SCRIPT, **identity)
        revisions += [word for word in option(words, "--build-arg") if word.startswith("REVISION=")]
        (copy / "docker/engine.sh").open("a").write("# changed\n")
    assert revisions == [f"REVISION={commit}", f"REVISION={commit}-dirty"]


@pytest.mark.parametrize(
    ("version", "buildx", "buildkit"),
    [("27.3.1", True, "1"), ("23.0.0", False, "0"), ("22.06.0", False, "1"), ("", True, "1"), ("", False, "0")],
)
def test_buildkit_is_used_where_docker_has_it(host: Host, version: str, buildx: bool, buildkit: str) -> None:
    no_buildx = "" if buildx else "yes"
    _, said = host.start(SCRIPT, FAKE_VERSION=version, FAKE_NO_BUILDX=no_buildx, DOCKER_BUILDKIT="9")
    assert (host.folder / "call.buildkit").read_text(encoding="utf-8") == buildkit
    assert ("install docker-buildx-plugin" in said) == (buildkit == "0")


def test_a_failing_build_ends_with_the_engines_exit_code(host: Host) -> None:
    outcome = host.run(SCRIPT, FAKE_EXIT="17")
    assert outcome.returncode == 17 and "built bertbench" not in outcome.stderr


def test_print_runs_nothing_and_can_be_pasted(host: Host) -> None:
    extra = {"IMAGE": "a b", "PIP_EXTRA_INDEX_URL": "https://one https://two", "WITH_HOROVOD": "1"}
    outcome = host.run(SCRIPT, "--print", **extra)
    assert (outcome.returncode, outcome.stderr, outcome.stdout.count("\n")) == (0, "", 1)
    assert not host.called()
    assert shlex.split(outcome.stdout) == host.start(SCRIPT, **extra)[0]
