"""Fixtures for the tests of the shell scripts."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    folder = tmp_path / "machine"
    folder.mkdir()
    return Host(folder)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter and only root may write, for what really changes the user."""
    if os.getuid() != 0:
        pytest.skip("only root can really become another user")
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv here")
    folder = Path(tempfile.mkdtemp(prefix="bertbench-scripts-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
