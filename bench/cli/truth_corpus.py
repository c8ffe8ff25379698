"""`bertbench truth-corpus FOLDER`: write recordings with known answers, or score the answers of a tool."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from bench.cli.options import Printed
from bench.cli.result import Result
from common.errors import UsageError

_MOST_ROWS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class TruthCorpusOptions(Printed):
    """Write the truth corpus: synthetic recordings of the PyTorch profiler, Nsight Systems and Nsight Compute, and
    manifest.json with the numbers that are known because of how the recordings are made. With --score, compare a tool's
    answers with the numbers of a written corpus instead.

    Examples:
        bertbench truth-corpus corpus
        bertbench truth-corpus corpus --score answers.json  # right, wrong and unanswered facts
    """

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder to write, new or empty; with --score that of the corpus."""
    seed: int = 0
    """Seed of the recordings: the same seed gives the same files."""
    score: Path | None = None
    """JSON file with a tool's answers: {"tool": NAME, "answers": {ID: NUMBER, ...}}; default write a corpus."""

    def __post_init__(self) -> None:
        """Refuse a negative seed, which would give the recordings of the positive one, and one that has no effect."""
        if self.seed and self.score is not None:
            raise UsageError(
                "option-conflict", f"--seed {self.seed} has no effect with --score: a written corpus has its seed"
            )
        if self.seed < 0:
            raise UsageError("option-value", f"--seed {self.seed} is negative: give an integer from 0")


OPTIONS = {"truth-corpus FOLDER": TruthCorpusOptions}


def run(options: TruthCorpusOptions) -> Result:
    """Write the corpus, or score the answers."""
    if options.score is not None:
        return _scored(options.folder, options.score)
    from bench.truth.corpus import MANIFEST, write_corpus

    manifest = write_corpus(options.folder, options.seed)
    recordings = {name: recording["format"] for name, recording in manifest["recordings"].items()}
    document = {"path": str(options.folder), "seed": options.seed, "recordings": recordings,
                "facts": len(manifest["facts"])}  # fmt: skip
    said = f"{len(recordings)} recordings with {len(manifest['facts'])} known numbers (seed {options.seed})"
    return Result(document=document, blocks=[said], written=[options.folder / MANIFEST])


def _scored(folder: Path, answers: Path) -> Result:
    from analysis.render.tables import build, measured, plain
    from bench.truth.score import RIGHT, UNANSWERED, WRONG, score

    found = score(folder, answers)
    kinds: list[dict[str, Any]] = [*found["kinds"], {"kind": "all", **found["total"]}]
    counts = [measured(name, name, str) for name in ("facts", RIGHT, WRONG, UNANSWERED)]
    blocks = [build("score", [plain("kind", "kind"), *counts], kinds, f"Score of {found['tool']}")]
    wrong = [row for row in found["facts"] if row["verdict"] == WRONG]
    if wrong:
        columns = [plain("fact", "id"), plain("unit", "unit")]
        columns += [measured(name, name) for name in ("truth", "answer", "error")]
        columns.append(measured("relative", "relative_error", _percent))
        title = f"Wrong: {len(wrong)}" + f", the first {_MOST_ROWS}; --json has all" * (len(wrong) > _MOST_ROWS)
        blocks.append(build("wrong", columns, wrong[:_MOST_ROWS], title))
    return Result(document=found, blocks=blocks)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.2f} %"
