"""What `bertbench comm` prints is read back by the reader of nccl-tests' logs, with the same numbers."""

from pathlib import Path

import pytest
from support.refusals import refused
from support.rings import write_collectives

from analysis.load import LoadedTrial, load_run
from analysis.metrics.communication.links import fitted_links
from analysis.readers.nccl_tests import read
from analysis.readers.registry import find_reader, read_head
from analysis.render.link_tables import link_sentences, nccl_tests_text
from records.kinds import CollectiveTest, parse_size
from records.run import RunDirectory


def one(run: Path) -> LoadedTrial:
    (trial,) = load_run(RunDirectory(run))
    return trial


@pytest.mark.parametrize("bandwidth", [20.0, 300.0])
def test_the_printed_table_is_read_back_with_its_numbers(tmp_path: Path, bandwidth: float) -> None:
    write_collectives(tmp_path / "run", 4, 12.0, bandwidth)
    trial = one(tmp_path / "run")
    path = tmp_path / "log.txt"
    path.write_text("building...\n" + nccl_tests_text(trial) + "\ndone\n")
    reader = find_reader(read_head(path))
    assert reader is not None and reader.name == "nccl-tests"
    (summary,) = read(path)
    assert summary.problems == ()
    assert summary.facts == {"ranks": 4}
    rows = trial.row["by_size"]
    assert set(summary.table["collective"]) == {"all_reduce"} and set(summary.table["placement"]) == {"in_place"}
    assert summary.table["size_bytes"].tolist() == [row["size_bytes"] for row in rows]
    assert summary.table["count"].tolist() == [row["count"] for row in rows]
    assert summary.table["time_us"].tolist() == pytest.approx([row["time_us"] for row in rows], rel=2e-3)
    assert summary.table["busbw_gb_s"].tolist() == pytest.approx([row["busbw_gb_s"] for row in rows], abs=6e-3)


def test_wrong_elements_are_printed_read_back_and_named(tmp_path: Path) -> None:
    write_collectives(tmp_path / "run", 2, 12.0, 20.0, wrong=7)
    trial = one(tmp_path / "run")
    (tmp_path / "log.txt").write_text(nccl_tests_text(trial))
    (summary,) = read(tmp_path / "log.txt")
    assert (summary.table["wrong"] == 7).all()
    assert [caution["code"] for caution in trial.row["cautions"]] == ["wrong_results"]


def test_the_line_is_told_in_a_sentence(tmp_path: Path) -> None:
    write_collectives(tmp_path, 4, 12.0, 20.0)
    (line,) = link_sentences(fitted_links(load_run(RunDirectory(tmp_path))))
    assert line.startswith("all_reduce fp32, 4 ranks: time = 2(n-1) x 1") and "2(n-1)/n x bytes / 20" in line


def test_sizes_are_shared_by_the_ranks_in_whole_parts() -> None:
    test = CollectiveTest(name="all_gather", min_bytes=1, max_bytes=1000, factor=2, repetitions=1, iterations=None,
                          warmup=0)  # fmt: skip
    assert test.sizes(3) == [48, 96, 240, 480]
    with refused("option-value", "--max-bytes 1000", 16384):
        test.sizes(1024)


@pytest.mark.parametrize(("text", "size"), [("1024", 1024), ("4k", 4096), ("1.5M", 3 << 19), ("2GiB", 2 << 30)])
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert parse_size(text, "--max-bytes") == size


@pytest.mark.parametrize("text", ["", "K", "-1", "0", "nan", "1e99", "ten", "1T"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with refused("option-value", f"--max-bytes {text}"):
        parse_size(text, "--max-bytes")
