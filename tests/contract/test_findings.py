"""What every recording is reported as: one screen, short sentences, at most one piece of advice a finding."""

import json
from pathlib import Path

import pytest
from support.shared_files import TRACES

from analysis.diagnose.profiles import OpenedProfile, analyze_paths
from analysis.render.screen import MOST_LINES, screen_of
from analysis.render.terminal import blocks_text

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
    for width in (80, 100):
        shown = blocks_text(screen_of(found.findings, found.advice, "rest " * 30).blocks(width), width).split("\n")
        assert len(shown) <= MOST_LINES and max(len(line) for line in shown if "bertbench " not in line) <= width
        assert found.advice == () or any(found.advice[0].command in line for line in shown)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_findings_of_our_recordings(path: Path) -> None:
    check(analyze_paths([path]))


@pytest.mark.public
@pytest.mark.parametrize("place", PUBLIC)
def test_findings_of_public_recordings(place: str) -> None:
    check(analyze_paths([TRACES / place]))
