"""docker/package_sources.sh with a real apt, on an archive and a configuration made for the test, and a real pip."""

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import BASH, ROOT

needs_apt = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("apt-config")), reason="there is no apt on this machine"
)
needs_ci = pytest.mark.skipif(not (ROOT / ".ci/run").exists(), reason="the image holds no .ci")
PACKAGES = {"main": "hello", "contrib": "beside", "non-free": "nsight-systems"}


def index(package: str) -> str:
    return (
        f"Package: {package}\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nFilename: pool/{package}.deb\n"
        f"Size: 1\nSHA256: {'0' * 64}\nDescription: stand-in\n\n"
    )


def archive(folder: Path, codename: str, label: str = "Debian") -> Path:
    """An archive of one release, with one package in each component, as a server would hold it."""
    release = folder / "dists" / codename
    sums = []
    for component, package in PACKAGES.items():
        place = release / component / "binary-all"
        place.mkdir(parents=True)
        (place / "Packages").write_text(index(package))
        digest = hashlib.sha256(index(package).encode()).hexdigest()
        sums.append(f" {digest} {len(index(package))} {component}/binary-all/Packages")
    (release / "Release").write_text(
        f"Origin: Debian\nLabel: {label}\nSuite: stable\nCodename: {codename}\nArchitectures: all\n"
        f"Components: {' '.join(PACKAGES)}\nDate: Sat, 01 Nov 2025 00:00:00 UTC\nSHA256:\n" + "\n".join(sums) + "\n"
    )
    return folder


class Machine:
    """An apt of its own, whose every file lies below one folder."""

    def __init__(self, folder: Path) -> None:
        for name in (
            "etc/sources.list.d",
            "etc/apt.conf.d",
            "etc/preferences.d",
            "state/lists/partial",
            "cache/archives/partial",
        ):
            (folder / name).mkdir(parents=True)
        (folder / "state/status").touch()
        self.parts = folder / "etc/sources.list.d"
        self.list = folder / "etc/sources.list"
        config = folder / "apt.conf"
        config.write_text(
            f'Dir::Etc "{folder}/etc/"; Dir::State "{folder}/state/"; Dir::State::status "{folder}/state/status";\n'
            f'Dir::Cache "{folder}/cache/"; APT::Sandbox::User ""; APT::Architecture "amd64";\n'
            'APT::Update::Post-Invoke-Success {}; Acquire::Languages "none";\n'
        )
        self.variables = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        script = f"set -euo pipefail\nsource {ROOT}/docker/package_sources.sh\n{command}\n"
        return subprocess.run(
            [BASH, "-c", script], env=self.variables, capture_output=True, text=True, timeout=60, check=False
        )

    def update(self) -> None:
        done = self.run("apt-get update -qq")
        assert done.returncode == 0 and not done.stderr.strip(), done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "apt")


# The same archive in each form that apt takes: behind a comment and another entry, with options, by suite and codename.
FORMS = {
    "one-line": (
        "debian.list",
        "# deb http://commented.invalid/ x main\n\ndeb [trusted=yes arch=amd64] {uri} bookworm main\n",
    ),
    "one-line-by-suite": (
        "sources.list",
        "deb [ trusted=yes ] {other} bookworm-security main\ndeb [trusted=yes] {uri} stable main # here\n",
    ),
    "stanzas": (
        "debian.sources",
        "# deb822\n\n# of two\nTypes: deb\nURIs: {other}\nSuites: bookworm-security\nComponents: main\nTrusted: yes\n\n"
        "Types: deb deb-src\nURIs: {uri}\n# a comment\nSuites: bookworm\nComponents:\n main\nTrusted: yes\n",
    ),
}  # fmt: skip


@needs_apt
@pytest.mark.parametrize("form", FORMS)
def test_components_are_added_beside_main_from_the_archive_that_apt_is_told(
    form: str, machine: Machine, tmp_path: Path
) -> None:
    own = archive(tmp_path / "own", "bookworm")
    (own / "dists/stable").symlink_to("bookworm")
    security = archive(tmp_path / "security", "bookworm-security", "Debian-Security")
    name, text = FORMS[form]
    place = machine.list if name == "sources.list" else machine.parts / name
    text = text.format(uri=f"file:{own}", other=f"file:{security}")
    # Sources of programs are no part of this archive.
    place.write_text(text.replace("deb deb-src", "deb"))
    machine.update()
    assert machine.run("apt-cache show nsight-systems").returncode != 0
    assert machine.run("debian_archive").stdout.strip() == f"file:{own}"
    assert machine.run("debian_has bookworm main").returncode == 0
    assert machine.run("debian_has bookworm non-free").returncode == 1

    done = machine.run("add_components bookworm extra contrib non-free")
    assert done.returncode == 0, done.stderr
    (added,) = [path for path in machine.parts.iterdir() if path.stem == "extra"]
    assert done.stdout.strip() == str(added)
    machine.update()  # apt says nothing of entries that disagree
    shown = machine.run("apt-cache show nsight-systems beside").stdout
    assert shown.count("Package: ") == 2
    assert machine.run("debian_has bookworm non-free").returncode == 0
    assert str(security) not in added.read_text() and str(own) in added.read_text()


@needs_apt
def test_a_machine_without_debians_archive_is_told_and_nothing_is_written(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("debian_archive").returncode == 1, "nothing was read yet"
    other = archive(tmp_path / "other", "bookworm", "A shop")
    (machine.parts / "other.list").write_text(f"deb [trusted=yes] file:{other} bookworm main\n")
    machine.update()
    assert machine.run("debian_archive").returncode == 1
    assert machine.run("add_components bookworm extra non-free").returncode == 1
    assert [path.name for path in machine.parts.iterdir()] == ["other.list"]


@needs_apt
@needs_ci
@pytest.mark.parametrize("archived", [True, False])
def test_continuous_integration_says_what_it_added_or_that_it_could_not(
    archived: bool, machine: Machine, tmp_path: Path
) -> None:
    text = (ROOT / ".ci/run").read_text(encoding="utf-8")
    body = text[text.index("add_nonfree() {") :]
    function = body[: body.index("\n}\n") + 3].replace("/etc/os-release", f"{tmp_path}/os-release")
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    if archived:
        own = archive(tmp_path / "own", "bookworm")
        (machine.parts / "debian.list").write_text(f"deb [trusted=yes] file:{own} bookworm main\n")
        machine.update()
    done = machine.run(f"{function}add_nonfree; add_nonfree")
    assert done.returncode == 0, done.stderr
    if archived:
        assert done.stdout.count("bertbench-nonfree.list") == 1, "the second call finds it there"
        assert machine.run("apt-cache show nsight-systems").returncode == 0
    else:
        assert "bookworm" in done.stdout and "nsight-systems" in done.stdout
        assert list(machine.parts.iterdir()) == []


def pip_told(text: str, folder: Path) -> dict[str, str]:
    """An environment in which pip reads this file after those of the machine; without text it reads none."""
    config = folder / "pip.conf"
    config.write_text(text)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    file = str(config) if text else os.devnull
    return {**plain, "PYTHON": sys.executable, "PIP_CONFIG_FILE": file}


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("", {}, ""),
        ("[global]\nindex-url = https://a.invalid/simple\n", {}, "https://a.invalid/simple"),
        ("[global]\nindex_url = https://a\n[install]\nindex-url = https://b\n", {}, "https://b"),
        ("[global]\nindex-url = https://a\n", {"PIP_INDEX_URL": "https://c"}, "https://c"),
        ("[global]\nindex-url = https://a\n[download]\nindex-url = https://b\n", {}, "https://a"),
        ("[global]\nindex-url =\n    https://a\n    https://b\n", {}, "https://a https://b"),
    ],
)
def test_the_index_is_the_one_that_pip_is_told(
    text: str, variables: dict[str, str], expected: str, tmp_path: Path
) -> None:
    environment = pip_told(text, tmp_path) | variables
    script = f"source {ROOT}/docker/package_sources.sh; pip_setting index-url"
    done = subprocess.run([BASH, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == expected


def chosen(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """What image_test.sh's choose_packages sets for the build and for containers."""
    text = (ROOT / "docker/image_test.sh").read_text(encoding="utf-8")
    body = text[text.index("choose_packages() {") :]
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "TORCH_INDEX", "BUILDAH_OPTIONS", "RUN_OPTIONS")
    shown = "".join(f'printf "%s=%s\\n" {name} "${{{name}-unset}}"\n' for name in names)
    script = f"set -euo pipefail\nsource {ROOT}/docker/package_sources.sh\nroot=/none work={tmp_path}\n"
    script += body[: body.index("\n}\n") + 3] + "choose_packages\n" + shown
    done = subprocess.run([BASH, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_the_image_test_hands_the_machines_indexes_on(tmp_path: Path) -> None:
    one, other, wheels = places = [tmp_path / name for name in ("one/simple", "one/other", "wheels")]
    for place in (*places, tmp_path / "told"):
        place.mkdir(parents=True)
    text = f"[global]\nextra-index-url =\n    file://{one}\n    file://{other}\nindex-url = https://a.invalid/simple\n"
    given = chosen(tmp_path, pip_told(text, tmp_path / "told") | {"PIP_FIND_LINKS": str(wheels)})
    assert given["PIP_INDEX_URL"] == "https://a.invalid/simple"
    assert given["PIP_EXTRA_INDEX_URL"] == f"file://{one} file://{other}"
    assert given["PIP_FIND_LINKS"] == str(wheels) and given["TORCH_INDEX"] == "pip"
    volumes = [word for word in given["RUN_OPTIONS"].split() if str(tmp_path) in word]
    # The folder above both indexes once, the wheels, and pip's settings where pip in the container reads them.
    beside = [f"--volume={place}:{place}:ro" for place in (tmp_path / "one", wheels)]
    assert volumes == [*beside, f"--volume={tmp_path}/pip.conf:/etc/pip.conf:ro"]
    assert [word for word in given["BUILDAH_OPTIONS"].split() if str(tmp_path) in word] == beside
    inside = configparser.ConfigParser(interpolation=None)
    inside.read(tmp_path / "pip.conf")
    assert dict(inside["global"]) == {
        "index-url": "https://a.invalid/simple",
        "extra-index-url": f"file://{one} file://{other}",
        "find-links": str(wheels),
    }


def test_the_image_test_leaves_the_dockerfiles_index_where_pip_is_told_none(tmp_path: Path) -> None:
    (tmp_path / "told").mkdir()
    given = chosen(tmp_path, pip_told("", tmp_path / "told"))
    names = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "TORCH_INDEX")
    assert {given[name] for name in names} == {"unset"}


@needs_ci
def test_neither_script_names_a_server_for_packages() -> None:
    for name in (".ci/run", "docker/image_test.sh", "docker/package_sources.sh"):
        commands = [
            line for line in (ROOT / name).read_text(encoding="utf-8").split("\n") if not line.lstrip().startswith("#")
        ]
        assert re.findall(r"\b(?:https?|ftp)://\S+", "\n".join(commands)) == [], name
