"""`bertbench train classify FILE`: prepare the texts of a CSV, train on them, and write results beside the file."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.render.terminal import printable
from bench.cli.options import given_names
from bench.cli.progress import note, show_stages
from bench.cli.train_progress import append_log
from bench.machine.devices import Devices
from bench.sweep.training import Plan, TrainOptions
from bert.data.lengths import is_synthetic
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary
from bert.tasks.classify.config import SUFFIX, CsvConfig, CsvForm
from common.errors import BertbenchError, UsageError
from common.flags import flag
from records.training import TrainRun

if TYPE_CHECKING:
    from bert.tasks.classify.summary import CsvSummary

_OUT = Path("runs/classify-NAME")
_FORM_OPTIONS = tuple(item.name for item in dataclasses.fields(CsvForm))
_OWN_OPTIONS = (*_FORM_OPTIONS, "lower_case", "validation", "test")
_SHARES: dict[str, Any] = {item.name: item.default for item in dataclasses.fields(CsvConfig)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainClassifyOptions(TrainOptions):
    """Train a text classifier on a CSV with texts and labels, or on the SQLite file that `bertbench data csv` made from
    it. The results are written beside that file. It also takes the options of `bertbench train`.

    Examples:
        bertbench train classify reviews.csv --vocab vocab.txt --preset tiny
        bertbench train classify reviews.csv --init bert-base --label category --epochs 3
    """

    out: Path = _OUT
    """Run directory; NAME is that of the file. The same command resumes it."""
    form: CsvForm = field(default_factory=CsvForm)
    vocab: Path | None = None
    """BERT vocab.txt; default the one beside --init or --model."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    validation: float = _SHARES["validation"]
    """Fraction of the texts for evaluation during training."""
    test: float = _SHARES["test"]
    """Fraction of the texts for the final test."""
    logfile: Path | None = None
    """File to append progress, evaluations and results to, with timestamps; default no file."""
    prep_only: bool = False
    """Prepare the data and stop."""
    replace: bool = False
    """Rebuild the database even if it was made from another CSV or contains results of trainings."""

    def prepared(self, argv: Sequence[str]) -> "TrainClassifyOptions":
        """Make the database of a CSV, or check an existing one; return the options to train with.

        Args:
            argv: the command line; options that are not on it keep the values of an existing database.
        """
        given = self.data or self.file
        if given is None:
            raise UsageError("option-missing", "train classify needs data: give FILE.csv or FILE.sqlite")
        if is_synthetic(given):
            return dataclasses.replace(self, out=self._out("synthetic"))
        from bert.tasks.classify.reading import check_file
        from bert.tasks.classify.store import check_whole, is_database
        from bert.tasks.classify.summary import notes, summary_facts

        path = Path(given)
        check_file(path)
        names = [name for name in (*_OWN_OPTIONS, "vocab") if name in given_names(argv)]
        is_prepared = is_database(path) or path.suffix == SUFFIX
        summary = self._opened(path, names) if is_prepared else self._made(path, names)
        source = summary.source
        check_whole(source)  # now rather than when the results are written to it
        lines = "\n".join(f"{name:<11} {printable(value)}" for name, value in summary_facts(summary))
        append_log(self.logfile, lines)
        if not self.json:
            print(lines, file=sys.stderr)
        for text in notes(summary):
            self.note(printable(text))
        if not self.prep_only and not summary.sizes["test"]["texts"]:
            raise UsageError("data-missing", f"{source.path} has no texts in its test split: give a larger --test")
        out, seq_len = self._out(source.path.stem), self.seq_len or source.max_seq_length
        return dataclasses.replace(self, data=str(source.path), file=None, out=out, seq_len=seq_len)

    def leave(self, run: TrainRun, plan: Plan, devices: Devices) -> list[tuple[str, str]]:
        """Test the model of a finished run and write its results; return the facts to report."""
        if is_synthetic(plan.settings.data):
            return []
        if plan.settings.model:
            self.note("no results are written beside the data: only models of bertbench predict, not those of --model")
            return []
        from bench.classify import leave_results

        try:
            return leave_results(run, plan.settings, devices, self.threads, self.note)
        except BertbenchError as error:
            problem = f"{error}\n  the training itself is finished: run the same command to write its results"
            raise type(error)(error.code, problem) from error

    def note(self, text: str) -> None:
        """Print a note and append it to the log."""
        note(text)
        append_log(self.logfile, f"note: {text}")

    def _out(self, name: str) -> Path:
        return Path("runs") / f"classify-{name}" if self.out == _OUT else self.out

    def _opened(self, path: Path, given: Sequence[str]) -> "CsvSummary":
        from bert.tasks.classify.store import open_source, split_sizes
        from bert.tasks.classify.summary import CsvSummary

        if given:
            problem = f"{path} is already prepared, without {', '.join(map(flag, given))}"
            raise UsageError("option-not-applicable", f"{problem}: give the CSV instead")
        source = open_source(path.resolve())
        return CsvSummary(source, split_sizes(source.path), True, 0.0)

    def _made(self, path: Path, given: Sequence[str]) -> "CsvSummary":
        from bert.tasks.classify.prepare import current, prepare

        database = path.resolve().with_suffix(SUFFIX)
        before = current(path, database)
        saved: dict[str, Any] = {} if before is None else dict(before.origin.get("options") or {})
        values = {name: saved[name] for name in (*_OWN_OPTIONS, "max_seq_length", "seed") if name in saved}
        for name in _OWN_OPTIONS:
            if name in given or name not in values:
                values[name] = getattr(self.form if name in _FORM_OPTIONS else self, name)
        if self.seq_len is not None:
            values["max_seq_length"] = self.seq_len
        vocab, vocabulary = self.vocab, None
        if vocab is None and before is not None:
            vocab, vocabulary = database, Vocabulary(before.vocabulary.pieces, bool(values["lower_case"]))
        vocab = vocab or self._vocabulary_beside()
        config = CsvConfig(input=path.resolve(), vocab=vocab, replace=self.replace, **values)
        summary = prepare(config, show_stages(), vocabulary)
        if before is not None and summary.kept:
            parts = ", ".join(f"{name} {values[name]:g}" for name in ("validation", "test", "seed") if name in values)
            self.note(f"reusing {database}, which was made from this CSV, with its splits: {parts}")
        return summary

    def _vocabulary_beside(self) -> Path:
        weights = Path(self.model) if self.model else self.init
        for folder in () if weights is None else (weights, weights.parent):
            if (folder / VOCABULARY_FILE).is_file():
                return folder / VOCABULARY_FILE
        raise UsageError("option-missing", "texts need a vocabulary: give --vocab VOCAB.txt of the pretrained model")
