"""Hardware counters that were sampled beside the work of a GPU."""

import pytest
from support.shared_files import OWN
from support.timelines import timeline

from analysis.diagnose.explain import explain
from analysis.metrics.kernels.utilization import sampled_utilization
from analysis.readers.kineto.reader import read
from analysis.sources import open_sources
from analysis.timeline import SAMPLE_COLUMNS, typed

FILE = OWN / "kineto/sampled-counters.json"


def test_utilization_is_the_mean_over_the_samples_of_each_step() -> None:
    """Five samples in each of four steps; in three of them SMs are active 80 %, tensor pipes 40, 50, 60, 70 %."""
    table = sampled_utilization(read(FILE))
    assert table["part"].tolist() == [0, 1, 2, 3] and table["begin_ms"].tolist() == [0, 1, 2, 3]
    assert table["samples"].tolist() == [10] * 4 and table["sm_utilization"].tolist() == pytest.approx([0.48] * 4)
    assert table["tensor_utilization"].tolist() == pytest.approx([0.24, 0.3, 0.36, 0.42])
    assert "sampled_utilization" in {finding.name for finding in explain(open_sources(FILE))}


def test_without_steps_parts_are_equal_times_and_other_counters_do_not_count() -> None:
    name = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    rows = [{"name": name, "device": 0, "start": 10 * n, "value": 5.0 * n} for n in range(20)]
    rows.append({"name": "dram__bytes_read.sum", "device": 0, "start": 0, "value": 1e9})
    made = timeline().replace(samples=typed(rows, SAMPLE_COLUMNS))
    table = sampled_utilization(made)
    assert len(table) == 20 and table["samples"].sum() == 20 and table["tensor_utilization"].isna().all()
    assert table["sm_utilization"].iloc[[0, -1]].tolist() == pytest.approx([0, 0.95])
    assert not len(sampled_utilization(timeline())) and not len(
        sampled_utilization(made.replace(samples=made.samples[-1:]))
    )
