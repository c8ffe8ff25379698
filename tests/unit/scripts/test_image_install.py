"""docker/install: system packages, torch, the other packages, the checkout, the user; this system is not touched."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import ROOT, Host

INSTALL = ROOT / "docker/install"
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


def run(host: Host, script: str, *arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return host.run(INSTALL / script, *map(str, arguments), **extra)


def venv(host: Host) -> Path:
    """A virtual environment whose tools record their calls; VIRTUAL_ENV names it."""
    folder = host.folder / "venv"
    (folder / "bin").mkdir(parents=True)
    host.program("pip", PIP, folder / "bin")
    host.program("python", "cat >/dev/null", folder / "bin")
    host.variables["VIRTUAL_ENV"] = str(folder)
    return folder


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


def installed(host: Host) -> set[str]:
    """The packages that apt-get was asked for; it was asked once, after an update, and its lists are gone."""
    assert any(words[-1].startswith("/var/lib/apt/lists/") for words in host.calls("rm"))
    update, install = host.calls("apt-get")
    assert update == ["update"]
    assert install[:3] == ["install", "-y", "--no-install-recommends"]
    return set(install[3:])


def test_system_asks_for_no_python_where_the_base_has_one(host: Host) -> None:
    apt_gives(host, "3.9")
    system_python(host, "3.11")
    outcome = run(host, "system.sh")
    assert outcome.returncode == 0, outcome.stderr
    asked = installed(host)
    assert asked >= {"ca-certificates", "g++", "tini", "util-linux"}
    assert [name for name in asked if "python" in name] == []


@pytest.mark.parametrize(("version", "lacks"), [("3.10", ""), ("3.12", "headers"), ("3.12", "venv"), ("", "")])
def test_system_asks_for_python_where_it_is_missing_or_incomplete(host: Host, version: str, lacks: str) -> None:
    apt_gives(host, "3.12")
    if version:
        system_python(host, version, lacks)
    outcome = run(host, "system.sh")
    assert outcome.returncode == 0, outcome.stderr
    assert installed(host) >= {"python3", "python3-dev", "python3-venv", "tini"}


@pytest.mark.parametrize("version", ["3.8", "3.10"])
def test_system_fails_where_python_is_still_too_old(host: Host, version: str) -> None:
    apt_gives(host, version)
    outcome = run(host, "system.sh")
    assert outcome.returncode == 1
    for text in ("system.sh: bertbench needs Python 3.11 or newer", f"gives Python {version}.1", "BASE_IMAGE="):
        assert text in outcome.stderr


def test_system_ends_where_apt_fails(host: Host) -> None:
    system_python(host, "3.11")
    host.program("apt-get", "exit 100")
    assert run(host, "system.sh").returncode == 100


# ---- torch.sh ----


def torch(host: Host, **extra: str) -> tuple[list[list[str]], list[list[str]]]:
    """The calls of python3 -m venv and of pip."""
    venv(host)
    lock = host.folder / "torch.txt"
    lock.write_text(LOCKED_TORCH, encoding="utf-8")
    outcome = run(host, "torch.sh", lock, **extra)
    assert outcome.returncode == 0, outcome.stderr
    made = [words for words in host.calls("python3") if words[:2] == ["-m", "venv"]]
    assert ("base image's torch" in outcome.stdout) == ("--system-site-packages" in made[0])
    return made, host.calls("pip")


@pytest.mark.parametrize("extra", [{}, {"TORCH_INDEX": "https://index"}])
def test_torch_of_the_base_is_kept(host: Host, extra: dict[str, str]) -> None:
    host.program("python3", "[[ $1 != -c ]] || echo 2.11.0a0+nv26.2")
    made, pip = torch(host, **extra)
    assert made == [["-m", "venv", "--system-site-packages", f"{host.folder}/venv"]]
    assert pip == []


@pytest.mark.parametrize("extra", [{}, {"TORCH_VERSION": ""}, {"TORCH_VERSION": "9.1.0"}, {"TORCH_INDEX": ""}])
def test_torch_is_the_locked_one_with_its_hashes(host: Host, extra: dict[str, str]) -> None:
    host.program("python3", "[[ $1 != -c ]]")
    made, pip = torch(host, **extra)
    assert made == [["-m", "venv", f"{host.folder}/venv"]]
    assert pip == [["install", "--require-hashes", "--no-deps", "--requirement", f"{host.folder}/torch.txt"]]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"TORCH_INDEX": "https://index"}, ["--index-url", "https://index", "torch==9.1.0"]),
        ({"TORCH_INDEX": "https://index", "TORCH_VERSION": "8.0"}, ["--index-url", "https://index", "torch==8.0"]),
        ({"TORCH_VERSION": "8.0"}, ["torch==8.0"]),
        ({"TORCH_INDEX": "pip"}, ["torch==9.1.0"]),
    ],
)
def test_torch_of_another_index_or_version(host: Host, extra: dict[str, str], words: list[str]) -> None:
    host.program("python3", "[[ $1 != -c ]]")
    assert torch(host, **extra) == ([["-m", "venv", f"{host.folder}/venv"]], [["install", *words]])


def test_torch_reads_its_version_in_the_real_lock(host: Host) -> None:
    host.program("python3", "[[ $1 != -c ]]")
    venv(host)
    assert run(host, "torch.sh", ROOT / "docker/locks/torch.txt", TORCH_INDEX="https://index").returncode == 0
    version = host.calls("pip")[0][-1].removeprefix("torch==")
    assert [len(part) > 0 and part.isdigit() for part in version.split(".")] == [True] * 3


# ---- packages.sh ----

LOCKS = {"DEEPSPEED": "deepspeed", "FLASH_ATTN": "flash-attn"}


def packages(host: Host, **extra: str) -> list[list[str]]:
    """The calls of pip."""
    venv(host)
    outcome = run(host, "packages.sh", ROOT / "docker/locks", **extra)
    assert outcome.returncode == 0, outcome.stderr
    return host.calls("pip")


def locked(calls: list[list[str]]) -> list[str]:
    """The locks that pip installs, each with its hashes and nothing besides."""
    assert [words for words in calls if not {"install", "--require-hashes", "--no-deps"} <= set(words)] == []
    assert [words for words in calls if words[-2] != "--requirement"] == []
    return [str(Path(words[-1]).relative_to(ROOT / "docker/locks")) for words in calls]


@pytest.mark.parametrize("value", ["", "0"])
def test_packages_alone_unless_more_is_asked(host: Host, value: str) -> None:
    extras = ("DEEPSPEED", "HOROVOD", "FLASH_ATTN", "DLPROF")
    assert locked(packages(host, **{f"WITH_{name}": value for name in extras})) == ["packages.txt"]


@pytest.mark.parametrize("name", LOCKS)
def test_packages_asked_for_come_from_their_locks(host: Host, name: str) -> None:
    assert locked(packages(host, **{f"WITH_{name}": "1"})) == ["packages.txt", f"{LOCKS[name]}.txt"]


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


@pytest.mark.parametrize("name", ["DEEPSPEED", "HOROVOD", "FLASH_ATTN", "DLPROF"])
@pytest.mark.parametrize("value", ["yes", "2"])
def test_packages_refuse_other_values(host: Host, name: str, value: str) -> None:
    venv(host)
    outcome = run(host, "packages.sh", ROOT / "docker/locks", **{f"WITH_{name}": value})
    assert outcome.returncode == 1
    assert f"WITH_{name}={value} is not known: use 1 or 0" in outcome.stderr


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
    assert {"install", "--require-hashes", "--no-deps"} <= set(first)
    assert {"download", "--require-hashes", "--no-deps"} <= set(download)
    assert {"install", "--no-deps", "--no-build-isolation"} <= set(build)
    standards = {name: re.findall(r"\d+", (Path(build[-1]) / name).read_text(encoding="utf-8")) for name in files}
    assert standards == {"CMakeLists.txt": ["17"], "sub/CMakeLists.txt": ["17"], "sub/other.txt": ["14"]}
    _, needs, horovod = (words[0] for words in host.calls("requirements"))
    assert "horovod==" not in needs
    assert {line.partition("==")[0] for line in needs.splitlines() if "==" in line} == {"cloudpickle", "cmake"}
    assert horovod.startswith("horovod==")
    assert horovod.count("==") == 1
    assert "--hash=sha256:" in horovod
    assert host.calls("settings")[-1][1] == operations
    assert ["-c", "import horovod.torch"] in host.calls("python")
    assert ["-rf", build[-1]] in host.calls("rm")


def test_packages_end_where_pip_fails(host: Host) -> None:
    folder = venv(host)
    host.program("pip", "exit 23", folder / "bin")
    assert run(host, "packages.sh", ROOT / "docker/locks", WITH_DEEPSPEED="1").returncode == 23
    assert len(host.calls("pip")) == 1


# ---- checkout.sh ----


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
def test_checkout_takes_a_torch_in_the_range(host: Host, version: str) -> None:
    outcome = checkout(host, version)
    assert outcome.returncode == 0, outcome.stderr
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--editable", "."]
    assert host.calls("pip") == [install]
    assert host.calls("python")[-1][:2] == ["-m", "compileall"]


@pytest.mark.parametrize("version", ["2.9.1", "2.14.0", "3.0.0"])
def test_checkout_refuses_a_torch_out_of_the_range(host: Host, version: str) -> None:
    outcome = checkout(host, version)
    assert outcome.returncode == 1
    assert f"checkout.sh: torch {version} does not fit torch" in outcome.stderr
    assert "BASE_IMAGE" in outcome.stderr or "base image" in outcome.stderr
    assert "TORCH_VERSION" in outcome.stderr


def test_checkout_lets_any_uid_read_the_code_and_write_results(host: Host) -> None:
    assert checkout(host, "2.13.0").returncode == 0
    assert host.calls("chmod") == [["-R", "a+rX", "."], ["1777", "runs", "/data"]]
    assert host.calls("mkdir") == [["-p", "runs", "/data"]]
    compiled = set(host.calls("python")[-1]) - {"-m", "compileall", "-q"}
    packages_here = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert compiled == packages_here


# ---- user.sh ----


@pytest.fixture
def ended_at_useradd(host: Host) -> None:
    """Ends user.sh where it would go on to write /etc/passwd."""
    host.program("useradd", "kill -9 $PPID")


@pytest.mark.usefixtures("ended_at_useradd")
@pytest.mark.parametrize("uid", ["0", "00", "ada", "-5", "", "10 01"])
def test_user_refuses_root_and_text(host: Host, uid: str) -> None:
    outcome = run(host, "user.sh", uid)
    assert outcome.returncode == 1
    assert f"user.sh: USER_ID={uid}: give the number of a user who is not root" in outcome.stderr
    assert host.calls("useradd") == []


@pytest.mark.usefixtures("ended_at_useradd")
def test_user_needs_a_number(host: Host) -> None:
    assert run(host, "user.sh").returncode == 1
    assert host.calls("useradd") == []


@pytest.mark.usefixtures("ended_at_useradd")
def test_user_gets_the_uid_given_even_where_it_is_taken(host: Host) -> None:
    assert run(host, "user.sh", "1000").returncode == -9
    (words,) = host.calls("useradd")
    assert words[words.index("--uid") + 1] == "1000"
    assert {"--create-home", "--non-unique", "--no-log-init", "bertbench"} <= set(words)
