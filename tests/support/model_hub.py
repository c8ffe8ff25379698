"""A model hub on this machine, and what `find_model` gets from it. It speaks the protocol of Hugging Face's hub.

As a script it runs in a process of its own, since huggingface_hub reads HF_ENDPOINT and HF_HOME when it is imported:
`python -m support.model_hub FOLDER` serves a repository and prints what each look-up returned and requested, as JSON.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from support.file_server import QuietHandler, running

REPOSITORY = "org/mini"
OLD, NEW = "a" * 40, "b" * 40
"""Commits."""
REVISIONS = {"v1": OLD, OLD: OLD, "main": NEW, NEW: NEW}
WIDTHS = {OLD: 32, NEW: 64}
"""Width of the model of each commit."""


def repository_files(commit: str) -> dict[str, bytes]:
    """Return what the repository holds at a commit, by path; of the weights only the name counts here."""
    config = {
        "model_type": "bert", "vocab_size": 203, "hidden_size": WIDTHS[commit], "num_hidden_layers": 1,
        "num_attention_heads": 4, "intermediate_size": 80, "max_position_embeddings": 64,
    }  # fmt: skip
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": f"weights of {commit}".encode(),
        "vocab.txt": b"[PAD]\n[UNK]\n",
        "pytorch_model.bin": b"a pickle",
        "old/weights.pt": b"a pickle",
        "README.md": b"a card",
    }


@dataclass
class Hub:
    """A running hub."""

    base: str = ""
    """Address."""
    asked: list[str] = field(default_factory=list)
    """Method and path of every request."""


class _Handler(QuietHandler):
    # HTTP/1.0: no connection outlives its request, or it would be answered after the server has gone.
    protocol_version = "HTTP/1.0"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        api, files = f"/api/models/{REPOSITORY}/", f"/{REPOSITORY}/resolve/"
        kind, _, rest = path.removeprefix(api if path.startswith(api) else files).partition("/")
        if not path.startswith((api, files)):
            self._refuse("RepoNotFound")
        elif path.startswith(files):
            content = repository_files(REVISIONS[kind]).get(rest) if kind in REVISIONS else None
            self._refuse("EntryNotFound") if content is None else self._send(content, REVISIONS[kind])
        elif rest not in REVISIONS:
            self._refuse("RevisionNotFound")
        else:
            commit = REVISIONS[rest]
            found = {"revision": _about(commit), "tree": _tree(commit)}[kind]
            self._send(json.dumps(found).encode(), commit, "application/json")

    def _send(self, content: bytes, commit: str, kind: str = "application/octet-stream") -> None:
        self.send_response(200)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(content)), "ETag": f'"{sha1(content).hexdigest()}"',
            "X-Repo-Commit": commit,
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _about(commit: str) -> dict[str, Any]:
    return {
        "id": REPOSITORY, "modelId": REPOSITORY, "sha": commit, "private": False, "tags": [],
        "siblings": [{"rfilename": path} for path in repository_files(commit)],
    }  # fmt: skip


def _tree(commit: str) -> list[dict[str, Any]]:
    return [
        {"type": "file", "path": path, "size": len(content), "oid": sha1(content).hexdigest()}
        for path, content in repository_files(commit).items()
    ]


@contextmanager
def serving() -> Iterator[Hub]:
    """Run a hub."""
    hub = Hub()
    with running(type("Handler", (_Handler,), {"hub": hub})) as hub.base:
        yield hub


def main(home: Path) -> None:
    """Look models up with the hub there and not there, and print what came of it."""
    found: dict[str, Mapping[str, Any]] = {}
    with serving() as hub:
        os.environ |= {"HF_ENDPOINT": hub.base, "HF_HOME": str(home)}
        from bench.implementations.model_folder import find_model
        from common.errors import BertbenchError

        def look_up(name: str, given: str) -> None:
            hub.asked.clear()
            try:
                model = find_model(given)
            except BertbenchError as error:
                found[name] = {"code": error.code, "text": str(error), "asked": list(hub.asked)}
                return
            folder = Path(model.settings["model"])
            files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())
            config = json.loads((folder / "config.json").read_text())
            found[name] = {
                "commit": folder.name, "width": config["hidden_size"], "weights": model.settings["model_weights"],
                "label": model.settings["preset"], "files": files, "asked": list(hub.asked),
            }  # fmt: skip

        look_up("tag", f"{REPOSITORY}@v1")
        look_up("latest", REPOSITORY)
        look_up("unknown model", "org/none@v1")
        look_up("unknown revision", f"{REPOSITORY}@v2")
    look_up("again without a server", f"{REPOSITORY}@v1")
    look_up("commit without a server", f"{REPOSITORY}@{NEW}")
    look_up("new without a server", "org/other")
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
