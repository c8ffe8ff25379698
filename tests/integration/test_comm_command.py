"""`bertbench comm` from the command line to the report, on two real gloo ranks."""

import json
from typing import Any

import pytest
from support.cli import Cli, bertbench, run_to_end

SMALL = ("--devices", "2", "--device", "cpu", "--min-bytes", "1K", "--max-bytes", "512K", "--factor", "2")


@pytest.mark.slow
def test_collectives_of_two_ranks_are_measured_checked_printed_and_reported(cli: Cli) -> None:
    words = ("comm", *SMALL, "--collectives", "all_reduce", "reduce_scatter", "--out", cli.out)
    run_to_end(bertbench(*words))
    again = run_to_end(bertbench(*words, "--json"))
    assert again.stderr.count("already done") == 2, "a call with the same folder continues it"
    found: dict[str, Any] = json.loads(again.stdout)
    assert {(row["collective"], row["placement"]) for row in found["rows"]} == {
        ("all_reduce", "in_place"), ("reduce_scatter", "in_place"), ("reduce_scatter", "out_of_place"),
    }  # fmt: skip
    assert len(found["rows"]) == 10 + 2 * 10 and all(row["wrong"] == 0 for row in found["rows"])
    assert [(row["dtype"], row["ranks"]) for row in found["fits"]] == [("fp32", "2")], "of the all-reduce"
    run_to_end(bertbench("report", cli.out))
    page = (cli.out / "report" / "report.html").read_text(encoding="utf-8")
    assert "only collectives" in page and "busbw" in page
    assert (cli.out / "report" / "tables" / "collectives.csv").exists() and not cli.processes()
