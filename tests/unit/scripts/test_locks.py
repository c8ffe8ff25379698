"""docker/locks: exact versions with hashes, that fit pyproject.toml and each other."""

import re
import tomllib
from functools import cache

import pytest
from hosts import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAMES = ["deepspeed", "horovod", "packages", "torch"]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def text(name: str) -> str:
    return (ROOT / f"docker/locks/{name}.txt").read_text(encoding="utf-8")


@cache
def entries(name: str) -> tuple[tuple[Requirement, str], ...]:
    """The requirements of a lock with what stands after each of them."""
    lines = re.sub(r"^\s*#.*\n", "", text(name), flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    parts = [re.split(r"\s(?=--)", line.strip(), maxsplit=1) for line in lines if line.strip()]
    return tuple((Requirement(part[0]), part[1] if len(part) > 1 else "") for part in parts)


def versions(name: str) -> dict[str, set[str]]:
    """Package -> its versions; several where Python's version decides."""
    found: dict[str, set[str]] = {}
    for requirement, _ in entries(name):
        found.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier).removeprefix("=="))
    return found


def wanted(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [
        Requirement(one) for one in [*project["dependencies"], *(one for extra in extras for one in optional[extra])]
    ]


def unfit(requirements: list[Requirement], locked: dict[str, set[str]]) -> list[str]:
    """The requirements that a lock does not fulfil."""
    missing = {str(one) for one in requirements if canonicalize_name(one.name) not in locked}
    wrong = {
        str(one)
        for one in requirements
        for version in locked.get(canonicalize_name(one.name), ())
        if not one.specifier.contains(version, prereleases=True)
    }
    return sorted(missing | wrong)


def test_locks_are_those_that_the_image_installs() -> None:
    assert sorted(path.stem for path in (ROOT / "docker/locks").iterdir()) == NAMES
    read = "".join((ROOT / f"docker/install/{name}.sh").read_text(encoding="utf-8") for name in ("torch", "packages"))
    assert [name for name in NAMES if not re.search(rf"locked {name}\b|locks/{name}\.txt", read)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_requirement_is_pinned_and_has_hashes(name: str) -> None:
    assert entries(name)
    for requirement, rest in entries(name):
        assert re.fullmatch(r"==[\w.+!]+", str(requirement.specifier)), requirement
        assert not requirement.extras
        assert HASH.search(rest), f"{requirement} has no hash"
        assert HASH.sub("", rest).strip() == ""


@pytest.mark.parametrize("name", NAMES)
def test_no_lock_holds_an_address_or_a_path(name: str) -> None:
    lines = [line for line in text(name).splitlines() if not HASH.fullmatch(line.strip(" \\"))]
    assert [line for line in lines if re.search(r"://|^\s*-|/|@|\bfile:", line)] == []
    assert [requirement for requirement, _ in entries(name) if requirement.url] == []


def test_torch_fits_the_range_of_pyproject() -> None:
    torch = [one for one in wanted() if one.name == "torch"]
    assert len(torch) == 1
    assert unfit(torch, versions("torch")) == []
    assert len(versions("torch")["torch"]) == 1


def test_torch_comes_with_its_cuda_libraries_and_locked_for_linux_alone() -> None:
    locked = versions("torch")
    assert {"triton", "sympy", "filelock"} <= set(locked)
    assert [name for name in locked if name.startswith("nvidia-cudnn")]
    assert [name for name in locked if name.startswith("nvidia-nccl")]
    assert [str(one) for one, _ in entries("torch") if "linux" not in str(one.marker)] == []


def test_packages_fulfil_what_bertbench_needs_and_hold_torchs_other_needs() -> None:
    needs = [one for one in wanted("hf", "gpu", "tune", "scores", "tensorboard") if one.name != "torch"]
    assert len(needs) >= 10
    assert unfit(needs, versions("packages")) == []
    # With a wheel index torch is installed without its lock; a base's own torch may lack them.
    own = {name for name in versions("torch") if not re.match(r"torch$|triton$|cuda-|nvidia-", name)}
    assert own <= set(versions("packages"))


def test_packages_hold_what_builds_the_checkout_without_a_network() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert unfit([Requirement(one) for one in build], versions("packages")) == []
    assert "packaging" in versions("packages")  # checkout.sh reads ranges with it


def test_extras_fulfil_what_was_asked() -> None:
    assert unfit([one for one in wanted("deepspeed") if one.name == "deepspeed"], versions("deepspeed")) == []
    # packages.sh installs what stands before horovod first: its build needs that.
    assert list(versions("horovod"))[-1] == "horovod"
    assert {"cloudpickle", "cmake"} <= set(versions("horovod"))


@pytest.mark.parametrize("one", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_locks_agree(one: str, other: str) -> None:
    first, second = versions(one), versions(other)
    assert {
        name: (first[name], second[name]) for name in first.keys() & second.keys() if first[name] != second[name]
    } == {}
