"""How much of the kernels' time no family covers: worked by hand, and in every real recording of ../shared/traces."""

from pathlib import Path

import pandas as pd
import pytest
from support.timelines import timeline

from analysis.counters import KernelCounters
from analysis.metrics.kernels.tables import name_coverage
from analysis.sources import open_sources

TRACES = Path(__file__).resolve().parents[3].parent / "shared" / "traces"
# An MPI example's own kernel: its name is no library's, and "other" is the truth about it.
NO_FRAMEWORK = "pipit__tests__data__saxpy-mpi-cuda_nsys_perlmutter0.sqlite.gz"


def counted(rows: list[tuple[str, float | None, float | None]]) -> KernelCounters:
    frame = pd.DataFrame(rows, columns=["name", "duration_ns", "cycles"]).astype(
        {"duration_ns": "float64", "cycles": "float64"}
    )
    return KernelCounters(frame.assign(process=1, kernel_id=range(len(rows)), device=0), {}, None, None, ())


def test_the_share_is_of_kernels_alone_and_names_what_it_consists_of() -> None:
    trace = timeline(
        0,
        steps=[(0, 0, 100)],
        kernels=[
            ("sgemm", 7, 0, 60),
            ("mystery", 7, 60, 90),
            ("riddle", 7, 200, 210),  # after the last step, and recorded all the same
            ("Memcpy HtoD", 7, 90, 900, 3, "memcpy"),
        ],
    )
    found = name_coverage([trace])
    assert found.names == 3 and found.other_share == pytest.approx(0.4)
    assert found.other == (("mystery", pytest.approx(0.3)), ("riddle", pytest.approx(0.1)))
    both = name_coverage([trace, timeline(1, kernels=[("sgemm", 7, 0, 100)])])
    assert both.other_share == pytest.approx(0.2), "over ranks, weighted by time"


def test_counted_kernels_are_weighted_by_time_else_by_cycles_else_not_at_all() -> None:
    found = name_coverage([], [counted([("sgemm", 75.0, 1.0), ("mystery", 25.0, 9.0)])])
    assert found.other_share == pytest.approx(0.25)
    found = name_coverage([], [counted([("sgemm", None, 1.0), ("mystery", 25.0, 3.0)])])
    assert found.other_share == pytest.approx(0.75)
    found = name_coverage([], [counted([("sgemm", None, None), ("mystery", 25.0, 3.0)])])
    assert found.other_share is None and found.reason == "the kernels have no times"


def test_without_kernels_there_is_a_reason_and_no_share() -> None:
    for found in (name_coverage([]), name_coverage([timeline(0)]), name_coverage([], [counted([])])):
        assert (found.names, found.other_share) == (0, None) and "no kernel" in found.reason


def recordings() -> list[Path]:
    found = [*TRACES.glob("kineto/**/*.json.gz"), *TRACES.glob("ncu/*"), *TRACES.glob("nsys/*.sqlite.gz")]
    return sorted(path for path in found if path.name not in (NO_FRAMEWORK, "ERROR_ONLY_raw.csv"))


@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/traces is not here")
def test_in_every_real_recording_less_than_two_percent_is_other() -> None:
    shares = {}
    for path in recordings():
        source = open_sources(path)
        found = name_coverage(source.timelines, source.counters)
        if found.other_share is None:
            assert found.reason, path
            continue
        shares[path.name] = found.other_share
        assert found.other_share < 0.02, f"{path.name}: {found.other[:5]}"
    assert len(shares) >= 30


@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/traces is not here")
def test_a_kernel_of_no_library_is_called_other() -> None:
    found = name_coverage(open_sources(TRACES / "nsys" / NO_FRAMEWORK).timelines)
    assert found.other_share == 1.0 and [name.partition("(")[0] for name, _ in found.other] == ["saxpy"]
