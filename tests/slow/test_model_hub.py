"""`--model` by an id: what is downloaded from a model hub, served on this machine by the protocol of Hugging Face's."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from support.cli import ROOT
from support.model_hub import NEW, OLD, WIDTHS

_OF_THE_HUB = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "HTTP", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each look-up returned or was refused with, and what it requested."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(_OF_THE_HUB)}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-m", "support.model_hub", str(tmp_path_factory.mktemp("hub"))],
        cwd=ROOT, env={**kept, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(("name", "commit"), [("tag", OLD), ("latest", NEW)])
def test_an_id_gets_the_files_of_its_revision_and_no_pickle(found: dict[str, Any], name: str, commit: str) -> None:
    model = found[name]
    assert (model["commit"], model["width"], model["weights"]) == (commit, WIDTHS[commit], "safetensors")
    assert model["files"] == ["config.json", "model.safetensors", "vocab.txt"]
    assert model["label"].startswith("mini-")
    files = [request for request in model["asked"] if "/resolve/" in request]
    assert f"GET /org/mini/resolve/{commit}/config.json" in files
    assert all(f"/resolve/{commit}/" in request for request in files)
    assert not [request for request in files if request.endswith((".bin", ".pt", ".md"))]


def test_two_revisions_are_two_models(found: dict[str, Any]) -> None:
    assert found["tag"]["label"] != found["latest"]["label"]


@pytest.mark.parametrize("name", ["unknown model", "unknown revision", "new without a server"])
def test_what_the_hub_does_not_deliver_is_refused(found: dict[str, Any], name: str) -> None:
    assert found[name]["code"] == "download-failed"
    assert not [request for request in found[name]["asked"] if "/resolve/" in request]
    if "server" not in name:
        assert len(found[name]["asked"]) == 1, "the hub answered"
        assert "NotFound" in found[name]["text"]


@pytest.mark.parametrize(("name", "first"), [("again without a server", "tag"), ("commit without a server", "latest")])
def test_what_was_downloaded_is_found_again_without_the_hub(found: dict[str, Any], name: str, first: str) -> None:
    assert found[name] == {**found[first], "asked": []}
