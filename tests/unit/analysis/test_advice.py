import shlex
from pathlib import Path
from typing import Any

import pytest
from fake_run import write_sweep

from analysis.diagnose.advice import LEAST, MOST, Advice, ranked, throughput_command
from analysis.diagnose.answer import points
from analysis.diagnose.explain import explain, to_do
from analysis.diagnose.run_answer import complete_answers
from analysis.load import load_run
from analysis.metrics.comparison.within_run import ratios_of
from analysis.metrics.records import RECORDS, published
from analysis.sources import open_sources
from bench.cli.dispatch import Call, find

TRACES = Path(__file__).parents[4] / "shared" / "traces"


def advice(cause: str, saves: float | None, replayed: bool = False) -> Advice:
    return Advice(cause=cause, seen=cause, remedy="try", saves=saves, unknown="" if saves else "?", replayed=replayed)


def parses(command: str) -> None:
    program, *words = shlex.split(command)
    found = find(words)
    assert program == "bertbench" and isinstance(found, Call)
    found.read_words(found.words, found.program)


def test_the_largest_gain_comes_first_and_unknown_gains_last() -> None:
    found = ranked([advice("batch", None), advice("data", 0.1), advice("host", 0.4)])
    assert [one.cause for one in found] == ["host", "data", "batch"]


def test_a_disturbed_machine_comes_before_every_gain() -> None:
    assert [one.cause for one in ranked([advice("host", 0.9), advice("machine", None)])] == ["machine", "host"]


def test_each_cause_is_named_once_and_small_gains_are_not() -> None:
    causes = ("a", "b", "c", "d", "e")
    found = ranked([advice(cause, 0.2) for cause in (*causes, *causes)])
    assert len(found) == MOST == len({one.cause for one in found})
    assert ranked([advice("host", LEAST / 2)]) == []


def test_a_replay_replaces_the_share_of_idle_time_also_where_it_shows_no_gain() -> None:
    (one,) = ranked([advice("host", 0.6), advice("host", 0.2, replayed=True)])
    assert one.saves == 0.2
    assert ranked([advice("host", 0.6), advice("host", 0.0, replayed=True)]) == []


@pytest.mark.parametrize(
    "changes", [{}, {"again": True}, {"precisions": "bf16"}, {"batch_sizes": 64}, {"grad_accum": 4}, {"levers": "auto"}]
)
def test_commands_parse(changes: dict[str, Any], tmp_path: Path) -> None:
    row = {"task": "pretrain", "preset": "large", "implementation": "bertbench without levers", "levers": "none"}
    row |= {"micro_batch_size": 8, "seq_len": 128, "precision": "fp32", "world_size": 1, "device": "cpu"}
    row |= {"data": "synthetic", "threads_per_rank": 2, "start_iteration": 2, "stop_iteration": 9}
    parses(throughput_command(row, str(tmp_path / "a run"), **changes))


def test_the_answer_of_a_run_says_how_fast_and_what_to_do(tmp_path: Path) -> None:
    trials = load_run(write_sweep(tmp_path, batches=(8, 16), worlds=(1,), count=15))
    found = points(trials)
    (said,) = complete_answers(trials, found, ratios_of(trials), str(tmp_path))
    document = said.to_json()
    fastest = max(point.samples_per_second for point in found)
    assert document["samples_per_second"] == fastest and document["rounds"] >= 1
    assert len(said.advice) <= MOST and len({one.cause for one in said.advice}) == len(said.advice)
    for one in said.advice:
        parses(one.command)
    assert document["do_first"] == (said.advice[0].to_json() if said.advice else None)


@pytest.mark.parametrize("name", ["dlrm-8-ranks", "megatron-8-ranks", "resnet"])
def test_advice_on_recorded_traces_has_one_cause_each_and_gains_that_can_be(name: str) -> None:
    path = TRACES / "kineto" / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    source = open_sources(path)
    found = to_do(source, explain(source))
    assert found and len(found) <= MOST
    assert len({one.cause for one in found}) == len(found)
    assert all(one.saves is None or LEAST <= one.saves <= 1 for one in found)
    assert [one.saves or 0 for one in found] == sorted((one.saves or 0 for one in found), reverse=True)
    for one in found:
        parses(one.command)


def test_published_figures_are_for_their_device_and_workload_alone() -> None:
    row = {"task": "pretrain", "preset": "large", "precision": "bf16", "seq_len": 512}
    found = published("NVIDIA A100-SXM4-80GB", row)
    assert found is not None and found.samples_per_second == 264.0
    assert published("NVIDIA H100 80GB HBM3", row) is None and published("", row) is None
    assert published("NVIDIA A100-SXM4-80GB", {**row, "preset": "base"}) is None
    assert all(one.source and one.conditions for one in RECORDS)
