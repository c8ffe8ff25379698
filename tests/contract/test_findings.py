"""What every recording is reported as: one screen, short sentences, at most one piece of advice a finding."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.commands import parses
from support.shared_files import TRACES

from analysis.diagnose.advice import LEAST, MOST
from analysis.diagnose.profiles import OpenedProfile, analyze_paths
from analysis.metrics.time.window import analysis_time
from analysis.render.terminal import MOST_LINES, blocks_text, screen_of
from analysis.timeline import Timeline

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data"
OURS = sorted(path for folder in ("kineto", "ncu", "nsys") for path in (DATA / folder).rglob("*") if path.is_file())
RECORDINGS = json.loads((ROOT / "tests/oracles/data/recordings.json").read_text(encoding="utf-8"))
PUBLIC = [*RECORDINGS["timelines"], *RECORDINGS["counters"], RECORDINGS["log"]]
MOST_WORDS = 20


def check(found: OpenedProfile) -> None:
    for finding in found.findings:
        assert len(finding.sentence.split()) <= MOST_WORDS, (finding.name, finding.sentence)
        assert len(finding.advice) <= 1, finding.name
    gains = [one.saves for one in found.advice if one.saves is not None]
    assert gains == sorted(gains, reverse=True) and len({one.cause for one in found.advice}) == len(found.advice)
    assert len(found.advice) <= MOST and all(LEAST <= gain <= 1 for gain in gains)
    idle = idle_share(found.source.timelines)
    for one in found.advice:
        parses(one.command)
        assert (one.saves is None) == bool(one.unknown)
        assert one.cause not in ("host", "data") or (one.saves is not None and one.saves <= idle + 1e-9)
    for width in (80, 100):
        screen = screen_of(found.findings, found.advice).blocks(width, rest="rest " * 30)
        shown = blocks_text(screen, width).split("\n")
        assert len(shown) <= MOST_LINES and max(len(line) for line in shown if "bertbench " not in line) <= width
        assert found.advice == () or any(found.advice[0].command in line for line in shown)


def idle_share(timelines: Sequence[Timeline]) -> float:
    """Share of the ranks' windows in which nothing runs on their GPUs, by a sweep over starts and ends."""
    idle = whole = 0
    for one in timelines:
        window = analysis_time(one)
        if window is None or not len(one.work):
            continue
        ((begin, end),) = window.tolist()
        edges = [(int(start), 1) for start in one.work.start] + [(int(stop), -1) for stop in one.work.end]
        running, last = 0, begin
        for moment, change in sorted([*edges, (end, 0)]):
            at = min(max(moment, begin), end)
            idle += (at - last) if running == 0 else 0
            last, running = at, running + change
        whole += end - begin
    return idle / whole if whole else 0.0


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_findings_of_our_recordings(path: Path) -> None:
    check(analyze_paths([path]))


@pytest.mark.public
@pytest.mark.parametrize("place", PUBLIC)
def test_findings_of_public_recordings(place: str) -> None:
    check(analyze_paths([TRACES / place]))
