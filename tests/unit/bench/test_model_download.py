"""`--model` by an id: what is asked of Hugging Face's hub."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from bench.implementations.model_folder import find_model

CONFIG = {
    "model_type": "bert", "vocab_size": 203, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 80, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(("given", "revision"), [("org/mini@v1", "v1"), ("org/mini", "main")])
def test_an_id_gets_the_files_of_its_revision_and_no_pickle(
    given: str, revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert find_model(given).vocab_size == 203
    (request,) = asked
    assert (request["name"], request["revision"]) == ("org/mini", revision)
    assert {"*.json", "*.safetensors"} <= set(request["allow_patterns"])
    assert not any("bin" in pattern or pattern == "*" for pattern in request["allow_patterns"])


def test_what_the_hub_does_not_deliver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def download(name: str, **options: Any) -> str:
        raise ConnectionError("404: no such revision")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with refused("download-failed", "org/mini@v2"):
        find_model("org/mini@v2")
