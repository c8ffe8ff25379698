"""docker/Dockerfile agrees with build_image.sh, start_container.sh and the files it copies."""

import json
import re
from pathlib import Path

import pytest
from hosts import ROOT, Host, option

TARGETS = {"cuda": [], "cpu": ["--cpu"]}
# Every variable of build_image.sh that can become a build argument.
EVERYTHING = {
    **dict.fromkeys(("WITH_NSIGHT", "WITH_DEEPSPEED", "WITH_HOROVOD", "WITH_DLPROF"), "1"),
    **dict.fromkeys(("BASE_IMAGE", "TORCH_INDEX", "TORCH_VERSION", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), "x"),
    **dict.fromkeys(("PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_CERT"), "x"),
}


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(line.split()[0], " ".join(line.split()[1:])) for line in lines if line.strip()]


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Name -> what it is built on, and its instructions."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.split()
            found[name] = (base, [])
        elif found:
            next(reversed(found.values()))[1].append((word, rest))
    return found


def whole(target: str) -> list[tuple[str, str]]:
    """The instructions of a target and of all the stages under it, from the base image on."""
    base, own = stages()[target]
    return (whole(base) if base in stages() else []) + own


def arguments(target: str) -> dict[str, str]:
    """Build argument -> default, of a target; with the base image's."""
    name = stages()[f"system-{target}"][0]
    before = [rest for word, rest in instructions() if word == "ARG" and rest.startswith(f"{name[2:-1]}=")]
    pairs = [rest.partition("=") for rest in [*before, *(rest for word, rest in whole(target) if word == "ARG")]]
    assert len({pair[0] for pair in pairs}) == len(pairs)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("target", TARGETS)
def test_build_arguments_are_exactly_those_that_the_script_can_give(host: Host, target: str) -> None:
    host.engine("docker")
    host.program("git", "echo abc")
    assert host.run("build_image.sh", *TARGETS[target], **EVERYTHING).returncode == 0
    given = {word.partition("=")[0] for word in option(host.call(), "--build-arg")}
    assert set(arguments(target)) == given


def test_stages_differ_only_in_base_and_defaults() -> None:
    def neutral(instruction: tuple[str, str]) -> tuple[str, str]:
        word, rest = instruction
        if word == "ARG":
            return word, rest.partition("=")[0]
        return word, re.sub(r"\((CUDA|CPU)\)", "", rest)

    assert [neutral(one) for one in whole("cuda")] == [neutral(one) for one in whole("cpu")]


@pytest.mark.parametrize("target", TARGETS)
def test_image_is_not_roots(target: str) -> None:
    words = stages()[target][1]
    assert [rest for word, rest in words if word == "USER"] == ["$USER_ID"]
    assert "USER" not in {word for name in (f"system-{target}", f"packages-{target}") for word, _ in stages()[name][1]}
    made = next(rest for word, rest in words if word == "RUN")
    assert 'user.sh "$USER_ID"' in made
    assert words.index(("USER", "$USER_ID")) > words.index(("RUN", made))


@pytest.mark.parametrize("target", TARGETS)
def test_entrypoint_is_the_scripts_under_an_init(target: str) -> None:
    words = stages()[target][1]
    entry = json.loads(next(rest for word, rest in words if word == "ENTRYPOINT"))
    folder = next(rest for word, rest in words if word == "WORKDIR")
    assert entry[0] == "tini"
    assert "--" in entry
    assert "tini" in (ROOT / "docker/install/system.sh").read_text(encoding="utf-8").split("packages=(")[1]
    assert (ROOT / Path(entry[-1]).relative_to(folder)).is_file()
    assert f"target={folder}/runs" in (ROOT / "start_container.sh").read_text(encoding="utf-8")
    # A plain start is the shell that greets.
    assert json.loads(next(rest for word, rest in words if word == "CMD")) == ["/bin/bash"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_file_that_is_copied_and_run_exists_and_is_sent_to_the_engine(target: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [rest.split() for word, rest in whole(target) if word == "COPY"]
    assert ["."] in [names[:-1] for names in copied]
    for source in (name for names in copied for name in names[:-1]):
        assert (ROOT / source).exists(), source
        assert not {str(path) for path in (Path(source), *Path(source).parents)} & set(ignored)
    run = re.findall(r"[\w/.-]+\.sh", " ".join(rest for word, rest in whole(target) if word == "RUN"))
    assert {Path(name).name for name in run} == {path.name for path in (ROOT / "docker/install").glob("*.sh")}
    copied_to = {f"{names[-1]}{Path(names[0]).name}" for names in copied}
    assert [name for name in run if name.startswith("/") and name not in copied_to] == []


def test_large_and_private_folders_are_not_sent_to_the_engine() -> None:
    ignored = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    assert {".git", ".venv", "runs", "data"} <= ignored


@pytest.mark.parametrize("target", TARGETS)
def test_a_change_of_the_code_leaves_the_layers_of_packages_as_they_are(target: str) -> None:
    below = stages()[f"system-{target}"][1] + stages()[f"packages-{target}"][1]
    sources = {name for word, rest in below if word == "COPY" for name in rest.split()[:-1]}
    assert {name for name in sources if not name.startswith(("docker/install", "docker/locks"))} == set()
    # torch is fetched again only where its own lock or the way to install it changes.
    torch = [rest for word, rest in stages()[f"packages-{target}"][1] if word in ("COPY", "RUN")][:3]
    assert torch[0].startswith("docker/install/torch.sh")
    assert torch[1].startswith("docker/locks/torch.txt")
    assert "torch.sh" in torch[2]
