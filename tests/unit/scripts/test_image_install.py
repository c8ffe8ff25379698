"""docker/install: what each script installs in the image, on a machine of fakes: this system is not touched."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import ROOT, Host

INSTALL = ROOT / "docker/install"
LOCKS = ROOT / "docker/locks"
LOCKED = {"install", "--require-hashes", "--no-deps"}


def run(host: Host, script: str, *arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return host.run(INSTALL / script, *map(str, arguments), **extra)


def installed(host: Host) -> list[str]:
    """The packages of the one apt-get install, which comes after an update and leaves no package lists."""
    assert any(words[-1].startswith("/var/lib/apt/lists/") for words in host.calls("rm"))
    update, install = host.calls("apt-get")
    assert update == ["update"] and install[:3] == ["install", "-y", "--no-install-recommends"]
    return install[3:]


# ---- system.sh ----


def system_python(host: Host, version: str, lacks: str = "") -> None:
    """The base's python3: judged by the script's own code on a version, modules and headers that are made up."""
    include = host.folder / "include"
    include.mkdir(exist_ok=True)
    (include / "Python.h").unlink(missing_ok=True)
    if lacks != "headers":
        (include / "Python.h").touch()
    code = (
        f"import sys, sysconfig; sys.version_info = ({version.replace('.', ', ')}, 0); "
        f"sysconfig.get_path = lambda name: {str(include)!r}; sys.modules.update({{{lacks!r}: None}}); "
        "exec(sys.stdin.read())"
    )
    shown = f"if [[ $1 == --version ]]; then echo 'Python {version}.1'; exit; fi"
    host.program("python3", f"{shown}\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)}")


def apt_gives(host: Host, version: str) -> None:
    """apt-get install python3 gives this version from now on, whole."""
    system_python(host, version)
    (host.bin / "python3").rename(host.folder / "python3")
    give = f"cp {shlex.quote(str(host.folder))}/python3 {shlex.quote(str(host.bin))}/python3"
    header = f": >{shlex.quote(str(host.folder))}/include/Python.h"
    host.program("apt-get", f'if [[ " $* " == *" python3 "* ]]; then {give}; {header}; fi')
    host.real("cp")


@pytest.mark.parametrize(
    ("version", "lacks", "asks"),
    [("3.11", "", False), ("3.10", "", True), ("3.12", "headers", True), ("3.12", "venv", True), ("", "", True)],
)
def test_system_asks_for_python_only_where_it_is_missing_or_incomplete(
    host: Host, version: str, lacks: str, asks: bool
) -> None:
    apt_gives(host, "3.12")
    if version:
        system_python(host, version, lacks)
    outcome = run(host, "system.sh")
    assert outcome.returncode == 0, outcome.stderr
    asked = set(installed(host))
    assert asked >= {"ca-certificates", "g++", "tini", "util-linux"}
    assert {name for name in asked if "python" in name} == (
        {"python3", "python3-dev", "python3-venv"} if asks else set()
    )


def test_system_fails_where_python_is_still_too_old_or_apt_fails(host: Host) -> None:
    apt_gives(host, "3.10")
    outcome = run(host, "system.sh")
    assert outcome.returncode == 1
    for text in ("system.sh: bertbench needs Python 3.11 or newer", "gives Python 3.10.1", "BASE_IMAGE="):
        assert text in outcome.stderr
    host.program("apt-get", "exit 100")
    assert run(host, "system.sh").returncode == 100


# ---- torch.sh and packages.sh ----

LOCKED_TORCH = (
    "torch==9.1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:ab\nfilelock==1.0 \\\n    --hash=sha256:cd\n"
)
# pip shows what it was asked, and what a file of requirements holds.
PIP = """previous=
for word in "$@"; do
    case $previous in
        --requirement) printf '%s\\0' requirements "$(cat "$word")" $'\\36' >>"$FAKE_LOG" ;;
        --dest) tar --create --gzip --file "$word/horovod-1.tar.gz" --directory "$FAKE_SOURCES" horovod-1 ;;
    esac
    previous=$word
done
printf '%s\\0' settings "${DS_ACCELERATOR-}" "${HOROVOD_GPU_OPERATIONS-}" $'\\36' >>"$FAKE_LOG"
"""


def venv(host: Host) -> Path:
    """A virtual environment whose tools record their calls; VIRTUAL_ENV names it."""
    folder = host.folder / "venv"
    (folder / "bin").mkdir(parents=True)
    host.program("pip", PIP, folder / "bin")
    host.program("python", "cat >/dev/null", folder / "bin")
    host.variables["VIRTUAL_ENV"] = str(folder)
    return folder


def torch(host: Host, base: str = "", **extra: str) -> tuple[list[list[str]], list[list[str]]]:
    """The calls of python3 -m venv and of pip, on a base whose torch has this version."""
    host.program("python3", f"[[ $1 != -c ]] || echo {base}" if base else "[[ $1 != -c ]]")
    venv(host)
    lock = host.folder / "torch.txt"
    lock.write_text(LOCKED_TORCH, encoding="utf-8")
    outcome = run(host, "torch.sh", lock, **extra)
    assert outcome.returncode == 0, outcome.stderr
    made = [words for words in host.calls("python3") if words[:2] == ["-m", "venv"]]
    assert ("base image's torch" in outcome.stdout) == ("--system-site-packages" in made[0]) == bool(base)
    return made, host.calls("pip")


FROM_LOCK = ["--require-hashes", "--no-deps", "--requirement", "LOCK"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({}, FROM_LOCK),
        ({"TORCH_VERSION": "9.1.0", "TORCH_INDEX": ""}, FROM_LOCK),
        ({"TORCH_INDEX": "https://index"}, ["--index-url", "https://index", "torch==9.1.0"]),
        ({"TORCH_INDEX": "https://index", "TORCH_VERSION": "8.0"}, ["--index-url", "https://index", "torch==8.0"]),
        ({"TORCH_VERSION": "8.0"}, ["torch==8.0"]),
        ({"TORCH_INDEX": "pip"}, ["torch==9.1.0"]),
    ],
)
def test_torch_is_the_locked_one_or_that_of_another_index_or_version(
    host: Host, extra: dict[str, str], words: list[str]
) -> None:
    lock = f"{host.folder}/torch.txt"
    wanted = ["install", *(lock if word == "LOCK" else word for word in words)]
    assert torch(host, **extra) == ([["-m", "venv", f"{host.folder}/venv"]], [wanted])


def test_torch_of_the_base_is_kept(host: Host) -> None:
    made, pip = torch(host, "2.11.0a0+nv26.2", TORCH_INDEX="https://index")
    assert (made, pip) == ([["-m", "venv", "--system-site-packages", f"{host.folder}/venv"]], [])


def test_torch_reads_its_version_in_the_real_lock(host: Host) -> None:
    host.program("python3", "[[ $1 != -c ]]")
    venv(host)
    assert run(host, "torch.sh", LOCKS / "torch.txt", TORCH_INDEX="https://index").returncode == 0
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", host.calls("pip")[0][-1])


def packages(host: Host, **extra: str) -> list[list[str]]:
    """The calls of pip."""
    venv(host)
    outcome = run(host, "packages.sh", LOCKS, **extra)
    assert outcome.returncode == 0, outcome.stderr
    return host.calls("pip")


@pytest.mark.parametrize(
    ("variables", "locks"),
    [
        ({"WITH_DEEPSPEED": "", "WITH_HOROVOD": "0", "WITH_DLPROF": ""}, ["packages"]),
        ({"WITH_DEEPSPEED": "1"}, ["packages", "deepspeed"]),
    ],
)
def test_packages_come_from_their_locks_with_hashes_and_nothing_besides(
    host: Host, variables: dict[str, str], locks: list[str]
) -> None:
    calls = packages(host, **variables)
    assert [words for words in calls if not set(words) >= LOCKED or words[-2] != "--requirement"] == []
    assert [words[-1] for words in calls] == [f"{LOCKS}/{name}.txt" for name in locks]


@pytest.mark.parametrize(("nvcc", "accelerator"), [(True, ""), (False, "cpu")])
def test_packages_build_deepspeed_for_what_can_be_compiled(host: Host, nvcc: bool, accelerator: str) -> None:
    if nvcc:
        host.program("nvcc")
    packages(host, WITH_DEEPSPEED="1")
    assert host.calls("settings")[1][0] == accelerator


def test_packages_take_dlprof_from_nvidias_index(host: Host) -> None:
    _, words = packages(host, WITH_DLPROF="1")
    assert words[:-1] == ["install", "--no-deps", "--index-url", "https://pypi.ngc.nvidia.com"]
    assert words[-1].startswith("nvidia-dlprof-pytorch-nvtx==")


@pytest.mark.parametrize("name", ["DEEPSPEED", "HOROVOD", "DLPROF"])
def test_packages_refuse_other_values_and_end_where_pip_fails(host: Host, name: str) -> None:
    folder = venv(host)
    outcome = run(host, "packages.sh", LOCKS, **{f"WITH_{name}": "yes"})
    assert outcome.returncode == 1 and f"WITH_{name}=yes " in outcome.stderr and "use 1 or 0" in outcome.stderr
    host.log_file.unlink(missing_ok=True)
    host.program("pip", "exit 23", folder / "bin")
    assert run(host, "packages.sh", LOCKS, **{f"WITH_{name}": "1"}).returncode == 23
    assert len(host.calls("pip")) == 1


@pytest.mark.parametrize(("nvcc", "operations"), [(True, "NCCL"), (False, "")])
def test_packages_build_horovod_from_corrected_sources(host: Host, nvcc: bool, operations: str) -> None:
    sources = host.folder / "sources"
    (sources / "horovod-1/sub").mkdir(parents=True)
    files = ("CMakeLists.txt", "sub/CMakeLists.txt", "sub/other.txt")
    for name in files:
        (sources / "horovod-1" / name).write_text("set(CMAKE_CXX_STANDARD 14)\n", encoding="utf-8")
    if nvcc:
        host.program("nvcc")
    _, first, download, build = packages(host, WITH_HOROVOD="1", FAKE_SOURCES=str(sources))
    assert set(first) >= LOCKED and set(download) >= {"download", "--require-hashes", "--no-deps"}
    assert {"install", "--no-deps", "--no-build-isolation"} <= set(build)
    standards = {name: re.findall(r"\d+", (Path(build[-1]) / name).read_text(encoding="utf-8")) for name in files}
    assert standards == {"CMakeLists.txt": ["17"], "sub/CMakeLists.txt": ["17"], "sub/other.txt": ["14"]}
    _, needs, horovod = (words[0] for words in host.calls("requirements"))
    assert {line.partition("==")[0] for line in needs.splitlines() if "==" in line} == {"cloudpickle", "cmake"}
    assert horovod.startswith("horovod==") and horovod.count("==") == 1 and "--hash=sha256:" in horovod
    assert host.calls("settings")[-1][1] == operations
    assert ["-c", "import horovod.torch"] in host.calls("python")
    assert ["-rf", build[-1]] in host.calls("rm")


# ---- checkout.sh and user.sh ----


def checkout(host: Host, torch_version: str, wanted: str = "torch>=2.10,<2.14") -> subprocess.CompletedProcess[str]:
    """Install a checkout where importlib.metadata finds this torch; mkdir and chmod are fakes: they name /data."""
    folder = venv(host)
    for name, version, needs in (("bertbench", "1", f"Requires-Dist: {wanted}\n"), ("torch", torch_version, "")):
        info = host.folder / f"site/{name}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}Requires-Dist: numpy>=99\n"
        (info / "METADATA").write_text(text, encoding="utf-8")
    run_python = f'[[ $1 == -m ]] && exit; exec {shlex.quote(sys.executable)} "$@"'
    host.program("python", run_python, folder / "bin")
    host.program("mkdir", f"[[ $PWD == {shlex.quote(str(host.folder))}/checkout ]]")
    (host.folder / "checkout").mkdir()
    return run(host, "checkout.sh", host.folder / "checkout", PYTHONPATH=f"{host.folder}/site")


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cu130", "2.11.0a0+nv26.2"])
def test_checkout_takes_a_torch_in_the_range_and_lets_any_uid_read_the_code_and_write_results(
    host: Host, version: str
) -> None:
    outcome = checkout(host, version)
    assert outcome.returncode == 0, outcome.stderr
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--editable", "."]
    assert host.calls("pip") == [install]
    assert host.calls("mkdir") == [["-p", "runs", "/data"]]
    assert host.calls("chmod") == [["-R", "a+rX", "."], ["1777", "runs", "/data"]]
    compiled = host.calls("python")[-1]
    assert compiled[:2] == ["-m", "compileall"]
    packages_here = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert set(compiled) - {"-m", "compileall", "-q"} == packages_here | {"bertbench.py"}


@pytest.mark.parametrize("version", ["2.9.1", "2.14.0", "3.0.0"])
def test_checkout_refuses_a_torch_out_of_the_range(host: Host, version: str) -> None:
    outcome = checkout(host, version)
    assert outcome.returncode == 1
    assert f"checkout.sh: torch {version} does not fit torch" in outcome.stderr
    assert re.search("BASE_IMAGE|base image", outcome.stderr) and "TORCH_VERSION" in outcome.stderr


@pytest.mark.parametrize("uid", ["0", "00", "ada", "-5", "", "10 01", None])
def test_user_refuses_root_text_and_nothing(host: Host, uid: str | None) -> None:
    host.program("useradd", "kill -9 $PPID")  # else user.sh would go on to write /etc/passwd
    outcome = run(host, "user.sh", *([] if uid is None else [uid]))
    assert outcome.returncode == 1
    assert uid is None or f"user.sh: USER_ID={uid}: give the number of a user who is not root" in outcome.stderr
    assert host.calls("useradd") == []


def test_user_gets_the_uid_given_even_where_it_is_taken(host: Host) -> None:
    host.program("useradd", "kill -9 $PPID")
    assert run(host, "user.sh", "1000").returncode == -9
    (words,) = host.calls("useradd")
    assert words[words.index("--uid") + 1] == "1000"
    assert {"--create-home", "--non-unique", "--no-log-init", "bertbench"} <= set(words)


# ---- nsight.sh ----

TOOLS = ("nsys", "ncu")
# A package or an installer leaves its tools where the true one does.
PLACES = {
    "nsight-systems": ("nsight-systems/2025.5.2/bin", "nsys"),
    "nsight-compute": ("nsight-compute/2025.3.1", "ncu"),
}
OF_THE_BASE = "nsys of the base\nncu of the base\n"


@pytest.fixture
def image(host: Host) -> Host:
    """An image with NVIDIA's apt repository and none of the tools."""
    for name in ("vendor", "local", "installers"):
        (host.folder / name).mkdir()
    local = shlex.quote(str(host.folder / "local"))
    # This machine's own /usr/local and /etc/apt play no part.
    find, grep = (host.bin / "find").resolve(), (host.bin / "grep").resolve()
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
    # The fake chmod does nothing; what an installer leaves has to be a program.
    (host.bin / "chmod").unlink()
    host.real("chmod")
    (host.bin / "chmod").rename(host.bin / "chmod_plain")
    host.program("chmod_really", 'chmod_plain 755 "$@"')
    host.program("chmod")
    return host


def leave(host: Host, place: str, tool: str) -> str:
    """Shell commands that leave a tool below /opt/nvidia."""
    folder = shlex.quote(str(host.folder / "vendor" / place))
    program = f"printf '#!/bin/sh\\necho {tool} of {place}\\n' >{folder}/{tool}"
    return f"mkdir -p {folder}; {program}; chmod_really {folder}/{tool}"


def base_has(host: Host, *tools: str) -> None:
    for tool in tools:
        host.program(tool, f"echo {tool} of the base")


def nsight(host: Host, **extra: str) -> subprocess.CompletedProcess[str]:
    folders = (host.folder / "installers", host.bin, host.folder / "vendor")
    return run(host, "nsight.sh", *folders, **extra)


def done(host: Host, **extra: str) -> str:
    outcome = nsight(host, **extra)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_nsight_of_the_base_is_kept_where_others_lie_about(image: Host) -> None:
    base_has(image, *TOOLS)
    (image.folder / "vendor/nsight-compute/2025.3.1").mkdir(parents=True)
    image.program("ncu", "echo another", image.folder / "vendor/nsight-compute/2025.3.1")
    assert done(image, WITH_NSIGHT="1") == OF_THE_BASE
    assert image.calls("apt-get") == image.calls("python3") == []


@pytest.mark.parametrize("extra", [{}, {"WITH_NSIGHT": "0"}, {"WITH_NSIGHT": ""}])
def test_nsight_that_nobody_asked_for_is_not_installed(image: Host, extra: dict[str, str]) -> None:
    (image.folder / "installers/README.md").touch()
    outcome = nsight(image, **extra)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")
    assert image.calls("apt-get") == image.calls("apt-cache") == image.calls("rm") == []


@pytest.mark.parametrize("asked", ["1", "0"])
def test_deb_installers_are_used_instead_of_the_repository(image: Host, asked: str) -> None:
    debs = [image.folder / "installers" / f"nsight-{name}-2025.deb" for name in ("compute", "systems")]
    for deb in debs:
        deb.touch()
    done(image, WITH_NSIGHT=asked)
    assert installed(image) == [str(deb) for deb in debs] and image.calls("apt-cache") == []
    assert all((image.bin / tool).is_symlink() for tool in TOOLS)


def test_run_installers_are_used_without_asking(image: Host) -> None:
    base_has(image, "nsys")
    record = "printf '%s\\0' installer \"$@\" $'\\36' >>$FAKE_LOG"
    text = f"{record}; {leave(image, *PLACES['nsight-compute'])}"
    (image.folder / "installers/nsight-compute.run").write_text(text, encoding="utf-8")
    assert done(image, WITH_NSIGHT="1").endswith("ncu of nsight-compute/2025.3.1\n")
    assert image.calls("installer") == [["--quiet", "--accept", "--", "-noprompt"]]
    assert image.calls("apt-get") == []


SYSTEMS = "nsight-systems-2025.9.1 nsight-systems-2025.10.2 nsight-systems-2024.11.3 nsight-systems-cli-2026.1.1"
COMPUTE = "nsight-compute-2025.3.1 nsight-compute-2025.2.0 nsight-compute-addon-l4t-2026.1 cuda-nsight-systems-12-8"
NEWEST = ["nsight-systems-2025.10.2", "nsight-compute-2025.3.1"]


@pytest.mark.parametrize(
    ("release", "known", "wanted"),
    [
        *(
            (release, f"cuda-nsight-systems-{name} cuda-nsight-compute-{name} {SYSTEMS} {COMPUTE}",
             [f"cuda-nsight-systems-{name}", f"cuda-nsight-compute-{name}"])
            for release, name in (("13.0.2", "13-0"), ("12.9", "12-9"), ("13.10.1", "13-10"))
        ),
        *((release, f"{SYSTEMS} {COMPUTE}", NEWEST) for release in ("", "13.0.2", "13")),
        ("", "", ["nsight-systems", "nsight-compute"]),
    ],
)  # fmt: skip
def test_packages_of_nsight_are_those_of_the_bases_cuda_or_the_newest(
    image: Host, release: str, known: str, wanted: list[str]
) -> None:
    done(image, WITH_NSIGHT="1", CUDA_VERSION=release, FAKE_PACKAGES=known)
    assert installed(image) == wanted
    assert image.calls("dpkg") == image.calls("python3") == [], "the base has the repository"


def test_only_the_tool_that_is_missing_is_installed(image: Host) -> None:
    base_has(image, "nsys")
    assert done(image, WITH_NSIGHT="1", FAKE_PACKAGES="nsight-compute-2025.3.1").startswith("nsys of the base\n")
    assert installed(image) == ["nsight-compute-2025.3.1"]


def test_the_newest_of_several_installed_versions_is_linked(image: Host) -> None:
    places = ("2025.9.1/bin", "2025.10.2/bin", "2025.11.1/target-linux-x64")
    commands = "\n".join(leave(image, f"nsight-systems/{place}", "nsys") for place in places)
    (image.folder / "installers/nsight-systems.run").write_text(commands, encoding="utf-8")
    done(image)
    assert (image.bin / "nsys").readlink() == image.folder / "vendor/nsight-systems/2025.10.2/bin/nsys"


@pytest.mark.parametrize("place", ["cuda-13.0/bin", "NVIDIA-Nsight-Compute-2025.3"])
def test_a_tool_below_usr_local_is_linked(image: Host, place: str) -> None:
    base_has(image, "nsys")
    (image.folder / "local" / place).mkdir(parents=True)
    tool = image.program("ncu", "echo ncu of /usr/local", image.folder / "local" / place)
    done(image, WITH_NSIGHT="1")
    assert (image.bin / "ncu").readlink() == tool and image.calls("apt-get") == []


@pytest.mark.parametrize("missing", TOOLS)
def test_a_tool_that_is_still_missing_is_an_error_with_the_remedy(image: Host, missing: str) -> None:
    base_has(image, *(tool for tool in TOOLS if tool != missing))
    outcome = nsight(image, WITH_NSIGHT="1", FAKE_APT_GIVES_NOTHING="yes")
    assert outcome.returncode == 1
    for text in (f"nsight.sh: no {missing} after the installation", "docker/installers", "WITH_NSIGHT=0"):
        assert text in outcome.stderr


@pytest.mark.parametrize(("machine", "folder"), [("x86_64", "x86_64"), ("aarch64", "sbsa")])
def test_nvidias_repository_is_added_where_the_base_lacks_it(image: Host, machine: str, folder: str) -> None:
    release = Path("/etc/os-release")
    lines = release.read_text(encoding="utf-8").splitlines() if release.is_file() else []
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    if "VERSION_ID" not in values:
        pytest.skip("this machine's /etc/os-release has no number")
    system = values["ID"].strip('"') + values["VERSION_ID"].strip('"').replace(".", "")
    image.program("python3")
    done(image, WITH_NSIGHT="1", FAKE_NO_REPOSITORY="yes", FAKE_MACHINE=machine)
    ((_, _, address, keyring),) = image.calls("python3")
    repositories = "https://developer.download.nvidia.com/compute/cuda/repos"
    assert address == f"{repositories}/{system}/{folder}/cuda-keyring_1.1-1_all.deb" and keyring.endswith(".deb")
    assert image.calls("dpkg") == [["--install", keyring]] and [keyring] in image.calls("rm")
