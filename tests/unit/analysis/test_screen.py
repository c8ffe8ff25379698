"""The screen of a run: what does not fit is left out, never the fastest trial."""

from analysis.render.screen import MOST_LINES, run_screen
from analysis.render.tables import Block, Table, plain
from analysis.render.terminal import blocks_text


def test_the_fastest_of_many_trials_is_on_the_screen() -> None:
    rows = [{"name": f"trial{number:02}", "samples_per_second": float(number)} for number in range(30)]
    rows.append({"name": "failed", "samples_per_second": None})
    results: list[Block] = [Table("results", [plain("trial", "name")], rows)]
    shown = blocks_text(run_screen([], results).blocks(100), 100)
    assert "trial29" in shown and "failed" not in shown and len(shown.splitlines()) <= MOST_LINES
