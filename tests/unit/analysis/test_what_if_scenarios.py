"""What replays answer, compared with what the generated programs do when the change is real (support.gpu_programs).

The table in docs/explanation/communication.md is what this file measures.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from support import gpu_programs as gpu
from support import shared_files
from support.gpu_programs import Change, Program, Training

from analysis.diagnose.communication import findings
from analysis.metrics.communication.matching import clock_offsets, match_collectives
from analysis.metrics.communication.what_if import SCENARIO_ERROR, WORST_ERROR, WhatIf, what_if
from analysis.metrics.time.launches import in_window
from analysis.sources import open_sources
from analysis.timeline import Timeline, is_communication

KINETO = shared_files.TRACES / "kineto"
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "communication.md"
CHANGES = {
    "free": Change(transfer_factor=0),
    "half as fast": Change(transfer_factor=2),
    "twice as fast": Change(transfer_factor=0.5),
    "no waiting for other ranks": Change(waits=False),
    "free, and no waiting": Change(transfer_factor=0, waits=False),
    "no host time": Change(host_factor=0),
}
SHOWN = ("free", "half as fast", "no waiting for other ranks", "no host time")
TRAININGS = {
    "deep queue": Training(layers=24, transfer=6000),
    "deep queue, loss read each step": Training(transfer=6000, item=True),
    "deep queue, host slower than computation": Training(layers=24, python=520, transfer=7000, backlog=60_000),
    "deep queue, late rank varies": Training(
        layers=24,
        python=520,
        transfer=1000,
        backlog=60_000,
        slower=lambda rank, step: 2.0 if rank == step % 3 else 0.9,
    ),
    "one step ahead": Training(layers=24, transfer=7000, backlog=60_000, paced=True, steps=6),
    "full queue": Training(layers=80, forward=60, python=2, transfer=3000, every=10),
    "one late rank": Training(transfer=3000, slower=lambda rank, step: 1.5 if rank == 1 else 1.0),
    "late rank varies": Training(slower=lambda rank, step: 1.5 if rank == step % 3 else 1.0),
    "one rank starts late": Training(pause=lambda rank, step: 60_000.0 if (rank, step) == (1, 0) else 0.0),
    "host pause that the queue hides": Training(pause=lambda rank, step: 15_000.0 if (rank, step) == (1, 3) else 0.0),
    "host-bound": Training(forward=8, python=25, transfer=40),
    "host-bound, loss read each step": Training(forward=8, python=25, transfer=40, item=True),
    "data loading": Training(item=True, data=20_000.0),
    "collectives one layer ahead": Training(transfer=350, prefetch=True),
    "host and GPU equally slow": Training(layers=50, forward=17, transfer=60),
}
SCATTERED = range(100, 150)


@cache
def programs(name: str) -> Sequence[Program]:
    return TRAININGS[name].programs(3)


@cache
def truth(name: str, change: Change) -> float:
    return gpu.slowest_ms(gpu.play(programs(name), change))


def read(ranks: Sequence[Program], folder: Path) -> list[Timeline]:
    return list(open_sources(gpu.write(gpu.play(ranks), folder)).timelines)


def answer(timelines: Sequence[Timeline]) -> WhatIf:
    matching = match_collectives(timelines)
    return what_if(timelines, matching, clock_offsets(timelines, matching).offsets_ns)


def slowest(answers: WhatIf) -> dict[str, float]:
    rows = answers.slowest()
    return dict(zip(rows["scenario"].tolist(), rows["replayed_ms"].tolist(), strict=True))


def documented() -> dict[str, list[float]]:
    """The page's table: per trace, the true time when communication is free, twice as slow, not waited for, and when
    the host takes no time, as a share of the traced one, and the worst error of the six scenarios; percent."""
    rows = re.findall(r"^\| ([^|]+) \|((?: [\d.]+ % \|){5})$", PAGE.read_text(), re.MULTILINE)
    return {name: [float(text) for text in re.findall(r"[\d.]+", numbers)] for name, numbers in rows}


@pytest.mark.parametrize("name", TRAININGS)
def test_scenarios_come_to_what_the_program_then_does(name: str, tmp_path: Path) -> None:
    answers = answer(read(programs(name), tmp_path))
    replayed = slowest(answers)
    errors = {scenario: replayed[scenario] / truth(name, change) - 1 for scenario, change in CHANGES.items()}
    worst = max(map(abs, errors.values()))
    traced = truth(name, Change())
    assert replayed["as traced"] == pytest.approx(traced, rel=1e-3)
    assert worst <= SCENARIO_ERROR, errors
    assert answers.outside == "" and answers.problems == ()
    # No rank can be faster than the work of its streams, whatever is changed.
    assert min(replayed.values()) >= max(run.busy(gpu.COMPUTE) for run in gpu.play(programs(name))) / 1e3
    shares = [truth(name, CHANGES[scenario]) / traced for scenario in SHOWN]
    assert [100 * number for number in (*shares, worst)] == pytest.approx(documented()[name], abs=0.06)


def test_scenarios_of_programs_in_any_order(tmp_path: Path) -> None:
    errors = []
    for seed in SCATTERED:
        ranks = gpu.scattered(seed, 3)
        replayed = slowest(answer(read(ranks, tmp_path / str(seed))))
        for scenario, change in CHANGES.items():
            errors.append(abs(replayed[scenario] / gpu.slowest_ms(gpu.play(ranks, change)) - 1))
    usual, worst = sorted(errors)[int(0.95 * len(errors))], max(errors)
    assert usual <= SCENARIO_ERROR and worst <= WORST_ERROR
    stated = re.search(r"50 programs[^.]*?95 % within ([\d.]+) %, the worst ([\d.]+) %", PAGE.read_text(), re.DOTALL)
    assert stated and [float(text) for text in stated.groups()] == pytest.approx([100 * usual, 100 * worst], abs=0.06)


def what_if_sentence(timelines: Sequence[Timeline]) -> str:
    return next(finding.sentence for finding in findings(timelines) if finding.name == "what_if")


@pytest.mark.parametrize("name", TRAININGS)
def test_the_host_is_blamed_only_where_a_host_without_time_is_faster(name: str, tmp_path: Path) -> None:
    sentence = what_if_sentence(read(programs(name), tmp_path))
    gains = {scenario: 1 - truth(name, CHANGES[scenario]) / truth(name, Change()) for scenario in SHOWN}
    blamed = "the host holds it up" in sentence
    assert blamed == (gains["no host time"] > 0.05 and gains["no host time"] == max(gains.values())), sentence
    # Fewer launches help against a host that launches slowly in every step, not against a pause or loading of data.
    assert ("CUDA graphs" in sentence) == name.startswith("host-bound"), sentence
    assert "95% of such results are within 1%" in sentence and "all within 10%" in sentence


def test_a_trace_unlike_the_generated_ones_says_so(tmp_path: Path) -> None:
    alone = read(programs("deep queue"), tmp_path)[:1]
    sentence = what_if_sentence(alone)
    assert "not known for this trace" in sentence and "no partner" in sentence and "95%" not in sentence


@pytest.mark.parametrize("folder", ["dlrm-8-ranks", "megatron-8-ranks"])
def test_no_scenario_of_a_real_trace_is_faster_than_its_computation(folder: str) -> None:
    if not (KINETO / folder).exists():
        pytest.skip("shared/traces is not here")
    timelines = open_sources(KINETO / folder).timelines
    table = answer(timelines).table
    for timeline in timelines:
        kept, _ = in_window(timeline)
        work = timeline.kernels[kept & ~is_communication(timeline.kernels)]
        lengths = (work["end"] - work["start"]).groupby(work["stream"]).sum()
        assert table["replayed_ms"][table["rank"] == timeline.rank].min() >= lengths.max() / 1e6
