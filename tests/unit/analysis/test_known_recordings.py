"""Recordings with known answers: the answers counted anew, and ours."""

from pathlib import Path

import pytest
from support.commands import document
from support.recordings import ALL_REDUCE, COPY, Trace, deep_queue, one_gpu, ranks
from support.truth_corpus import given_answers, write_corpus


def covered(spans: list[tuple[int, int]], unit: int) -> set[int]:
    """Numbers of the units of time that spans cover, one by one."""
    return {now for start, end in spans for now in range(start // unit, end // unit)}


def by_brute_force(trace: Trace) -> dict[str, float]:
    """What a trace comes to, unit of time by unit of time."""
    unit = trace.unit
    window = covered([(trace.steps[0][0], trace.steps[-1][1])], unit)
    kernels = [one for one in trace.work if one.name != COPY]
    compute = covered([(one.start, one.end) for one in kernels if one.name != ALL_REDUCE], unit)
    talk = covered([(one.start, one.end) for one in kernels if one.name == ALL_REDUCE], unit)
    copies = covered([(one.start, one.end) for one in trace.work if one.name == COPY], unit)
    work = compute | talk | copies
    return {
        "window_ms": len(window) * unit / 1e6,
        "compute_ms": len(compute & window) * unit / 1e6,
        "idle_ms": len(window - work) * unit / 1e6,
        "work_span_ms": (max(work) + 1 - min(work)) * unit / 1e6,
        "idle_in_work_span_ms": len(set(range(min(work), max(work))) - work) * unit / 1e6,
        "kernel_busy_ms": len((compute | talk) & window) * unit / 1e6,
        "communication_ms": len(talk) * unit / 1e6,
        "overlapped_ms": len(talk & compute) * unit / 1e6,
        "exposed_ms": len(talk - compute) * unit / 1e6,
        "copy_ms": len(copies) * unit / 1e6,
        "exposed_copy_ms": len(copies - compute - talk) * unit / 1e6,
    }


@pytest.mark.parametrize("seed", range(4))
def test_answers_by_construction_are_those_of_counting_every_unit_of_time(seed: int) -> None:
    for (trace,), said in (one_gpu(seed, unit=37, steps=4, stretches=15), deep_queue(seed)):
        counted = by_brute_force(trace)
        for quantity, value in {name: value for (name, of), value in said.items() if not of}.items():
            if quantity in counted:
                assert counted[quantity] == pytest.approx(value, rel=1e-9), quantity
    traces, said = ranks(seed)
    for trace in traces:
        counted = by_brute_force(trace)
        for quantity in ("compute_ms", "communication_ms", "overlapped_ms", "exposed_ms"):
            assert counted[quantity] == pytest.approx(said[quantity, f"rank {trace.rank}"], rel=1e-9), quantity


def test_analyze_and_core_util_give_the_known_answers(tmp_path: Path) -> None:
    facts = write_corpus(tmp_path, 3)
    given = given_answers(tmp_path, document)
    assert set(given) == {fact.name for fact in facts}
    for fact in facts:
        assert given[fact.name] == pytest.approx(fact.truth, rel=0, abs=fact.allowed), fact.name
