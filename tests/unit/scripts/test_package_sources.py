"""docker/package_sources.sh with a real apt, on an archive and a configuration made for the test."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hosts import BASH, ROOT

needs_apt = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("apt-config")), reason="there is no apt on this machine"
)
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
