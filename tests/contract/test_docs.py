"""The documentation names everything a user can run, and its links lead somewhere."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

import pytest
from support.commands import parses

from analysis.metrics.throughput import summarize
from common.errors import Code
from records.trial import Trial

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^ *```(?:bash|sh)?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[\s;(])(bertbench [a-z-]+ [^#;]+?)(?:\s+#.*|;.*|\|\|.*|&&.*|\|.*)?$")


def reference() -> str:
    pages = [ROOT / "docs" / "reference" / "commands.md", ROOT / "README.md"]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages if page.is_file())


def missing_words(words: list[str], text: str) -> list[str]:
    """The `words` that `text` does not hold as whole words."""
    return [word for word in words if not re.search(rf"(?<![\w/-]){re.escape(word)}(?![\w-])", text)]


def scripts() -> list[str]:
    folders = (ROOT, *(ROOT / name for name in ("bench", "bert", "profiling")))
    found = {path for folder in folders for path in (folder.glob("*.sh") if folder == ROOT else folder.rglob("*.sh"))}
    return sorted({str(path.relative_to(ROOT)) for path in found})


def pages() -> list[Path]:
    top = [*ROOT.glob("*.md"), *(ROOT / "docker").glob("*.md"), *(ROOT / "profiling").glob("*.md")]
    return sorted([*top, *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """The anchors GitHub makes of a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+\s+(.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            yield f"{page.name}: {target} does not exist"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{page.name}: {target} has no such heading"


def test_every_command_is_documented() -> None:
    from bench.cli.dispatch import COMMANDS

    assert COMMANDS
    assert missing_words([f"bertbench {name}" for name in COMMANDS], reference()) == []


def test_every_file_of_the_image_is_described() -> None:
    text = (ROOT / "docker/README.md").read_text(encoding="utf-8")
    names = [path.name for path in (ROOT / "docker").iterdir() if path.name not in ("README.md", "__pycache__")]
    assert "Dockerfile" in names
    assert [name for name in names if f"`{name}" not in text] == []


def test_every_script_is_documented() -> None:
    names = scripts()
    assert {"build_image.sh", "start_container.sh"} <= set(names)
    assert missing_words(names, reference()) == []


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages()])
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    assert list(broken_links(ROOT / page)) == []


def commands(page: Path) -> list[str]:
    """The commands of the suite in a page's code blocks."""
    lines = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ").splitlines()
    found = [match[1] for line in lines if (match := COMMAND.search(line))]
    return [one for one in found if "my_bert:" not in one]  # a module that tests/contract/test_own_implementation makes


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages() if page.parent.name != "reference"])
def test_commands_of_a_page_parse(page: str) -> None:
    for command in commands(ROOT / page):
        parses(re.sub("<[^>]*>", "FOLDER", command))


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))
    }
    assert [
        str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md")) if page not in {*linked, index}
    ] == []


def example_result() -> dict[str, Any]:
    """What the suite makes of the example table in docs/explanation/measurement.md."""
    page = (ROOT / "docs" / "explanation" / "measurement.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (\d) \| (\d+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert [int(row[0]) for row in table] == list(range(7))
    assert [max(int(row[1]), int(row[2])) for row in table] == [int(row[3]) for row in table]
    counts = {"samples": 4, "real_tokens": 400, "padded_tokens": 512, "model_flops": example_flops() / 2}
    steps = {
        rank: [{"step": int(row[0]), "start_ns": 0, "step_time_ms": float(row[1 + rank]), **counts} for row in table]
        for rank in (0, 1)
    }
    peaks = ((180e9, 200e9), (190e9, 185e9))
    ranks = {
        rank: {"measured_peak": {"before": before, "after": after, "dtype": "float32", "shape": [1024] * 3}}
        for rank, (before, after) in enumerate(peaks)
    }
    trial = Trial(preset="mini", micro_batch_size=4, world_size=2, start_iteration=2, stop_iteration=7)
    return summarize(trial, steps, ranks, {}, price_per_hour=2.5)


def example_flops() -> float:
    from bert.data.batch import BatchCounts
    from bert.model.config import preset
    from bert.tasks import make_task

    counts = BatchCounts(
        samples=8, real_tokens=800, padded_tokens=1024, predicted_positions=120, squared_lengths=8 * 100**2
    )
    return make_task("pretrain").step(preset("mini")).model_flops(counts)


def test_the_worked_example_is_what_the_suite_computes() -> None:
    page = " ".join((ROOT / "docs" / "explanation" / "measurement.md").read_text(encoding="utf-8").split())
    result = example_result()
    stated = [
        f"Median {result['step_time_ms']:.0f} ms.",
        f"= {result['step_time_ms_mean']:.0f} ms: one disturbed",
        f"{result['step_time_ms_p5']:.1f} ms; p95",
        f"= {result['step_time_ms_p95']:.1f} ms.",
        f"= {result['step_time_ms_std']:.1f} ms.",
        f"= {result['samples_per_second']:.1f} samples/s.",
        f"= {result['tokens_per_second']:.0f} tokens/s.",
        f"= {result['padded_tokens_per_second']:.0f} padded tokens/s.",
        f"Padding efficiency 800 / 1024 = {result['padding_efficiency']:.3f}.",
        f"104 / 100 - 1 = {result['rank_skew']:.2f}: below",
        f"| together | | {example_flops() / 1e9:.3f} |",
        f"that is {result['model_flops_per_second'] / 1e9:.1f} GFLOP/s.",
        f"= {result['measured_peak_flops'] / 1e9:.0f} GFLOP/s, and MFU",
        f"/ 390 = {result['mfu']:.3f}.",
        f"x 1,000,000 = {result['cost_per_million_samples']:.2f}.",
    ]
    assert [text for text in stated if text not in page] == []
    assert (result["steps_warmup"], result["steps_measured"]) == (2, 5)
    assert [row["straggler"] for row in result["per_rank"]] == [False, False]


def test_checkers_catch(tmp_path: Path) -> None:
    assert missing_words(["make test", "make test-slow", "bench/a.sh"], "run make test-slow and other-bench/a.sh") == [
        "make test",
        "bench/a.sh",
    ]
    page = tmp_path / "page.md"
    page.write_text("# A title, here\n[a](b.md) [c](#a-title-here) [d](#e) [f](https://g)\n```\n[h](i)\n```\n", "utf-8")
    assert list(broken_links(page)) == ["page.md: b.md does not exist", "page.md: #e has no such heading"]


def test_the_reference_is_what_the_code_says() -> None:
    found = runpy.run_path(str(ROOT / "docs/reference/write.py"))["pages"]()
    assert {path.name for path in found} == {"commands.md", "columns.md"}
    for path, text in found.items():
        assert path.read_text(encoding="utf-8") == text, "run `make docs`"


def test_the_page_of_error_codes_names_every_code_and_its_meaning() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", text, re.MULTILINE))
    assert [*rows] == [*get_args(Code)] and len(rows) > 50
