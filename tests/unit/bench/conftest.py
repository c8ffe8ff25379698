"""A server to download from, and an environment that names no other."""

import os
from collections.abc import Iterator

import pytest
from support.file_server import Site, serving


@pytest.fixture
def no_remote_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither addresses of ours nor proxies."""
    for name in [name for name in os.environ if name.startswith("BERTBENCH_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def site() -> Iterator[Site]:
    """Serves what a test puts on it."""
    with serving() as running:
        yield running
