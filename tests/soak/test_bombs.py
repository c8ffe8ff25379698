"""Packed files that unpack to far more than they are, behind a valid begin: every reader ends, soon, without memory."""

import gzip
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.profiles import sample

from analysis.readers.registry import READERS

pytestmark = pytest.mark.timeout(300)

_BOMB = """
import resource, sys, time
from pathlib import Path
from analysis.readers.registry import find_reader, read_head
from common.errors import InputError
import importlib
path = Path(sys.argv[1])
try:
    module = importlib.import_module(sys.argv[2])
    module.read(path)
    print("read", end=" ")
except InputError as error:
    print("refused", end=" ")
print(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.fixture(scope="module")
def zeros() -> bytes:
    """10 GB of zeros in 10 MB, as a hundred gzip members."""
    return gzip.compress(bytes(100_000_000), 9) * 100


@pytest.mark.parametrize("name", READERS)
def test_a_bomb_behind_a_valid_begin_ends_soon_and_without_memory(name: str, tmp_path: Path, zeros: bytes) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(sample(name, tmp_path / "sample").read_bytes()) + zeros)
    limit = 4 << 30
    done = subprocess.run(
        [sys.executable, "-c", _BOMB, str(path), READERS[name]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcome, seconds, kilobytes = done.stdout.split()
    assert outcome in ("refused", "read") and float(seconds) < 30 and int(kilobytes) < 2 << 20, done.stdout
