"""How much memory a process may still take, on a machine, in a control group, by its own limits."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common import memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 50 kB and no swap, and this process in the group job_7/step_0 without limits."""
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    (tmp_path / "groups" / "job_7" / "step_0").mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\nHugePages_Total:  0\nSwapFree: 0 kB\n")
    (tmp_path / "own").write_text("4:memory:/old\n0::/job_7/step_0\n")
    return tmp_path


def limit(group: Path, **files: Any) -> None:
    for name, text in files.items():
        (group / f"memory.{name.replace('_', '.')}").write_text(f"{text}\n")


def test_the_memory_is_that_of_the_group_where_it_has_less(machine: Path) -> None:
    groups = machine / "groups"
    assert memory.available_bytes() == 50 * 1024
    # What caches files is free: 4000 + 3000 + 500. shmem is not.
    stat = "anon 1\nshmem 9000\ninactive_file 4000\nactive_file 3000\nslab_reclaimable 500"
    limit(groups / "job_7", max=30000, current=25000, stat=stat)  # of the group around the own one
    limit(groups / "job_7" / "step_0", max="max", current=25000, stat=stat)
    assert memory.available_bytes() == 30000 - 25000 + 7500
    limit(groups / "job_7" / "step_0", max=26000)
    assert memory.available_bytes() == 26000 - 25000 + 7500
    limit(groups / "job_7", max="max")
    limit(groups / "job_7" / "step_0", max=10)  # lowered below what is used
    assert memory.available_bytes() == 0


def test_swap_counts_as_far_as_the_group_may_use_it(machine: Path) -> None:
    text = (machine / "meminfo").read_text()
    (machine / "meminfo").write_text(text.replace("SwapFree: 0", "SwapFree: 20"))
    assert memory.available_bytes() == 70 * 1024
    group = machine / "groups" / "job_7"
    limit(group, max=30000, current=25000, stat="anon 1")
    assert memory.available_bytes() == 5000 + 20 * 1024
    limit(group, swap_max="max", swap_current=0)
    assert memory.available_bytes() == 5000 + 20 * 1024
    limit(group, swap_max=1000, swap_current=400)
    assert memory.available_bytes() == 5000 + 600


@pytest.mark.parametrize("own", ["", "4:memory:/only/version/1\n", "0::/\n", "0::/../elsewhere\n"])
def test_a_container_has_its_limit_at_the_top(machine: Path, own: str) -> None:
    (machine / "own").write_text(own)
    limit(machine / "groups", max=30000, current=25000, stat="anon 1")
    assert memory.available_bytes() == 5000


def test_memory_that_is_not_known_is_none(machine: Path) -> None:
    for name in ("meminfo", "own"):
        (machine / name).unlink()
    assert memory.available_bytes() is None
    (machine / "meminfo").write_text("nothing that is known\n")
    assert memory.available_bytes() is None


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_limit_of_the_process_itself_counts(limit: str) -> None:
    code = (
        "import resource, sys; from common.memory import available_bytes; most = 2 << 30;"
        "resource.setrlimit(getattr(resource, sys.argv[1]), (most, most)); before = available_bytes();"
        "held = bytearray(500 << 20); print(most - before, before - available_bytes())"
    )
    command = [sys.executable, "-c", code, limit]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    own, taken = map(int, done.stdout.split())
    assert 0 < own < 1 << 30 and taken == pytest.approx(500 << 20, rel=0.05)
