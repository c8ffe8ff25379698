"""How much memory a process may still take, on a machine and in its control groups."""

from pathlib import Path
from typing import Any

import pytest

from common import memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 50 kB, and this process in the group job_7/step_0 without limits."""
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\nHugePages_Total:  0\n")
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    (tmp_path / "groups" / "job_7" / "step_0").mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/old\n0::/job_7/step_0\n")
    return tmp_path


def limit(group: Path, **files: Any) -> None:
    for name, text in files.items():
        (group / f"memory.{name}").write_text(f"{text}\n")


def test_the_memory_is_that_of_the_group_where_it_has_less(machine: Path) -> None:
    groups = machine / "groups"
    assert memory.available_bytes() == 50 * 1024
    # What caches files is free: 4000 + 3000 + 500. shmem is not.
    stat = "anon 1\nshmem 9000\ninactive_file 4000\nactive_file 3000\nslab_reclaimable 500"
    limit(groups / "job_7", max=30000, current=25000, stat=stat)  # of the group around the own one
    limit(groups / "job_7" / "step_0", max="max", current=25000, stat=stat)
    assert memory.available_bytes() == 30000 - 25000 + 7500
    limit(groups / "job_7" / "step_0", max=10)  # lowered below what is used
    assert memory.available_bytes() == 0


@pytest.mark.parametrize("own", ["", "4:memory:/only/version/1\n", "0::/\n"])
def test_a_container_has_its_limit_at_the_top(machine: Path, own: str) -> None:
    (machine / "own").write_text(own)
    limit(machine / "groups", max=30000, current=25000, stat="anon 1")
    assert memory.available_bytes() == 5000
