"""Fixtures for all tests. Helpers that are no fixtures live in tests/support and are imported as `support`."""

import base64
import functools
import gc
import inspect
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))

# The heap of a test process is large: collecting all of it as often as usual takes a fifth of the time of the tests.
gc.set_threshold(50_000, 50, 100)
# The forms of options read the source of their classes, many times in one test process. It does not change.
inspect.getsource = functools.cache(inspect.getsource)

# Shells that are not interactive start background jobs with SIGINT ignored, and processes inherit it: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One core for each worker of `make test`, and for what it starts. What takes more threads must not spin while it waits:
# two trainings of two threads on two cores are five times slower when they do.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Nothing is compiled: PyTorch's functions compute the same formulas. Tests of what is compiled set this to 1.
os.environ.setdefault("BERTBENCH_COMPILE", "0")

from support.cli import Cli  # noqa: E402
from support.examples import DRAWS_ALL, examples  # noqa: E402
from support.shared_files import SHARED  # noqa: E402

# Machines are shared: how long an example takes says nothing about the code.
settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100)
)
settings.load_profile("shared machine")

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

# Files of slow tests by the seconds they take, longest first; the others take less. Of several processes
# none begins the longest file when the others have no more to do.
LONGEST_FIRST = (
    "test_pretraining_learns", "test_launch_nodes", "test_train_kill", "test_squad_learns", "test_classify_real",
    "test_train_variants_command", "test_scaling_whole", "test_slurm", "test_strategies_two_ranks",
    "test_kernels_interpreted_whole", "test_kernels_compiled", "test_bench", "test_squad_whole",
    "test_tune_throughput", "test_pages", "test_tune_workers", "test_profile_nsys",
)  # fmt: skip


without_public_data = pytest.StashKey[int]()
"""Number of tests that were deselected because ../shared is absent."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not SHARED.is_dir():
        public = [item for item in items if item.get_closest_marker("public")]
        config.hook.pytest_deselected(items=public)
        config.stash[without_public_data] = len(public)
        items[:] = [item for item in items if not item.get_closest_marker("public")]
    for item in items:
        if item.path.parent.name in ("slow", "soak"):
            item.add_marker(item.path.parent.name)
        if item.get_closest_marker("hypothesis") or "damaged" in item.name or "mutated" in item.name:
            item.add_marker("more")
    ranks = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["without_public_data"] = session.config.stash.get(without_public_data, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[without_public_data] = getattr(node, "workeroutput", {}).get("without_public_data", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(without_public_data, 0):
        terminalreporter.write_line(f"{count} tests need the public data of ../shared: deselected")


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A command line with a fresh run directory; no process of it outlives the test."""
    instance = Cli(tmp_path / "run")
    yield instance
    for process in instance.processes():
        process.kill()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards to train on in milliseconds per step, of which no test of a module may change any."""
    from support.training_runs import shards

    return shards(tmp_path_factory.mktemp("shards") / "data")


@pytest.fixture
def pictures_of_one_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figure of a page in `make test`; `make test-slow` draws them."""
    from analysis.render.figure import Figure

    def write(figure: Figure, folder: Path) -> Path:
        path = folder / f"{figure.name}.png"
        path.write_bytes(PIXEL)
        return path

    if not DRAWS_ALL:
        monkeypatch.setattr("analysis.render.figure.write_png", write)
        monkeypatch.setattr("analysis.render.figure.figure_html", lambda figure: '<div class="chart"></div>')
