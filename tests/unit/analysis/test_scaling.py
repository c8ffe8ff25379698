from typing import Any

import pytest

from analysis.metrics.scaling import efficiency

BASE = {
    "status": "ok", "kind": "throughput", "task": "pretrain", "implementation": "bertbench", "strategy": "ddp",
    "preset": "base", "precision": "bf16", "seq_len": 128, "micro_batch_size": 8, "grad_accum_steps": 1,
    "world_size": 1, "device": "cuda",
}  # fmt: skip


def row(world: int, rate: float | None, **changes: Any) -> dict[str, Any]:
    return {**BASE, "world_size": world, "samples_per_second": rate, **changes}


def by_size(rows: list[dict[str, Any]], kind: str) -> dict[int, dict[str, Any]]:
    return {found["world_size"]: found for found in efficiency(rows) if found["scaling"] == kind}


def test_weak_scaling_on_gpus_is_per_device_and_strong_scaling_keeps_the_global_batch() -> None:
    found = by_size([row(1, 100.0), row(2, 190.0), row(4, 300.0)], "weak")
    assert found[2]["efficiency"] == pytest.approx(0.95) and found[4]["efficiency"] == pytest.approx(0.75)
    assert found[4]["ideal_speedup"] == 4 and found[4]["basis"] == "per device"
    rows = [row(1, 100.0, micro_batch_size=16), row(2, 160.0, micro_batch_size=8), row(2, 190.0, micro_batch_size=16)]
    found = by_size(rows, "strong")
    assert found[2]["efficiency"] == pytest.approx(0.8) and found[2]["global_batch_size"] == 16
    assert by_size(rows, "weak")[2]["efficiency"] == pytest.approx(0.95)
    rows = [row(n, rate, device="cpu", total_threads=4) for n, rate in ((1, 100.0), (2, 95.0))]
    found = by_size(rows, "weak")
    assert found[2]["efficiency"] == pytest.approx(0.95) and found[2]["basis"] == "same total cores"


@pytest.mark.parametrize("threads", [(3, 2), (None, None), (4, None)])
def test_the_same_cores_are_claimed_only_where_threads_times_ranks_are_equal(threads: tuple[int | None, ...]) -> None:
    rows = [row(n + 1, 100.0, device="cpu", total_threads=count) for n, count in enumerate(threads)]
    assert {found["basis"] for found in efficiency(rows)} == {"equal shares of the cores"}


def test_rounds_are_combined_by_their_median_and_failed_trials_left_out() -> None:
    rows = [row(1, rate) for rate in (90.0, 100.0, 400.0)] + [row(2, 200.0), row(2, None, status="oom")]
    assert by_size(rows, "weak")[2]["efficiency"] == pytest.approx(1.0)


def test_one_device_that_recomputes_is_the_base_of_those_that_do_and_of_no_others() -> None:
    def recomputing(world: int, rate: float, strategy: str) -> dict[str, Any]:
        return row(world, rate, strategy=strategy, activation_checkpointing=True)

    plain = [row(1, 100.0, strategy="single", activation_checkpointing=False)]
    plain += [row(2, 180.0, activation_checkpointing=False)]
    rows = [*plain, recomputing(1, 80.0, "single"), recomputing(2, 152.0, "ddp")]
    weak = [found for found in efficiency(rows) if found["scaling"] == "weak" and found["world_size"] == 2]
    found = {each["activation_checkpointing"]: each["efficiency"] for each in weak}
    assert found == {False: pytest.approx(0.9), True: pytest.approx(0.95)}
