"""Draw docs/images/h100.svg from the table of docs/results/2026-11-26-h100.md: python benchmarks/h100_chart.py."""

import re
from pathlib import Path

import matplotlib

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "results/2026-11-26-h100.md"
ROWS = (
    ("defaults, bf16", "64", "bertbench, bf16"),
    ("`hf-compiled`", "64", "Hugging Face, compiled"),
    ("`hf`", "64", "Hugging Face, eager"),
)
UNPADDING = 2.05
"""512 columns / 250 real tokens a sequence: what computing no padding can give."""


def rates() -> list[float]:
    """Return samples/s of the rows that are drawn."""
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d.,]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    table = {row[:2]: float(row[2].replace(",", "")) for row in reversed(rows)}
    return [table[name, batch] for name, batch, _ in ROWS]


def draw() -> None:
    """Write the chart."""
    matplotlib.use("svg")
    matplotlib.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "h100",
        "font.family": "sans-serif",
        "font.size": 11,
    }
    from matplotlib import pyplot

    values = rates()
    figure, axes = pyplot.subplots(figsize=(8, 2.5))
    names = [label for *_, label in ROWS]
    axes.barh(names, values, color=["#0969da", "#afb8c1", "#afb8c1"], height=0.62)
    unpadded = values[-1] * UNPADDING
    axes.barh(names[:1], [unpadded], color="#54aeff", height=0.62)
    axes.text(unpadded / 2, 0, f"{UNPADDING} x: no padding", ha="center", va="center", fontsize=10)
    axes.text((unpadded + values[0]) / 2, 0, f"{values[0] / unpadded:.2f} x: rest", ha="center", va="center", color="w")
    for place, value in enumerate(values):
        ratio = f" {value:.0f}" + (f" ({value / values[-1]:.2f} x)" if place < len(values) - 1 else "")
        axes.text(value + 6, place, ratio, va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, values[0] * 1.18)
    axes.set_xlabel("samples/s; BERT-large, one H100, batch 64, 512 columns, mean length 254")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "images/h100.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    draw()
