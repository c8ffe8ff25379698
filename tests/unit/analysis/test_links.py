"""The alpha-beta line: the truth of a simulated ring is found again, and what cannot be fitted is refused."""

from pathlib import Path

import numpy as np
import pytest
from support.rings import ring_all_reduce_us, write_collectives

from analysis.load import load_run
from analysis.metrics.communication.links import Link, Point, fit, fitted_links, link_rows, residual_rows, ring
from analysis.render.link_tables import link_sentences
from records.run import RunDirectory


def measured(*trials: Path) -> list[Link]:
    return [link for path in trials for link in fitted_links(load_run(RunDirectory(path)))]


def simulated(
    alpha: float, bandwidth: float, noise: float, bias: float, seed: int, ranks: tuple[int, ...] = (4,)
) -> Link:
    random = np.random.default_rng(seed)
    points = []
    for count in ranks:
        for size in 2 ** np.arange(10, 27, dtype=np.int64):
            true = ring_all_reduce_us(count, float(size), alpha, bandwidth) * np.exp(bias * random.standard_normal())
            times = tuple(true * np.exp(noise * random.standard_normal(5)) for _ in range(2))
            points.append(Point(count, int(size), times))
    bare = {"collective": "all_reduce", "dtype": "fp32", "placement": "in_place", "device": "cuda", "nodes": 1}
    return fit(Link(**bare, points=tuple(points)), seed=seed)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_ring_of_the_model_is_that_of_messages_played_one_by_one(ranks: int) -> None:
    steps, part = ring("all_reduce", ranks)
    assert ring_all_reduce_us(ranks, 8e6, 5.0, 10.0) == pytest.approx(steps * 5.0 + part * 8e6 / 10.0 / 1e3)


def test_alpha_and_bandwidth_of_a_simulated_ring_are_found_from_what_comm_writes(tmp_path: Path) -> None:
    for ranks in (2, 4, 8):
        write_collectives(tmp_path, ranks, 12.0, 20.0, noise=0.02, seed=ranks)
    (link,) = measured(tmp_path)
    assert link.ranks == (2, 4, 8) and not link.reason
    assert link.alpha_us == pytest.approx(12.0, rel=0.05) and link.bandwidth_gb_s == pytest.approx(20.0, rel=0.05)
    (row,) = link_rows([link])
    assert row["alpha_us_low"] < 12.0 < row["alpha_us_high"]
    assert row["bandwidth_gb_s_low"] < 20.0 < row["bandwidth_gb_s_high"]
    assert row["median_error"] < 0.03
    rows = residual_rows([link])
    assert len(rows) == len(link.points)
    assert all(row["fitted_us"] / row["time_us"] - 1 == pytest.approx(row["error"]) for row in rows)


def test_the_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = np.zeros(2)
    for seed in range(60):
        link = simulated(10.0, 5.0, noise=0.03, bias=0.06, seed=seed)
        for place, (name, truth) in enumerate((("alpha_us", 10.0), ("bandwidth_gb_s", 5.0))):
            low, high = link.interval(name)
            held[place] += low <= truth <= high
    assert (held / 60 >= 0.87).all(), held / 60


def test_single_odd_sizes_do_not_bend_the_line() -> None:
    link = simulated(10.0, 5.0, noise=0.01, bias=0.0, seed=1)
    points = list(link.points)
    for place in (2, 9):
        odd = points[place]
        points[place] = Point(odd.ranks, odd.size_bytes, tuple(4 * times for times in odd.times_us))
    bent = fit(Link(**{n: getattr(link, n) for n in ("collective", "dtype", "placement", "device", "nodes")},
                    points=tuple(points)))  # fmt: skip
    assert bent.alpha_us == pytest.approx(10.0, rel=0.05) and bent.bandwidth_gb_s == pytest.approx(5.0, rel=0.05)
    assert max(abs(bent.errors)) > 0.7, "and the odd ones are seen in the residuals"


def test_what_no_line_fits_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_collectives(tmp_path / "few", 2, 12.0, 20.0, sizes=(1024, 4096, 2.0))
    (few,) = measured(tmp_path / "few")
    assert "needs 4 sizes, but 3 were" in few.reason and "--factor" in few.reason
    falling = tuple(Point(2, 2**power, (np.array([1e6 / 2**power]),)) for power in range(10, 16))
    bare = {"collective": "all_reduce", "dtype": "fp32", "placement": "in_place", "device": "cpu", "nodes": 1}
    assert "above 0 fits" in fit(Link(**bare, points=falling)).reason
    (row,) = link_rows([few])
    assert row["alpha_us"] is None and row["reason"] == few.reason
    assert residual_rows([few]) == []


def test_times_of_wrong_results_count_for_nothing(tmp_path: Path) -> None:
    write_collectives(tmp_path, 2, 12.0, 20.0, wrong=3)
    assert measured(tmp_path) == []


def test_rounds_are_processes_of_one_line_and_nodes_are_lines_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        write_collectives(tmp_path, 2, 12.0, 20.0, seed=number, round_number=number)
    write_collectives(tmp_path, 2, 30.0, 2.0, nodes=2)
    inside, across = measured(tmp_path)
    assert {len(point.times_us) for point in inside.points} == {3}
    assert (inside.nodes, across.nodes) == (1, 2) and across.bandwidth_gb_s == pytest.approx(2.0, rel=0.05)


def test_a_broadcast_has_a_line_per_number_of_ranks(tmp_path: Path) -> None:
    for ranks in (2, 4):
        write_collectives(tmp_path, ranks, 12.0, 20.0, name="broadcast")
    assert [link.ranks for link in measured(tmp_path)] == [(2,), (4,)]


def test_sizes_that_are_all_small_tell_no_bandwidth_of_the_link_and_the_line_says_so(tmp_path: Path) -> None:
    write_collectives(tmp_path / "small", 2, 500.0, 20.0, sizes=(1024, 64 << 10, 2.0), noise=0.0)
    write_collectives(tmp_path / "large", 2, 500.0, 20.0, noise=0.0)
    (small,), (large,) = measured(tmp_path / "small"), measured(tmp_path / "large")
    assert "measure larger sizes" in small.caution and not small.reason
    assert large.caution == ""
    assert "caution: even at the largest size, 65,536 bytes" in link_sentences([small])[0]
    assert "caution" not in link_sentences([large])[0]
    assert [row["caution"] for row in link_rows([small, large])] == [small.caution, ""]
