"""The fault campaign, `make fault-test`: KILLS is the number of kills of each workload, the table goes to FAULT_OUT."""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.fault_table import Tally, begin, gather
from support.fault_workloads import WORKLOADS
from support.faults import Bench


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    os.environ.setdefault("FAULT_SEED", str(random.randrange(10_000)))
    os.environ["FAULT_OUT"] = str(Path(os.environ.get("FAULT_OUT") or "runs/faults").resolve())
    begin(Path(os.environ["FAULT_OUT"]))


def pytest_report_header(config: pytest.Config) -> str:
    return f"faults: FAULT_SEED={os.environ['FAULT_SEED']} KILLS={kill_count()}, into {os.environ['FAULT_OUT']}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        gather(Path(os.environ["FAULT_OUT"]), int(os.environ["FAULT_SEED"]), kill_count())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one workload share its undisturbed call: they run in one process (--dist loadgroup), longest first."""
    names = list(WORKLOADS)
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("workload")  # type: ignore[attr-defined]
        item.add_marker(pytest.mark.xdist_group(str(name or item.name)))
        item.add_marker(pytest.mark.timeout(3600))
    items.sort(key=lambda item: names.index(n) if (n := _workload_of(item)) in names else len(names))


def _workload_of(item: pytest.Item) -> str:
    return str(item.callspec.params.get("workload", "")) if hasattr(item, "callspec") else ""


def kill_count() -> int:
    return int(os.environ.get("KILLS") or 50)


@pytest.fixture
def kills_wanted() -> int:
    return kill_count()


@pytest.fixture
def tries() -> int:
    """How often the faults other than kill -9 are tried."""
    return max(2, kill_count() // 10)


@pytest.fixture
def drawn(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of this test, the same for the same FAULT_SEED."""
    return random.Random(f"{os.environ['FAULT_SEED']} {request.node.name}")


@pytest.fixture
def tally() -> Tally:
    return Tally(Path(os.environ["FAULT_OUT"]))


@pytest.fixture(scope="session")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    """Gives the bench of a workload, whose undisturbed call is made once."""
    made: dict[str, Bench] = {}
    materials = tmp_path_factory.mktemp("materials")

    def give(name: str) -> Bench:
        if name not in made:
            made[name] = Bench(WORKLOADS[name](materials), tmp_path_factory.mktemp(name))
        return made[name]

    return give
