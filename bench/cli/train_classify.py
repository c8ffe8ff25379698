"""`bertbench train classify FILE`: prepare the texts of a CSV, train on them, and write results beside the file."""

import dataclasses
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import partial
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
from common.scores import in_words
from records.training import TrainRun

if TYPE_CHECKING:
    from bert.tasks.classify.summary import CsvSummary

_OUT = Path("runs/classify-NAME")
_FORM_OPTIONS = tuple(item.name for item in dataclasses.fields(CsvForm))
_OWN_OPTIONS = (*_FORM_OPTIONS, "lower_case", "validation", "test")
_DATA_OPTIONS = (*_OWN_OPTIONS, "vocab", "seq_len")
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
        """Prepare the database and return the options to train with, as prepare_data does."""
        return prepare_data(self, given_names(argv))

    def leave(self, run: TrainRun, plan: Plan, devices: Devices) -> list[tuple[str, str]]:
        """Write the results of a finished run as bench.classify.leave_results does; return the facts to report."""
        return leave(self, run, plan, devices)


def prepare_data(options: TrainClassifyOptions, given_options: Set[str]) -> TrainClassifyOptions:
    """Make the database of a CSV, or check an existing one; return the options to train with.

    This check fails now rather than at the end of the training, when the results are written to the database.

    Args:
        options: options of the command.
        given_options: names of the options that were given; the others keep the values of an existing database.
    """
    given = options.data or options.file
    if given is None:
        raise UsageError("option-missing", "train classify needs data: give FILE.csv or FILE.sqlite")
    if is_synthetic(given):
        return dataclasses.replace(options, out=_out(options, Path("synthetic")))
    from bert.tasks.classify.reading import check_file
    from bert.tasks.classify.store import check_whole, is_database

    path = Path(given)
    check_file(path)
    names = [name for name in _DATA_OPTIONS if name in given_options]
    prepare = _given_database if is_database(path) or path.suffix == SUFFIX else _prepared
    summary = prepare(options, path, names)
    source = summary.source
    check_whole(source)
    _say(options, summary)
    if not options.prep_only and not summary.sizes["test"]["texts"]:
        raise UsageError(
            "data-missing", f"{source.path} has no texts in its test split: prepare it with a larger --test"
        )
    return dataclasses.replace(
        options,
        data=str(source.path),
        file=None,
        out=_out(options, source.path),
        seq_len=options.seq_len or source.max_seq_length,
    )


def leave(options: TrainClassifyOptions, run: TrainRun, plan: Plan, devices: Devices) -> list[tuple[str, str]]:
    """Test the model of a finished run and write its results; return the facts. Raises as leave_results does."""
    if is_synthetic(plan.settings.data):
        return []
    if plan.settings.model:
        told(options, "no results are written beside the data: only models of bertbench predict, not those of --model")
        return []
    from bench.classify import leave_results

    try:
        left = leave_results(run, plan.settings, devices, options.threads, partial(told, options))
    except BertbenchError as error:
        raise type(error)(
            error.code,
            f"{error}\n  the training itself is finished: fix this and run the same command to write its results",
        ) from error
    said = ", ".join(in_words(name, value) for name, value in left.scores.items())
    return [("test", f"{said}, on {left.texts:,} texts"), *(("wrote", str(path)) for path in left.paths)]


def told(options: TrainClassifyOptions, text: str) -> None:
    """Print a note and append it to the log."""
    note(text)
    append_log(options.logfile, f"note: {text}")


def _out(options: TrainClassifyOptions, data: Path) -> Path:
    return Path("runs") / f"classify-{data.stem}" if options.out == _OUT else options.out


def _given_database(options: TrainClassifyOptions, path: Path, given: Sequence[str]) -> "CsvSummary":
    from bert.tasks.classify.store import open_source, split_sizes
    from bert.tasks.classify.summary import CsvSummary

    foreign = [flag(name) for name in given if name != "seq_len"]
    if foreign:
        raise UsageError(
            "option-not-applicable",
            f"{path} is already prepared and {', '.join(foreign)} would change it: give the CSV instead",
        )
    source = open_source(path.resolve())
    return CsvSummary(source, split_sizes(source.path), True, 0.0)


def _prepared(options: TrainClassifyOptions, path: Path, given: Sequence[str]) -> "CsvSummary":
    from bert.tasks.classify.prepare import current, prepare

    database = path.resolve().with_suffix(SUFFIX)
    found = current(path, database)
    before: dict[str, Any] = {} if found is None else dict(found.origin.get("options") or {})
    values = {name: before[name] for name in (*_OWN_OPTIONS, "max_seq_length", "seed") if name in before}
    for name in _OWN_OPTIONS:
        if name in given or name not in values:
            values[name] = getattr(options.form if name in _FORM_OPTIONS else options, name)
    if options.seq_len is not None:
        values["max_seq_length"] = options.seq_len
    vocabulary = None
    if found is not None and options.vocab is None:
        vocabulary = Vocabulary(found.vocabulary.pieces, bool(values["lower_case"]))
    vocab = options.vocab or (database if vocabulary else _vocabulary_beside(options))
    config = CsvConfig(input=path.resolve(), vocab=vocab, replace=options.replace, **values)
    summary = prepare(config, show_stages(), vocabulary)
    if found is not None and summary.kept:
        parts = ", ".join(f"{name} {values[name]:g}" for name in ("validation", "test", "seed") if name in values)
        told(options, f"reusing {database}, which was made from this CSV, with its splits: {parts}")
    return summary


def _say(options: TrainClassifyOptions, summary: "CsvSummary") -> None:
    from bert.tasks.classify.summary import notes, summary_facts

    lines = "\n".join(f"{name:<11} {printable(value)}" for name, value in summary_facts(summary))
    append_log(options.logfile, lines)
    if not options.json:
        print(lines, file=sys.stderr)
    for text in notes(summary):
        told(options, printable(text))


def _vocabulary_beside(options: TrainClassifyOptions) -> Path:
    weights = Path(options.model) if options.model else options.init
    for folder in () if weights is None else (weights, weights.parent):
        if (folder / VOCABULARY_FILE).is_file():
            return folder / VOCABULARY_FILE
    beside = "" if weights is None else f", and there is none beside {weights}"
    raise UsageError(
        "option-missing", f"texts need a vocabulary{beside}: give --vocab VOCAB.txt of the pretrained model"
    )
