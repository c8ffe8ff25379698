"""A report of the real nsys, recorded here: it is read as its export, and every cut of it is refused."""

import subprocess
from pathlib import Path

import pytest
from support.nsys_recording import record, skip_unless_nsys_can_record_nvtx
from support.refusals import refused

from analysis.open import open_sources
from analysis.readers.nsys import read
from analysis.timeline import Timeline

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import time, nvtx
for step in range(3, 6):
    with nvtx.annotate(f"step {step}", domain="bertbench"):
        time.sleep(0.01 * step)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three steps of about 30, 40 and 50 ms."""
    skip_unless_nsys_can_record_nvtx()
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "program.py").write_text(PROGRAM)
    return record(folder, ["program.py"], [], {})


def same(one: Timeline, other: Timeline) -> None:
    for name in ("steps", "ranges", "kernels", "api"):
        assert getattr(one, name).equals(getattr(other, name)), name


def test_a_report_is_read_as_the_export_that_nsys_makes_of_it(recorded: Path, tmp_path: Path) -> None:
    database = tmp_path / "by_hand.sqlite"
    command = ["nsys", "export", "--quiet=true", "--type=sqlite", f"--output={database}", str(recorded)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    (by_hand,) = read(database)
    (found,) = open_sources(recorded).timelines
    same(found, by_hand)
    assert found.steps["step"].tolist() == [3, 4, 5]
    lengths = (found.steps["end"] - found.steps["start"]) / 1e6
    assert all(10 * step <= length < 10 * step + 200 for step, length in zip((3, 4, 5), lengths, strict=True))


def test_a_report_that_is_cut_is_refused_in_the_words_of_nsys(recorded: Path, tmp_path: Path) -> None:
    whole = recorded.read_bytes()
    for share in (0.02, 0.5, 0.9, 0.999):
        path = tmp_path / "cut.nsys-rep"
        path.write_bytes(whole[: int(share * len(whole))])
        with refused("file-damaged", path):
            open_sources(path)
