"""docker/install/nsight.sh: where Nsight Systems and Nsight Compute come from, without touching this system."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hosts import ROOT, Host

SCRIPT = ROOT / "docker/install/nsight.sh"
TOOLS = ("nsys", "ncu")
# A package or an installer leaves its tools where the true one does.
PLACES = {
    "nsight-systems": ("nsight-systems/2025.5.2/bin", "nsys"),
    "nsight-compute": ("nsight-compute/2025.3.1", "ncu"),
}


@pytest.fixture(autouse=True)
def image(host: Host) -> None:
    """An image with NVIDIA's apt repository and none of the tools."""
    for name in ("vendor", "local", "installers"):
        (host.folder / name).mkdir()
    local = shlex.quote(str(host.folder / "local"))
    # This machine's own /usr/local and /etc/apt play no part.
    find = (host.bin / "find").resolve()
    grep = (host.bin / "grep").resolve()
    host.program("find", f'words=("$@"); words=("${{words[@]/#\\/usr\\/local/{local}}}")\nexec {find} "${{words[@]}}"')
    host.program(
        "grep", f'if [[ $* == *" /etc/apt/"* ]]; then [[ -z $FAKE_NO_REPOSITORY ]]; exit; fi\nexec {grep} "$@"'
    )
    host.program("uname", 'echo "${FAKE_MACHINE:-x86_64}"')
    host.program(
        "apt-cache",
        'case $1 in pkgnames) printf "%s\\n" $FAKE_PACKAGES ;; show) [[ " $FAKE_PACKAGES " == *" $2 "* ]] ;; esac',
    )
    gives = "\n".join(
        f'if [[ $1 == install && " $* " == *{name}* ]]; then {leave(host, *PLACES[name])}; fi' for name in PLACES
    )
    host.program("apt-get", f"[[ -z $FAKE_APT_GIVES_NOTHING ]] || exit 0\n{gives}")


def leave(host: Host, place: str, tool: str) -> str:
    """Shell commands that leave a tool below /opt/nvidia."""
    folder = shlex.quote(str(host.folder / "vendor" / place))
    program = f"printf '#!/bin/sh\\necho {tool} of {place}\\n' >{folder}/{tool}"
    return f"mkdir -p {folder}; {program}; chmod_really {folder}/{tool}"


@pytest.fixture(autouse=True)
def chmod_really(host: Host) -> None:
    """The fake chmod does nothing; what an installer leaves has to be a program."""
    (host.bin / "chmod").unlink()
    host.real("chmod")
    (host.bin / "chmod").rename(host.bin / "chmod_plain")
    host.program("chmod_really", 'chmod_plain 755 "$@"')
    host.program("chmod")


def base_has(host: Host, *tools: str) -> None:
    for tool in tools:
        host.program(tool, f"echo {tool} of the base")


def nsight(host: Host, **extra: str) -> subprocess.CompletedProcess[str]:
    folders = (host.folder / "installers", host.bin, host.folder / "vendor")
    return host.run(SCRIPT, *map(str, folders), **extra)


def installed(host: Host) -> list[str]:
    """The packages of the one apt-get install, which comes after an update and leaves no package lists."""
    calls = host.calls("apt-get")
    assert any(words[-1].startswith("/var/lib/apt/lists/") for words in host.calls("rm"))
    assert [words[0] for words in calls] == ["update", "install"]
    assert calls[1][1:3] == ["-y", "--no-install-recommends"]
    return calls[1][3:]


def test_tools_of_the_base_are_kept(host: Host) -> None:
    base_has(host, "nsys", "ncu")
    outcome = nsight(host, WITH_NSIGHT="1")
    assert (outcome.returncode, outcome.stdout) == (0, "nsys of the base\nncu of the base\n")
    assert host.calls("apt-get") == host.calls("python3") == []


def test_tools_on_path_are_kept_where_others_lie_about(host: Host) -> None:
    base_has(host, "nsys", "ncu")
    (host.folder / "vendor/nsight-compute/2025.3.1").mkdir(parents=True)
    host.program("ncu", "echo another", host.folder / "vendor/nsight-compute/2025.3.1")
    outcome = nsight(host, WITH_NSIGHT="1")
    assert (outcome.returncode, outcome.stdout) == (0, "nsys of the base\nncu of the base\n"), outcome.stderr


@pytest.mark.parametrize("extra", [{}, {"WITH_NSIGHT": "0"}, {"WITH_NSIGHT": ""}])
def test_without_nsight_and_installers_nothing_happens(host: Host, extra: dict[str, str]) -> None:
    (host.folder / "installers/README.md").touch()
    outcome = nsight(host, **extra)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")
    assert host.calls("apt-get") == host.calls("apt-cache") == host.calls("rm") == []


@pytest.mark.parametrize("extra", [{"WITH_NSIGHT": "1"}, {"WITH_NSIGHT": "0"}])
def test_deb_installers_are_used_instead_of_the_repository(host: Host, extra: dict[str, str]) -> None:
    debs = [host.folder / "installers" / f"nsight-{name}-2025.deb" for name in ("compute", "systems")]
    for deb in debs:
        deb.touch()
    outcome = nsight(host, **extra)
    assert outcome.returncode == 0, outcome.stderr
    assert installed(host) == [str(deb) for deb in debs]
    assert host.calls("apt-cache") == []
    for tool in ("nsys", "ncu"):
        assert (host.bin / tool).is_symlink()


def test_run_installers_are_used_without_asking(host: Host) -> None:
    base_has(host, "nsys")
    record = "printf '%s\\0' installer \"$@\" $'\\36' >>$FAKE_LOG"
    text = f"{record}; {leave(host, *PLACES['nsight-compute'])}"
    (host.folder / "installers/nsight-compute.run").write_text(text, encoding="utf-8")
    outcome = nsight(host, WITH_NSIGHT="1")
    assert outcome.returncode == 0, outcome.stderr
    assert host.calls("installer") == [["--quiet", "--accept", "--", "-noprompt"]]
    assert outcome.stdout.endswith("ncu of nsight-compute/2025.3.1\n")
    assert host.calls("apt-get") == []


def test_only_the_tool_that_is_missing_is_installed(host: Host) -> None:
    base_has(host, "nsys")
    outcome = nsight(host, WITH_NSIGHT="1", FAKE_PACKAGES="nsight-compute-2025.3.1")
    assert outcome.returncode == 0, outcome.stderr
    assert installed(host) == ["nsight-compute-2025.3.1"]
    assert outcome.stdout.startswith("nsys of the base\n")


@pytest.mark.parametrize(("release", "name"), [("13.0.2", "13-0"), ("12.9", "12-9"), ("13.10.1", "13-10")])
def test_package_is_that_of_the_bases_cuda(host: Host, release: str, name: str) -> None:
    wanted = [f"cuda-nsight-systems-{name}", f"cuda-nsight-compute-{name}"]
    known = " ".join([*wanted, "nsight-systems-2026.1.1", "nsight-compute-2026.1.1"])
    assert nsight(host, WITH_NSIGHT="1", CUDA_VERSION=release, FAKE_PACKAGES=known).returncode == 0
    assert installed(host) == wanted


@pytest.mark.parametrize("release", ["", "13.0.2", "13"])
def test_package_is_the_newest_where_the_bases_cuda_has_none(host: Host, release: str) -> None:
    systems = "nsight-systems-2025.9.1 nsight-systems-2025.10.2 nsight-systems-2024.11.3 nsight-systems-cli-2026.1.1"
    compute = "nsight-compute-2025.3.1 nsight-compute-2025.2.0 nsight-compute-addon-l4t-2026.1 cuda-nsight-systems-12-8"
    known = f"{systems} {compute}"
    assert nsight(host, WITH_NSIGHT="1", CUDA_VERSION=release, FAKE_PACKAGES=known).returncode == 0
    assert installed(host) == ["nsight-systems-2025.10.2", "nsight-compute-2025.3.1"]


def test_package_without_versions_is_asked_for_by_its_plain_name(host: Host) -> None:
    assert nsight(host, WITH_NSIGHT="1").returncode == 0
    assert installed(host) == ["nsight-systems", "nsight-compute"]


def test_newest_of_several_installed_versions_is_linked(host: Host) -> None:
    places = [
        "nsight-systems/2025.9.1/bin",
        "nsight-systems/2025.10.2/bin",
        "nsight-systems/2025.11.1/target-linux-x64",
    ]
    commands = "\n".join(leave(host, place, "nsys") for place in places)
    (host.folder / "installers/nsight-systems.run").write_text(commands, encoding="utf-8")
    assert nsight(host).returncode == 0
    assert (host.bin / "nsys").readlink() == host.folder / "vendor/nsight-systems/2025.10.2/bin/nsys"


@pytest.mark.parametrize("place", ["cuda-13.0/bin", "NVIDIA-Nsight-Compute-2025.3"])
def test_tool_below_usr_local_is_linked(host: Host, place: str) -> None:
    base_has(host, "nsys")
    (host.folder / "local" / place).mkdir(parents=True)
    tool = host.program("ncu", "echo ncu of /usr/local", host.folder / "local" / place)
    outcome = nsight(host, WITH_NSIGHT="1")
    assert outcome.returncode == 0, outcome.stderr
    assert (host.bin / "ncu").readlink() == tool
    assert host.calls("apt-get") == []


@pytest.mark.parametrize("missing", TOOLS)
def test_tool_that_is_still_missing_is_an_error_with_the_remedy(host: Host, missing: str) -> None:
    base_has(host, *(tool for tool in TOOLS if tool != missing))
    outcome = nsight(host, WITH_NSIGHT="1", FAKE_APT_GIVES_NOTHING="yes")
    assert outcome.returncode == 1
    for text in (f"nsight.sh: no {missing} after the installation", "docker/installers", "WITH_NSIGHT=0"):
        assert text in outcome.stderr


@pytest.mark.parametrize(("machine", "folder"), [("x86_64", "x86_64"), ("aarch64", "sbsa")])
def test_repository_is_added_where_the_base_lacks_it(host: Host, machine: str, folder: str) -> None:
    release = Path("/etc/os-release")
    if not release.is_file():
        pytest.skip("this machine has no /etc/os-release")
    values = dict(line.split("=", 1) for line in release.read_text(encoding="utf-8").splitlines() if "=" in line)
    if "VERSION_ID" not in values:
        pytest.skip("this machine's release has no number")
    system = values["ID"].strip('"') + values["VERSION_ID"].strip('"').replace(".", "")
    host.program("python3")
    outcome = nsight(host, WITH_NSIGHT="1", FAKE_NO_REPOSITORY="yes", FAKE_MACHINE=machine)
    assert outcome.returncode == 0, outcome.stderr
    ((_, _, address, keyring),) = host.calls("python3")
    repositories = "https://developer.download.nvidia.com/compute/cuda/repos"
    assert address == f"{repositories}/{system}/{folder}/cuda-keyring_1.1-1_all.deb"
    assert keyring.endswith(".deb")
    assert host.calls("dpkg") == [["--install", keyring]]
    assert [keyring] in host.calls("rm")


def test_repository_of_the_base_is_not_added_again(host: Host) -> None:
    assert nsight(host, WITH_NSIGHT="1").returncode == 0
    assert host.calls("dpkg") == host.calls("python3") == []
