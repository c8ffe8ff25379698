"""docker/locks: exact versions with hashes, that fit pyproject.toml and each other."""

import itertools
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


def test_locks_fulfil_what_pyproject_asks() -> None:
    torch = [one for one in wanted() if one.name == "torch"]
    assert unfit(torch, versions("torch")) == [] and len(versions("torch")["torch"]) == 1
    assert [name for name in versions("torch") if name.startswith("nvidia-nccl")]
    needs = [one for one in wanted("hf", "gpu", "tune", "scores", "tensorboard") if one.name != "torch"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert unfit([*needs, *map(Requirement, build)], versions("packages")) == []
    # With a wheel index torch is installed without its lock; a base's own torch may lack them.
    own = {name for name in versions("torch") if not re.match(r"torch$|triton$|cuda-|nvidia-", name)}
    assert {*own, "packaging"} <= set(versions("packages"))  # checkout.sh reads ranges with packaging
    assert unfit([one for one in wanted("deepspeed") if one.name == "deepspeed"], versions("deepspeed")) == []
    # packages.sh installs what stands before horovod first: its build needs that.
    assert list(versions("horovod"))[-1] == "horovod" and {"cloudpickle", "cmake"} <= set(versions("horovod"))


def test_locks_agree() -> None:
    for one, other in itertools.combinations(map(versions, NAMES), 2):
        assert {name: one[name] for name in one.keys() & other.keys()}.items() <= other.items()
