"""The alpha-beta line: the truth of a simulated ring is found again, and what cannot be fitted is refused."""

from pathlib import Path

import pytest
from support.rings import ring_all_reduce_us, write_collectives

from analysis.load import load_run
from analysis.metrics.communication.links import Link, fitted_links, link_rows, ring
from records.kinds import collectives_csv
from records.run import RunDirectory


def measured(*trials: Path) -> list[Link]:
    return [link for path in trials for link in fitted_links(load_run(RunDirectory(path)))]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_ring_of_the_model_is_that_of_messages_played_one_by_one(ranks: int) -> None:
    steps, part = ring(ranks)
    assert ring_all_reduce_us(ranks, 8e6, 5.0, 10.0) == pytest.approx(steps * 5.0 + part * 8e6 / 10.0 / 1e3)


def test_alpha_and_bandwidth_of_a_simulated_ring_are_found_from_what_comm_writes(tmp_path: Path) -> None:
    for ranks in (2, 4, 8):
        write_collectives(tmp_path, ranks, 12.0, 20.0, noise=0.02, seed=ranks)
    (link,) = measured(tmp_path)
    assert link.ranks == (2, 4, 8) and not link.reason
    assert link.alpha_us == pytest.approx(12.0, rel=0.05) and link.bandwidth_gb_s == pytest.approx(20.0, rel=0.05)
    (row,) = link_rows([link])
    assert row["median_error"] < 0.03


def test_what_no_line_fits_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_collectives(tmp_path / "few", 2, 12.0, 20.0, sizes=(1024, 4096, 2.0))
    (few,) = measured(tmp_path / "few")
    assert few.reason.startswith("3 sizes") and "--factor" in few.reason
    lines = write_collectives(tmp_path / "falling", 2, 12.0, 20.0, noise=0.0)
    path = collectives_csv(RunDirectory(tmp_path / "falling").trial(lines.trial_id))
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    place = header.index("time_us")
    times = [row[place] for row in rows][::-1]
    path.write_text("\n".join(",".join([*row[:place], time, *row[place + 1 :]]) for row, time in
                              zip([header, *rows], ["time_us", *times], strict=True)) + "\n")  # fmt: skip
    assert "above 0 fits" in measured(tmp_path / "falling")[0].reason
    (row,) = link_rows([few])
    assert row["alpha_us"] is None and row["reason"] == few.reason


def test_times_of_wrong_results_count_for_nothing(tmp_path: Path) -> None:
    write_collectives(tmp_path, 2, 12.0, 20.0, wrong=3)
    assert measured(tmp_path) == []


def test_rounds_are_one_line_and_nodes_are_lines_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        write_collectives(tmp_path, 2, 12.0, 20.0, seed=number, round_number=number)
    write_collectives(tmp_path, 2, 30.0, 2.0, nodes=2)
    inside, across = measured(tmp_path)
    assert (inside.nodes, across.nodes) == (1, 2) and across.bandwidth_gb_s == pytest.approx(2.0, rel=0.05)


def test_sizes_that_are_all_small_tell_no_bandwidth_and_give_no_line(tmp_path: Path) -> None:
    write_collectives(tmp_path / "small", 2, 500.0, 20.0, sizes=(1024, 64 << 10, 2.0), noise=0.0)
    write_collectives(tmp_path / "large", 2, 500.0, 20.0, noise=0.0)
    (small,), (large,) = measured(tmp_path / "small"), measured(tmp_path / "large")
    assert "65,536 bytes" in small.reason and "--max-bytes" in small.reason and not large.reason
    assert [row["bandwidth_gb_s"] for row in link_rows([small, large])] == [None, pytest.approx(20.0)]


def test_relative_errors_count_alike_at_every_size(tmp_path: Path) -> None:
    """Times 10 % too long at every size: so are latency and time per byte, whatever the sizes."""
    trial = write_collectives(tmp_path, 4, 11.0, 20.0 / 1.1, noise=0.0)
    (link,) = measured(tmp_path)
    assert (link.alpha_us, link.bandwidth_gb_s) == (pytest.approx(11.0), pytest.approx(20.0 / 1.1))
    assert trial.world_size == 4 and abs(link.errors).max() < 1e-5
