"""Names of metrics against those that `ncu --query-metrics` of two versions lists (tests/data/ncu-metrics.json)."""

import json

import pytest
from support.shared_files import OWN

from bench.profilers.ncu_metrics import NEWER, metrics_of

LISTED = json.loads((OWN / "ncu-metrics.json").read_text())
"""Names by version and chips."""
CAPABILITIES = {"gv": (7, 0), "tu": (7, 5), "ga100": (8, 0), "ga10": (8, 6), "ad": (8, 9), "gh": (9, 0)}
"""By the first characters of a chip."""
# Chips that share the memory of their host.
WITHOUT_DRAM = ("gv11b", "ga10b")
LACKING = {
    ("2022.3", "ad"): {*NEWER},
    ("2022.3", "gh"): {*NEWER},
    ("2024.1", "ad"): {"sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_elapsed"},
    ("2024.1", "gh"): {"sm__ops_path_tensor_src_fp16_dst_fp32.sum"},
}
"""Names that a version does not list for an architecture."""


@pytest.mark.parametrize(
    ("version", "chip", "listed"),
    [
        (version, chip, names)
        for version, groups in LISTED.items()
        for chips, names in groups.items()
        for chip in chips.split()
    ],
)
def test_every_name_is_listed_for_its_chip(version: str, chip: str, listed: list[str]) -> None:
    start = next(start for start in CAPABILITIES if chip.startswith(start))
    names = set(metrics_of(CAPABILITIES[start])[0])
    lacking = names - set(listed)
    of_dram = {name for name in names if name.startswith("dram__")} if chip in WITHOUT_DRAM else set()
    assert lacking == of_dram | (names & LACKING.get((version, start), set()))
