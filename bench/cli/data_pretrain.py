"""`bertbench data pretrain`: convert dumps and text to HDF5 shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result
from bert.tasks.pretrain.config import PrepareConfig

if TYPE_CHECKING:
    from bert.tasks.pretrain.summary import LengthSummary, PrepareSummary, StageSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPretrainOptions(Printed):
    """Convert Wikipedia dumps and text to HDF5 shards of pretraining instances. The same command resumes.

    Examples:
        bertbench data pretrain --generate 1000000 --output runs/pretrain-data  # from 1 MB of synthetic text
        bertbench data pretrain --input downloads/wikipedia --output data --seq-lens 128 512 --workers 8
    """

    prepare: PrepareConfig


OPTIONS = {"data pretrain": DataPretrainOptions}


def run(options: DataPretrainOptions) -> Result:
    """Prepare the data."""
    from analysis.render.tables import Facts
    from bert.tasks.pretrain.prepare import prepare

    _show_terms(options.prepare)
    summary = prepare(options.prepare, show_stages())
    rows = list(_rows(summary))
    return Result(document=summary.to_json(), blocks=[Facts(rows)] if rows else [], notes=summary.notes)


def _show_terms(config: PrepareConfig) -> None:
    if not config.download or not {"download", "extract", "clean"} & set(config.stages):
        return
    from bench.cli.data_download import show_terms
    from bert.data.remote.obtain import named

    for name in config.download:
        show_terms(named(name))


def _rows(summary: "PrepareSummary") -> Iterator[tuple[str, str]]:
    for stage in summary.stages:
        yield stage.stage, _stage_line(stage)
    if summary.documents is not None:
        yield "documents", f"{summary.documents:,}"
    if summary.sentences is not None:
        yield "sentences", f"{summary.sentences:,}"
    if summary.vocab_size is not None:
        trained = "trained on this text" if summary.vocab_trained else "given"
        yield "vocabulary", f"{summary.vocab_size:,} word pieces, {trained}: {summary.vocab_path}"
    for length in summary.lengths:
        yield from _length_rows(length)


def _stage_line(stage: "StageSummary") -> str:
    if stage.kept:
        return f"already complete, {stage.files:,} file(s): {stage.folder}"
    state = "" if stage.complete else ", other parts are unfinished"
    return f"{stage.seconds:.1f} s, {stage.files:,} file(s){state}: {stage.folder}"


def _length_rows(length: "LengthSummary") -> Iterator[tuple[str, str]]:
    kept = f", {length.shards_kept} already complete" if length.shards_kept else ""
    yield (
        "instances",
        f"{length.training_instances:,} training + {length.test_instances:,} test, {length.seq_len} tokens, up to "
        f"{length.max_predictions} predictions",
    )
    if length.padding_efficiency is not None:
        yield "real tokens", f"{100 * length.padding_efficiency:.1f} %, the rest is padding"
    yield "shards", f"{length.shards}{kept}"
    yield "folder", str(length.folder)
