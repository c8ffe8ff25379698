"""The answer of a run of profiles alone: utilization by batch size."""

from typing import Any

import pytest

from analysis.diagnose.answer import profile_answer
from analysis.diagnose.profiles import utilization_by_batch
from analysis.metrics.cautions import of_profiles


def compute(batch: int, rank: int, share: float | None) -> dict[str, Any]:
    return {"micro_batch_size": batch, "rank": rank, "compute_utilization": share}


def test_utilization_is_the_mean_over_ranks_by_batch_size() -> None:
    rows = {"core": [], "compute": [compute(8, 0, 0.9), compute(8, 1, 0.7), compute(4, 0, 0.5), compute(2, 0, None)]}
    found = utilization_by_batch(rows)
    assert found == {"Compute utilization": {4: 0.5, 8: pytest.approx(0.8)}}
    answer = profile_answer(found)
    assert [card.label for card in answer.cards] == ["batch 4", "batch 8"] and answer.cards[1].value == "80.0 %"


def test_counters_of_cores_come_before_the_time_of_kernels() -> None:
    cores = {"micro_batch_size": 16, "tensor_percent": 55.43, "fma_percent": 12.28, "fp16_percent": None}
    found = utilization_by_batch({"core": [cores], "compute": [compute(16, 0, 0.9)]})
    assert found == {
        "Tensor utilization": {16: pytest.approx(0.5543)}, "FMA utilization": {16: pytest.approx(0.1228)}
    }  # fmt: skip
    assert "Tensor" in profile_answer(found).headline
    assert utilization_by_batch({"core": [], "compute": []}) == {}


def test_a_profiler_that_slows_steps_much_is_a_caution() -> None:
    rows = [{"profile": {"step_time_ratio": ratio}} for ratio in (1.2, 19.24)] + [{"profile": None}, {}]
    assert [caution.code for caution in of_profiles(rows)] == ["profiler_slow"]
    assert of_profiles(rows[:1]) == of_profiles([]) == []
