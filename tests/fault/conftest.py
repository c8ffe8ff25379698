"""The fault campaign of `make release-test`: KILLS is the number of kills of each workload, FAULT_SEED draws when."""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.faults import Bench
from workloads import WORKLOADS


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("FAULT_SEED", str(random.randrange(10_000)))
    os.environ.setdefault("KILLS", "50")


def pytest_report_header(config: pytest.Config) -> str:
    return f"faults: FAULT_SEED={os.environ['FAULT_SEED']} KILLS={os.environ['KILLS']}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one workload share its undisturbed call: they run in one process (--dist loadgroup)."""
    for item in items:
        name = item.callspec.params.get("workload", item.name) if hasattr(item, "callspec") else item.name
        item.add_marker(pytest.mark.xdist_group(str(name)))
        item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture
def kill_count() -> int:
    return int(os.environ["KILLS"])


@pytest.fixture
def tries(kill_count: int) -> int:
    """How often the faults other than kill -9 are tried."""
    return max(2, kill_count // 10)


@pytest.fixture
def drawn(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of this test, the same for the same FAULT_SEED."""
    return random.Random(f"{os.environ['FAULT_SEED']} {request.node.name}")


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


@pytest.fixture(params=list(WORKLOADS))
def workload(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(workload: str, bench_of: Callable[[str], Bench]) -> Bench:
    return bench_of(workload)
