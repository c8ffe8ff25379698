"""One screen: what does not fit is left out, never the fastest trial; many ranks are three."""

import pandas as pd

from analysis.diagnose.finding import Finding
from analysis.render.tables import Block, Table, plain
from analysis.render.terminal import MOST_LINES, blocks_text, run_screen, screen_of


def test_the_fastest_of_many_trials_is_on_the_screen() -> None:
    rows = [{"name": f"trial{number:02}", "samples_per_second": float(number)} for number in range(30)]
    rows.append({"name": "failed", "samples_per_second": None})
    results: list[Block] = [Table("results", [plain("trial", "name")], rows)]
    shown = blocks_text(run_screen([], results).blocks(100), 100)
    assert "trial29" in shown and "failed" not in shown and len(shown.splitlines()) <= MOST_LINES


def test_of_many_ranks_the_first_the_slowest_and_the_fastest_are_shown() -> None:
    frame = pd.DataFrame({"rank": range(8), "step_ms": [5.0, 4.0, 9.0, 6.0, 7.0, 3.0, 8.0, 5.5], "never": None})
    ranks = screen_of([Finding("by_rank", "Ranks", frame)]).ranks
    assert ranks is not None and [(row[""], row["rank"]) for row in ranks.rows] == [
        ("first", 0), ("slowest", 2), ("fastest", 5)
    ]  # fmt: skip
    (table,) = screen_of([Finding("by_rank", "Ranks", frame.head(7))]).blocks(80)
    assert isinstance(table, Table) and table.headings == ["rank", "step ms"] and len(table.rows) == 7
