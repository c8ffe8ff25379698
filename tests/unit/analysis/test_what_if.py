"""Graphs of two ranks worked by hand, in which scaling durations alone gives another answer. Times are ms."""

import itertools
import re
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import gpu_programs, shared_files
from support.gpu_programs import Change, Program, Training
from support.refusals import refused
from support.timelines import timeline

from analysis.diagnose.communication import findings
from analysis.metrics.communication.matching import clock_offsets, match_collectives
from analysis.metrics.communication.what_if import (
    SCENARIO_ERROR,
    SCENARIOS,
    WORST_ERROR,
    Scenario,
    WhatIf,
    parse_scenario,
    what_if,
)
from analysis.metrics.time.launches import in_window
from analysis.sources import open_sources
from analysis.timeline import Timeline, is_communication

KINETO = shared_files.TRACES / "kineto"
MS = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
Work = tuple[str, float, float]


def gpu(
    rank: int, works: Sequence[Work], launches: Sequence[float] | None = None, clock: float = 0, size: int = -1
) -> Timeline:
    """A rank that launches its work at once (or at `launches`) and synchronises until the last of it has ended.

    Work named "all_reduce" is on a stream of its own, waits for the work launched before it, and what comes after it
    waits for it; "beside" is on a third stream and waits for nothing.
    """
    ahead = clock * MS
    kernels, api, talks = [], [], []
    for number, (name, start, end) in enumerate(works):
        begin, stop = int(start * MS + ahead), int(end * MS + ahead)
        launch = int((launches[number] if launches else number * 0.001) * MS + ahead)
        if number and works[number - 1][0] == "all_reduce":
            api.append(("cudaStreamWaitEvent", launch - 200, launch - 100))
        api.append(("cudaLaunchKernel", launch, launch + 500, number))
        if name == "all_reduce":
            kernels.append((NCCL, 7, begin, stop, number))
            talks.append(("all_reduce", begin, stop, size, number, 7, "0", 2, -1))
        else:
            kernels.append((name, 3 if name == "beside" else 0, begin, stop, number))
    last = max(int(end * MS + ahead) for _, _, end in works)
    begin = max(int(call[2]) for call in api) + 1000
    api.append(("cudaDeviceSynchronize", begin, last, -1))
    return timeline(rank, steps=[(0, int(ahead), last)], kernels=kernels, api=api, collectives=talks)


def cpu(
    rank: int, operators: Sequence[tuple[float, float]], talks: Sequence[tuple[float, float]], end: float
) -> Timeline:
    return timeline(
        rank,
        steps=[(0, 0, int(end * MS))],
        operators=[("aten::mm", int(a * MS), int(b * MS)) for a, b in operators],
        collectives=[("all_reduce", int(a * MS), int(b * MS)) for a, b in talks],
    )


def answer(ranks: Sequence[Timeline], scenarios: Sequence[Scenario] = SCENARIOS) -> WhatIf:
    matching = match_collectives(ranks)
    return what_if(ranks, matching, clock_offsets(ranks, matching).offsets_ns, scenarios)


def times(answers: WhatIf, scenario: str) -> Any:
    table = answers.table
    return pytest.approx(table["replayed_ms"][table["scenario"] == scenario].tolist(), abs=0.01)


def test_transfer_that_nothing_hides_is_saved() -> None:
    works = [("gemm", 0, 10), ("all_reduce", 10, 30), ("gemm", 30, 40)]
    answers = answer([gpu(0, works), gpu(1, works)])
    assert times(answers, "as traced") == [40, 40]
    assert times(answers, "free") == [20, 20]
    assert times(answers, "half as fast") == [60, 60]
    assert times(answers, "twice as fast") == [30, 30]
    assert times(answers, "no waiting for other ranks") == [40, 40]
    assert answers.error == pytest.approx(0, abs=1e-4) and answers.problems == ()


def test_a_wait_for_a_straggler_does_not_vanish_with_the_transfer() -> None:
    # Scaling rank 0's 25 ms of communication to nothing would give 20; it still has to wait until 30.
    answers = answer(
        [
            gpu(0, [("gemm", 0, 10), ("all_reduce", 10, 35), ("gemm", 35, 45)]),
            gpu(1, [("gemm", 0, 30), ("all_reduce", 30, 35), ("gemm", 35, 45)]),
        ]
    )
    assert times(answers, "free") == [40, 40]
    assert times(answers, "half as fast") == [50, 50]
    assert times(answers, "no waiting for other ranks") == [25, 45]


def test_the_slowest_rank_is_held_against_the_slowest_as_traced() -> None:
    answers = answer(
        [
            gpu(0, [("gemm", 0, 10), ("all_reduce", 10, 35), ("gemm", 35, 55)]),
            gpu(1, [("gemm", 0, 30), ("all_reduce", 30, 35), ("gemm", 35, 45)]),
        ]
    )
    row = answers.slowest().set_index("scenario").loc["no waiting for other ranks"]
    # rank 0 takes 55 as traced; alone it takes 10 + 5 + 20 = 35, and rank 1 is the slowest with its 45
    assert (row["rank"], row["replayed_ms"]) == (1, pytest.approx(45, abs=0.01))
    assert row["saved_ms"] == pytest.approx(10, abs=0.01)


def test_hidden_communication_costs_nothing_until_it_sticks_out() -> None:
    works = [("gemm", 0, 5), ("all_reduce", 5, 25), ("beside", 5, 40)]
    answers = answer([gpu(0, works), gpu(1, works)], [*SCENARIOS, parse_scenario("0.5x"), parse_scenario("0.25x")])
    assert times(answers, "free") == [40, 40]
    assert times(answers, "half as fast") == [45, 45]  # 5 + 40
    assert times(answers, "0.25 times as fast") == [85, 85]


def test_without_communication_the_host_can_become_the_bound() -> None:
    # The last kernel is launched at 29: without the 20 ms of communication it starts then, not at 10.
    works = [("gemm", 0, 10), ("all_reduce", 10, 30), ("gemm", 30, 40)]
    launches = [0, 0.01, 29]
    answers = answer([gpu(0, works, launches), gpu(1, works, launches)])
    assert times(answers, "free") == [39, 39]
    free = answers.table[answers.table["scenario"] == "free"]
    assert free["critical_path"].tolist() == ["host", "host"]


def test_clocks_of_other_hosts_change_nothing() -> None:
    works = [("gemm", 0, 10), ("all_reduce", 10, 35), ("gemm", 35, 45)]
    late = [("gemm", 0, 30), ("all_reduce", 30, 35), ("gemm", 35, 45)]
    assert times(answer([gpu(0, works), gpu(1, late, clock=5000)]), "free") == [40, 40]


def test_a_given_bus_bandwidth_sets_the_transfer_of_known_sizes() -> None:
    works = [("gemm", 0, 10), ("all_reduce", 10, 30), ("gemm", 30, 40)]
    ranks = [gpu(rank, works, size=40_000_000) for rank in (0, 1)]
    answers = answer(ranks, [parse_scenario("4GB/s")])  # 40e6 bytes x 2 (2 - 1) / 2 at 4 GB/s: 10 ms
    assert times(answers, "bus bandwidth 4 GB/s") == [30, 30]


def test_a_collective_without_partner_is_scaled_whole_and_it_is_said() -> None:
    answers = answer([gpu(0, [("gemm", 0, 10), ("all_reduce", 10, 30), ("gemm", 30, 40)])])
    assert times(answers, "free") == [20]
    assert "1 of the collectives have no partner" in answers.problems[0]


def test_on_a_cpu_the_end_of_the_backward_pass_waits_for_gloo() -> None:
    rank = cpu(0, [(0, 20), (20, 50), (80.1, 90)], [(40, 80)], 90.1)
    other = cpu(1, [(0, 20), (20, 50), (80.1, 90)], [(40, 80)], 90.1)
    answers = answer([rank, other])
    assert times(answers, "as traced") == [90.1, 90.1]
    assert times(answers, "free") == [60.1, 60.1]  # the optimizer 0.1 ms after 50
    assert times(answers, "half as fast") == [130.1, 130.1]


def test_on_a_cpu_hidden_and_straggling_communication_is_not_saved() -> None:
    hidden = [cpu(rank, [(0, 20), (20, 50), (50.05, 60)], [(25, 45)], 60) for rank in (0, 1)]
    assert times(answer(hidden), "free") == [60, 60]
    ranks = [cpu(0, [(0, 50), (80.1, 90)], [(49, 80)], 90), cpu(1, [(0, 70), (80.1, 90)], [(70, 80)], 90)]
    assert times(answer(ranks), "free") == [80, 80]  # until 70, not 50


def test_steps_that_end_with_a_wait_on_a_cpu_wait_too() -> None:
    ranks = [cpu(rank, [(0, 50)], [(40, 80)], 80.05) for rank in (0, 1)]
    assert times(answer(ranks), "free") == [50.05, 50.05]


def test_a_replay_that_misses_the_trace_says_so() -> None:
    # The ranks leave the collective 20 ms apart: one common end cannot give both.
    works = [("gemm", 0, 10), ("all_reduce", 10, 30), ("gemm", 30, 40)]
    apart = [("gemm", 0, 10), ("all_reduce", 10, 50), ("gemm", 50, 60)]
    matching = match_collectives([gpu(0, works), gpu(1, apart)])
    answers = what_if([gpu(0, works), gpu(1, apart)], matching, (0, 0))
    assert answers.error is not None and answers.error > 0.05
    assert "do not rely" in " ".join(answers.problems)


NO_SCENARIOS = ["", "faster", "-1x", "0x", "1e400x", "GB/s", "0GB/s", "9" * 40 + "x"]
NO_SCENARIOS += [
    "without:",
    "without:*",
    "kernel:gemm",
    "kernel:=2x",
    "kernel:gemm=0x",
    "ranks:0",
    "ranks:x",
    "gelu:gemm",
]


@pytest.mark.parametrize("text", NO_SCENARIOS)
def test_a_word_that_is_no_scenario_is_refused(text: str) -> None:
    with refused("option-value", "--what-if", text[:60], "3x", "100GB/s"):
        parse_scenario(text)


def test_words_for_scenarios() -> None:
    assert parse_scenario("free").transfer_factor == 0
    assert parse_scenario("half").transfer_factor == 2
    assert parse_scenario("twice").transfer_factor == 0.5
    assert parse_scenario("4x").transfer_factor == 0.25
    assert parse_scenario("100 GB/s").busbw_gb_s == 100
    assert not parse_scenario("nowait").waits
    assert not parse_scenario("nohost").host and parse_scenario("nohost").waits


def test_time_grows_linearly_with_the_work() -> None:
    def seconds(count: int) -> float:
        moments = list(itertools.accumulate([0, 1, 2] * count))
        works: list[Work] = [
            ("all_reduce" if i % 3 == 2 else "gemm", a, b) for i, (a, b) in enumerate(itertools.pairwise(moments))
        ]
        ranks = [gpu(rank, works) for rank in (0, 1)]
        matching = match_collectives(ranks)
        begin = time.process_time()  # other work on the machine does not count
        what_if(ranks, matching, (0, 0))
        return time.process_time() - begin

    small, large = min(seconds(200) for _ in range(3)), min(seconds(2000) for _ in range(2))
    assert large < 40 * small  # 10 times the work; a quadratic one takes 100 times


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["dlrm-8-ranks", "megatron-8-ranks"])
def test_the_unchanged_replay_gives_real_traces_again(folder: str) -> None:
    if not (KINETO / folder).exists():
        pytest.skip("shared/traces is not here")
    from analysis.sources import open_sources

    answers = answer(open_sources(KINETO / folder).timelines)
    assert answers.error is not None and answers.error < 0.005
    free = answers.table[answers.table["scenario"] == "free"]
    assert (free["saved_ms"] > -0.01).all()


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
CHANGED_PROGRAMS = {
    "without:Gelu": Change(gelu_factor=0),
    "kernel:GeluCUDA=2x": Change(gelu_factor=0.5),
    "nodata": Change(data_factor=0),
}
OTHERS = {
    "deep queue": Training(gelu=300, data=3000, transfer=6000),
    "deep queue, one late rank": Training(gelu=300, slower=lambda rank, step: 1.5 if rank == 1 else 1.0),
    "host-bound": Training(forward=8, gelu=5, python=25, data=1000, transfer=40),
    "data loading, loss read each step": Training(gelu=300, item=True, data=20_000),
    "collectives one layer ahead": Training(gelu=300, data=9000, transfer=350, prefetch=True),
}
SCATTERED = range(100, 150)


@cache
def programs(name: str) -> Sequence[Program]:
    return TRAININGS[name].programs(3)


@cache
def truth(name: str, change: Change) -> float:
    return gpu_programs.slowest_ms(gpu_programs.play(programs(name), change))


def read(ranks: Sequence[Program], folder: Path) -> list[Timeline]:
    return list(open_sources(gpu_programs.write(gpu_programs.play(ranks), folder)).timelines)


def answers_of(timelines: Sequence[Timeline], scenarios: Sequence[Scenario] = SCENARIOS) -> WhatIf:
    matching = match_collectives(timelines)
    return what_if(timelines, matching, clock_offsets(timelines, matching).offsets_ns, scenarios)


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
    answers = answers_of(read(programs(name), tmp_path))
    replayed = slowest(answers)
    errors = {scenario: replayed[scenario] / truth(name, change) - 1 for scenario, change in CHANGES.items()}
    worst = max(map(abs, errors.values()))
    traced = truth(name, Change())
    assert replayed["as traced"] == pytest.approx(traced, rel=1e-3)
    assert worst <= SCENARIO_ERROR, errors
    assert answers.outside == "" and answers.problems == ()
    # No rank can be faster than the work of its streams, whatever is changed.
    assert (
        min(replayed.values()) >= max(run.busy(gpu_programs.COMPUTE) for run in gpu_programs.play(programs(name))) / 1e3
    )
    shares = [truth(name, CHANGES[scenario]) / traced for scenario in SHOWN]
    assert [100 * number for number in (*shares, worst)] == pytest.approx(documented()[name], abs=0.06)


@pytest.mark.parametrize("name", OTHERS)
def test_kernels_data_and_one_more_rank_come_to_what_the_program_then_does(name: str, tmp_path: Path) -> None:
    training = OTHERS[name]
    three = training.programs(3)
    asked = [parse_scenario(text) for text in (*CHANGED_PROGRAMS, "ranks:4")]
    answers = answers_of(read(three, tmp_path), asked)
    replayed = slowest(answers)
    assert answers.outside == "" and answers.table["expected_error_share"].eq(SCENARIO_ERROR).all()
    for text, change in CHANGED_PROGRAMS.items():
        true = gpu_programs.slowest_ms(gpu_programs.play(three, change))
        assert replayed[parse_scenario(text).name] == pytest.approx(true, rel=SCENARIO_ERROR), text
    # An all-reduce of as many bytes takes 2 (n - 1) / n times as long as one transfer of them.
    more = Change(transfer_factor=(3 / 4) / (2 / 3))
    true = gpu_programs.slowest_ms(gpu_programs.play(training.programs(4), more))
    assert replayed["4 ranks"] == pytest.approx(true, rel=SCENARIO_ERROR)


def test_a_kernel_that_is_gone_takes_its_time_and_its_launch_along() -> None:
    works = [("gemm", 0, 10), ("gelu", 10, 14), ("gemm", 14, 24), ("gelu", 24, 27)]
    answers = answer([gpu(0, works)], [parse_scenario("without:G*lu"), parse_scenario("kernel:gelu=2x")])
    assert times(answers, "without G*lu") == [20]
    assert times(answers, "gelu 2 times as fast") == [23.5]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["without:(a+)+$", f"without:{'*a' * 40}b"])
def test_no_name_that_is_asked_for_takes_long(text: str) -> None:
    with refused("option-value", text[8:40]):
        answer([gpu(0, [("a" * 5000, 0, 10)])], [parse_scenario(text)])


def test_what_was_not_validated_says_so(tmp_path: Path) -> None:
    timelines = read(programs("deep queue"), tmp_path)
    texts = ("half", "0.25x", "kernel:gemm=0.5x", "ranks:8", "ranks:2")
    table = answers_of(timelines, [parse_scenario(text) for text in texts]).table
    known = table.groupby("scenario", sort=False)["expected_error_share"].max().notna()
    assert known.tolist() == [True, True, False, False, False, True]
    assert table["expected_error_share"].dropna().eq(SCENARIO_ERROR).all()


def test_kernels_that_are_not_there_and_ranks_of_one_are_refused() -> None:
    works = [("gemm", 0, 10), ("gelu", 10, 14)]
    with refused("option-value", "relu", "gemm"):
        answer([gpu(0, works)], [parse_scenario("without:relu")])
    with refused("option-value", "nccl", "gemm"):  # 2x is for communication
        answer([gpu(0, [*works, ("all_reduce", 14, 20)])], [parse_scenario("kernel:nccl=2x")])
    assert findings([gpu(0, works)]) == []  # no communication
    (found,) = findings([gpu(0, works)], [parse_scenario("without:gelu")])
    assert found.name == "what_if" and "28.6 %" in found.sentence
    with refused("option-value", "ranks:4", "2 or more ranks"):
        answer([gpu(0, works)], [parse_scenario("ranks:4")])


@pytest.mark.slow
def test_scenarios_of_programs_in_any_order(tmp_path: Path) -> None:
    errors = []
    for seed in SCATTERED:
        ranks = gpu_programs.scattered(seed, 3)
        replayed = slowest(answers_of(read(ranks, tmp_path / str(seed))))
        for scenario, change in CHANGES.items():
            errors.append(abs(replayed[scenario] / gpu_programs.slowest_ms(gpu_programs.play(ranks, change)) - 1))
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
    blamed = "the host limits it" in sentence
    assert blamed == (gains["no host time"] > 0.05 and gains["no host time"] == max(gains.values())), sentence
    # Fewer launches help against a host that launches slowly in every step, not against a pause or loading of data.
    assert ("CUDA graphs" in sentence) == name.startswith("host-bound"), sentence
    assert "95 % of replays are within 1.0 %" in sentence and "all within 10.0 %" in sentence


def test_a_trace_unlike_the_generated_ones_says_so(tmp_path: Path) -> None:
    alone = read(programs("deep queue"), tmp_path)[:1]
    sentence = what_if_sentence(alone)
    assert "unknown for this trace" in sentence and "no partner" in sentence and "95 %" not in sentence


@pytest.mark.parametrize("folder", ["dlrm-8-ranks", pytest.param("megatron-8-ranks", marks=pytest.mark.slow)])
def test_no_scenario_of_a_real_trace_is_faster_than_its_computation(folder: str) -> None:
    if not (KINETO / folder).exists():
        pytest.skip("shared/traces is not here")
    timelines = open_sources(KINETO / folder).timelines
    table = answers_of(timelines).table
    for own in timelines:
        kept, _ = in_window(own)
        work = own.kernels[kept & ~is_communication(own.kernels)]
        lengths = (work["end"] - work["start"]).groupby(work["stream"]).sum()
        assert table["replayed_ms"][table["rank"] == own.rank].min() >= lengths.max() / 1e6
