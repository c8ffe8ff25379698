"""build_image.sh: what the engine is asked to build, and what is refused before."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hosts import ROOT, Host, option, refused

EXTRAS = ("NSIGHT", "DEEPSPEED", "HOROVOD", "FLASH_ATTN", "DLPROF")
PASSED_ON = {
    "TORCH_INDEX": "https://index.example/cu126",
    "TORCH_VERSION": "2.12.0",
    "PIP_INDEX_URL": "https://pip.example/simple",
    "PIP_EXTRA_INDEX_URL": "https://one.example https://two.example",
    "PIP_FIND_LINKS": "/wheels",
    "PIP_TRUSTED_HOST": "pip.example",
    "PIP_CERT": "/etc/ssl/certs/ca.crt",
}


@pytest.fixture(autouse=True)
def docker(host: Host) -> None:
    host.engine("docker")


def build(host: Host, *arguments: str, **extra: str) -> list[str]:
    """Build and return the words of the engine's call."""
    outcome = host.run("build_image.sh", *arguments, **extra)
    assert outcome.returncode == 0, outcome.stderr
    return host.call()


def given(host: Host, *arguments: str, **extra: str) -> dict[str, str]:
    """The build arguments."""
    pairs = [word.partition("=") for word in option(build(host, *arguments, **extra), "--build-arg")]
    values = {name: value for name, _, value in pairs}
    assert len(values) == len(pairs), "a build argument is given twice"
    return values


def copy_of_the_scripts(folder: Path) -> Path:
    """A checkout that a test may write to: build_image.sh and what it reads."""
    for name in ("build_image.sh", "docker/engine.sh", "docker/Dockerfile"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "docker" / "installers").mkdir()
    return folder


# ---- target, tag, base ----


def test_target_is_cuda_without_options(host: Host) -> None:
    words = build(host)
    assert words[:2] == ["docker", "build"]
    assert option(words, "--target") == ["cuda"]
    assert option(words, "--tag") == ["bertbench:cuda"]
    assert option(words, "--file") == [str(ROOT / "docker/Dockerfile")]
    assert words[-1] == str(ROOT)
    assert given(host) == {"USER_ID": "1000"}


def test_cpu_is_the_other_target(host: Host) -> None:
    words = build(host, "--cpu")
    assert option(words, "--target") == ["cpu"]
    assert option(words, "--tag") == ["bertbench:cpu"]


@pytest.mark.parametrize("arguments", [[], ["--cpu"]])
def test_image_names_the_tag(host: Host, arguments: list[str]) -> None:
    outcome = host.run("build_image.sh", *arguments, IMAGE="mine:1")
    assert option(host.call(), "--tag") == ["mine:1"]
    assert "built mine:1" in outcome.stderr


def test_podman_builds_too(host: Host) -> None:
    host.engine("podman")
    assert build(host, ENGINE="podman")[:2] == ["podman", "build"]
    assert (host.folder / "call.buildkit").read_text(encoding="utf-8") == "unset"


@pytest.mark.parametrize(("arguments", "name"), [([], "CUDA_IMAGE"), (["--cpu"], "CPU_IMAGE")])
def test_base_image_is_given_to_its_target(host: Host, arguments: list[str], name: str) -> None:
    base = "nvcr.io/nvidia/pytorch:26.02-py3"
    assert given(host, *arguments, BASE_IMAGE=base) == {"USER_ID": "1000", name: base}


@pytest.mark.parametrize("name", ["DEEPSPEED", "HOROVOD", "FLASH_ATTN"])
def test_what_compiles_for_cuda_gets_the_devel_flavour_of_the_dockerfiles_base(host: Host, name: str) -> None:
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    base = re.search(r"^ARG CUDA_IMAGE=(\S+)$", text, re.MULTILINE)
    assert base is not None
    assert base[1].count("-base-") == 1
    values = given(host, **{f"WITH_{name}": "1"})
    assert values == {"USER_ID": "1000", f"WITH_{name}": "1", "CUDA_IMAGE": base[1].replace("-base-", "-devel-")}


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [([], {"WITH_DLPROF": "1"}), ([], {"WITH_HOROVOD": "0"}), (["--cpu"], {"WITH_HOROVOD": "1"})],
)
def test_what_compiles_nothing_for_cuda_keeps_the_base(host: Host, arguments: list[str], extra: dict[str, str]) -> None:
    assert given(host, *arguments, **extra) == {"USER_ID": "1000", **extra}


def test_base_image_that_was_given_is_kept_where_something_compiles(host: Host) -> None:
    assert given(host, WITH_DEEPSPEED="1", BASE_IMAGE="mine:devel")["CUDA_IMAGE"] == "mine:devel"


# ---- extras ----


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("value", ["0", "1"])
def test_every_extra_is_passed_on(host: Host, name: str, value: str) -> None:
    assert given(host, **{f"WITH_{name}": value})[f"WITH_{name}"] == value


@pytest.mark.parametrize("name", EXTRAS)
@pytest.mark.parametrize("value", ["yes", "2", "true", " 1"])
def test_other_values_of_extras_are_refused(host: Host, name: str, value: str) -> None:
    refused(host.run("build_image.sh", **{f"WITH_{name}": value}), f"WITH_{name}={value}", "use 1 or 0")
    assert not host.called()


def test_empty_extras_are_left_to_the_dockerfile(host: Host) -> None:
    assert given(host, **{f"WITH_{name}": "" for name in EXTRAS}) == {"USER_ID": "1000"}


def test_flash_attn_on_the_cpu_is_refused(host: Host) -> None:
    refused(host.run("build_image.sh", "--cpu", WITH_FLASH_ATTN="1"), "WITH_FLASH_ATTN=1 needs CUDA", "--cpu")
    assert "WITH_FLASH_ATTN" in given(host, "--cpu", WITH_FLASH_ATTN="0")


@pytest.mark.parametrize(
    ("arguments", "extra", "parts"),
    [
        ([], {}, "torch NSIGHT"),
        ([], {"WITH_NSIGHT": "0", "WITH_DLPROF": "1"}, "torch DLPROF"),
        (["--cpu"], {}, "torch"),
        (["--cpu"], {"WITH_NSIGHT": "1", "WITH_HOROVOD": "1"}, "torch NSIGHT HOROVOD"),
    ],
)
def test_what_is_built_is_said(host: Host, arguments: list[str], extra: dict[str, str], parts: str) -> None:
    outcome = host.run("build_image.sh", *arguments, **extra)
    assert f"with docker; in it: {parts}\n" in outcome.stderr
    assert outcome.stderr.endswith("next: bash start_container.sh <data directory>\n")


@pytest.mark.parametrize("name", PASSED_ON)
def test_settings_of_pip_and_torch_are_passed_on(host: Host, name: str) -> None:
    assert given(host, **{name: PASSED_ON[name]}) == {"USER_ID": "1000", name: PASSED_ON[name]}
    assert name not in given(host, **{name: ""})


def test_other_settings_of_pip_are_not_passed_on(host: Host) -> None:
    assert given(host, PIP_NO_INDEX="1", HTTPS_PROXY="http://proxy", CUDA_IMAGE="x") == {"USER_ID": "1000"}


# ---- user ----


def test_user_is_the_caller(host: Host) -> None:
    host.caller(4321, 1)
    assert given(host)["USER_ID"] == "4321"


def test_user_of_sudo_is_who_called_it(host: Host) -> None:
    host.caller(0, 0)
    assert given(host, SUDO_UID="4321")["USER_ID"] == "4321"


def test_user_of_root_is_none_of_this_machine(host: Host) -> None:
    host.caller(0, 0)
    assert given(host)["USER_ID"] == "10001"


def test_user_of_root_who_calls_sudo_is_the_same_as_of_root(host: Host) -> None:
    host.caller(0, 0)
    assert given(host, SUDO_UID="0")["USER_ID"] == "10001"


def test_user_given_is_taken(host: Host) -> None:
    assert given(host, USER_ID="2000", SUDO_UID="4321")["USER_ID"] == "2000"
    host.caller(0, 0)
    assert given(host, USER_ID="2000", SUDO_UID="4321")["USER_ID"] == "2000"


@pytest.mark.parametrize("user", ["0", "00", "ada", "-1", "10 ", "1000:100", "1e3"])
def test_root_and_text_as_user_are_refused(host: Host, user: str) -> None:
    refused(host.run("build_image.sh", USER_ID=user), f"USER_ID={user}", "number of a user who is not root")
    assert not host.called()


# ---- the checkout ----


@pytest.mark.parametrize("name", ["NsightSystems-linux-public-2025.3.1.deb", "nsight-compute-linux-2025.3.1.run"])
def test_installers_in_the_wrong_folder_are_refused(host: Host, tmp_path: Path, name: str) -> None:
    copy = copy_of_the_scripts(tmp_path / "copy")
    (copy / "docker" / name).touch()
    refused(host.run(copy / "build_image.sh"), f"{name} lies in docker/", "move installers to docker/installers/")
    assert not host.called()
    (copy / "docker" / name).rename(copy / "docker" / "installers" / name)
    assert host.run(copy / "build_image.sh").returncode == 0


def test_checkout_with_a_space_in_its_path(host: Host, tmp_path: Path) -> None:
    copy = copy_of_the_scripts(tmp_path / "my copy")
    assert host.run(copy / "build_image.sh").returncode == 0
    assert host.call()[-1] == str(copy)
    assert option(host.call(), "--file") == [f"{copy}/docker/Dockerfile"]


def test_revision_is_the_checkouts_not_that_of_the_current_folder(host: Host) -> None:
    host.program("git", f"[[ $1 == -C && $2 == {shlex.quote(str(ROOT))} ]] && echo abc123-dirty")
    assert given(host) == {"USER_ID": "1000", "REVISION": "abc123-dirty"}


@pytest.mark.parametrize("missing", [True, False])
def test_revision_is_left_out_without_git(host: Host, missing: bool) -> None:
    if missing:
        (host.bin / "git").unlink()
    assert "REVISION" not in given(host)


def test_revision_is_a_hash_even_of_a_tag_and_says_what_was_changed(host: Host, tmp_path: Path) -> None:
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
        assert host.run(copy / "build_image.sh", **identity).returncode == 0
        revisions += [word for word in option(host.call(), "--build-arg") if word.startswith("REVISION=")]
        (copy / "docker/engine.sh").open("a").write("# changed\n")
    assert revisions == [f"REVISION={commit}", f"REVISION={commit}-dirty"]


# ---- how the engine builds ----


@pytest.mark.parametrize(
    ("version", "buildx", "buildkit"),
    [
        ("27.3.1", True, "1"),
        ("27.3.1", False, "0"),
        ("23.0.0", False, "0"),
        ("22.06.0", False, "1"),
        ("20.10.24", True, "1"),
        ("", True, "1"),
        ("", False, "0"),
    ],
)
def test_buildkit_is_used_where_docker_has_it(host: Host, version: str, buildx: bool, buildkit: str) -> None:
    no_buildx = "" if buildx else "yes"
    outcome = host.run("build_image.sh", FAKE_VERSION=version, FAKE_NO_BUILDX=no_buildx, DOCKER_BUILDKIT="9")
    assert outcome.returncode == 0
    assert (host.folder / "call.buildkit").read_text(encoding="utf-8") == buildkit
    assert ("install docker-buildx-plugin" in outcome.stderr) == (buildkit == "0")
    asked = [words for words in host.calls("docker") if words[0] == "buildx"]
    assert len(asked) == (0 if version.startswith("2") and int(version[:2]) < 23 else 1)


def test_failing_build_ends_with_the_engines_exit_code(host: Host) -> None:
    outcome = host.run("build_image.sh", FAKE_EXIT="17")
    assert outcome.returncode == 17
    assert "built bertbench" not in outcome.stderr


def test_print_runs_nothing_and_can_be_pasted(host: Host) -> None:
    extra = {"IMAGE": "a b", "PIP_EXTRA_INDEX_URL": "https://one https://two", "WITH_HOROVOD": "1"}
    outcome = host.run("build_image.sh", "--print", **extra)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.count("\n") == 1
    assert r"--tag a\ b" in outcome.stdout
    assert not host.called()
    assert shlex.split(outcome.stdout) == build(host, **extra)


def test_print_refuses_what_a_build_refuses(host: Host) -> None:
    refused(host.run("build_image.sh", "--print", WITH_DLPROF="no"), "WITH_DLPROF=no")


@pytest.mark.parametrize("argument", ["gpu", "--gpu", "", "."])
def test_other_arguments_are_refused(host: Host, argument: str) -> None:
    refused(host.run("build_image.sh", argument), f"'{argument}'", "usage: bash build_image.sh")
    assert not host.called()
