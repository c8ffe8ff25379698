"""`bertbench train classify FILE`: prepare the texts of a CSV, train on them, and write results beside the file."""

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from analysis.render.terminal import printable
from bench.cli.options import RARE
from bench.cli.progress import note, show_stages
from bench.sweep.training import TrainOptions
from bert.data.lengths import is_synthetic
from bert.data.vocabulary import VOCABULARY_FILE
from bert.tasks.classify.prepare import CsvConfig, CsvTexts
from common.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainClassifyOptions(TrainOptions):
    """Train a text classifier on a CSV with texts and labels, or on the SQLite file that `bertbench data csv` made from
    it. The results are written beside that file. It also takes the options of `bertbench train`.

    Examples:
        bertbench train classify reviews.csv --vocab vocab.txt --preset tiny
        bertbench train classify reviews.csv --init bert-base --label category --epochs 3
    """

    RARE: ClassVar = RARE | {"benchmark_task", "vary", "seeds", "until", "eval_data"}

    out: Path | None = None
    """Run directory. The same command resumes it; default runs/classify-NAME of the file."""
    texts: CsvTexts = field(default_factory=CsvTexts)
    vocab: Path | None = None
    """BERT vocab.txt; default the one beside --init or --model."""
    prep_only: bool = False
    """Prepare the data and stop."""

    def prepared(self) -> "TrainClassifyOptions":
        """Make the database of a CSV as `data csv` does, or open one; return the options to train with."""
        given = self.data or self.file
        if given is None:
            raise UsageError("option-missing", "train classify needs data: give FILE.csv or FILE.sqlite")
        if is_synthetic(given):
            return dataclasses.replace(self, out=self._out("synthetic"))
        from bert.tasks.classify.commands import facts
        from bert.tasks.classify.prepare import prepare
        from bert.tasks.classify.store import is_database, open_source, split_sizes

        path = Path(given).resolve()
        if is_database(path):
            if self.vocab is not None or self.texts != CsvTexts():
                raise UsageError("option-not-applicable", f"{path} is prepared: give options of a CSV with the CSV")
            source = open_source(path)
        else:
            given_options: dict[str, Any] = dataclasses.asdict(self.texts)
            given_options |= {} if self.seq_len is None else {"max_seq_length": self.seq_len}
            summary = prepare(CsvConfig(input=path, vocab=self._vocabulary(), **given_options), show_stages())
            lines = "\n".join(f"{name:<11} {printable(value)}" for name, value in facts(summary))
            if not self.json:
                print(lines, file=sys.stderr)
            for text in summary.notes():
                note(printable(text))
            source = summary.source
        if not self.prep_only and not split_sizes(source.path)["test"]["texts"]:
            raise UsageError("data-missing", f"{source.path} has no texts in its test split: give a larger --test")
        out, seq_len = self._out(source.path.stem), self.seq_len or source.max_seq_length
        return dataclasses.replace(self, data=str(source.path), file=None, out=out, seq_len=seq_len)

    def _out(self, name: str) -> Path:
        return self.out or Path("runs") / f"classify-{name}"

    def _vocabulary(self) -> Path:
        weights = Path(self.model) if self.model else self.init
        beside = [folder / VOCABULARY_FILE for folder in (() if weights is None else (weights, weights.parent))]
        found = self.vocab or next(filter(Path.is_file, beside), None)
        if found is None:
            raise UsageError("option-missing", "texts need a vocabulary: give --vocab VOCAB.txt of the model")
        return found
