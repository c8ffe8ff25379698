"""docker/install: what each script installs in the image, on a machine of fakes: this system is not touched."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hosts import ROOT, Host

INSTALL = ROOT / "docker/install"
LOCKS = ROOT / "docker/locks"
TORCH = re.findall(r"^torch==(\S+)", (LOCKS / "torch.txt").read_text(encoding="utf-8"), re.MULTILINE)[0]


def run(host: Host, script: str, *arguments: str | Path, **extra: str) -> "subprocess.CompletedProcess[str]":
    return host.run(INSTALL / script, *map(str, arguments), **extra)


@pytest.fixture
def venv(host: Host) -> Path:
    """A virtual environment whose tools record their calls; VIRTUAL_ENV names it."""
    folder = host.folder / "venv"
    (folder / "bin").mkdir(parents=True)
    host.program("pip", folder=folder / "bin")
    host.program("python", "cat >/dev/null", folder / "bin")
    host.program("python3", "[[ $1 != -c ]]")
    host.variables["VIRTUAL_ENV"] = str(folder)
    return folder


# ---- torch.sh and packages.sh ----


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({}, ["--require-hashes", "--no-deps", "--requirement", f"{LOCKS}/torch.txt"]),
        ({"TORCH_INDEX": "https://index"}, ["--index-url", "https://index", f"torch=={TORCH}"]),
        ({"TORCH_INDEX": "https://index", "TORCH_VERSION": "8.0"}, ["--index-url", "https://index", "torch==8.0"]),
        ({"TORCH_VERSION": "8.0"}, ["torch==8.0"]),
        ({"TORCH_INDEX": "pip"}, [f"torch=={TORCH}"]),
    ],
)
def test_torch_is_the_locked_one_or_that_of_another_index_or_version(
    host: Host, venv: Path, extra: dict[str, str], words: list[str]
) -> None:
    assert run(host, "torch.sh", LOCKS / "torch.txt", **extra).returncode == 0
    assert host.calls("pip") == [["install", *words]]


@pytest.mark.parametrize(("extra", "locks"), [({}, ["packages"]), ({"WITH_DEEPSPEED": "1"}, ["packages", "deepspeed"])])
def test_packages_come_from_their_locks_with_hashes(
    host: Host, venv: Path, extra: dict[str, str], locks: list[str]
) -> None:
    assert run(host, "packages.sh", LOCKS, **extra).returncode == 0
    assert all("--require-hashes" in words and "--no-deps" in words for words in host.calls("pip"))
    assert [words[-1] for words in host.calls("pip")] == [f"{LOCKS}/{name}.txt" for name in locks]
    host.program("pip", "exit 23", venv / "bin")
    assert run(host, "packages.sh", LOCKS, **extra).returncode == 23


# ---- nsight.sh ----


@pytest.fixture
def image(host: Host) -> Host:
    """An image with NVIDIA's apt repository and none of the tools."""
    for name in ("vendor", "installers"):
        (host.folder / name).mkdir()
    grep = (host.bin / "grep").resolve()
    host.program("grep", f'if [[ $* == *" /etc/apt/"* ]]; then exit 0; fi\nexec {grep} "$@"')
    host.program("apt-cache", 'printf "%s\\n" $FAKE_PACKAGES')
    return host


def tool(image: Host, place: str, name: str) -> Path:
    """A tool where NVIDIA's packages leave it."""
    folder = image.folder / "vendor" / place
    folder.mkdir(parents=True)
    return image.program(name, folder=folder)


def nsight(host: Host, **extra: str) -> "subprocess.CompletedProcess[str]":
    return run(host, "nsight.sh", host.folder / "installers", host.bin, host.folder / "vendor", **extra)


def test_installers_are_used_and_the_newest_of_their_tools_is_linked(image: Host) -> None:
    (image.folder / "installers/systems.deb").touch()
    record = f": >{shlex.quote(str(image.folder))}/ran"
    (image.folder / "installers/compute.run").write_text(record, encoding="utf-8")
    tool(image, "nsight-systems/2025.9.1/bin", "nsys")
    newest = tool(image, "nsight-systems/2025.10.2/bin", "nsys")
    compute = tool(image, "nsight-compute/2025.3.1", "ncu")
    assert nsight(image).returncode == 0
    assert image.calls("apt-get")[1][-1] == f"{image.folder}/installers/systems.deb" and (image.folder / "ran").exists()
    assert ((image.bin / "nsys").readlink(), (image.bin / "ncu").readlink()) == (newest, compute)
