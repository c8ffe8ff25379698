"""`bertbench data pretrain`: convert dumps and text to HDF5 shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result
from bert.tasks.pretrain.config import PrepareConfig

if TYPE_CHECKING:
    from bert.tasks.pretrain.summary import PrepareSummary


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
    from bench.cli.data_download import show_terms
    from bert.tasks.pretrain.prepare import prepare

    config = options.prepare
    show_terms(config.download)
    summary = prepare(config, show_stages())
    facts = list(_facts(summary))
    return Result(document=summary.to_json(), blocks=[Facts(facts)] if facts else [], notes=summary.notes)


def _facts(summary: "PrepareSummary") -> Iterator[tuple[str, str]]:
    for stage in summary.stages:
        state = "already complete" if stage.kept else f"{stage.seconds:.1f} s"
        others = "" if stage.kept or stage.complete else ", other parts are unfinished"
        yield stage.stage, f"{state}, {stage.files:,} file(s){others}: {stage.folder}"
    for name, count in (("documents", summary.documents), ("sentences", summary.sentences)):
        if count is not None:
            yield name, f"{count:,}"
    if summary.vocab_size is not None:
        trained = "trained on this text" if summary.vocab_trained else "given"
        yield "vocabulary", f"{summary.vocab_size:,} word pieces, {trained}: {summary.vocab_path}"
    for length in summary.lengths:
        counts = f"{length.training_instances:,} training + {length.test_instances:,} test"
        yield "instances", f"{counts}, {length.seq_len} tokens, up to {length.max_predictions} predictions"
        if length.padding_efficiency is not None:
            yield "real tokens", f"{100 * length.padding_efficiency:.1f} %, the rest is padding"
        yield "shards", f"{length.shards}, {length.shards_kept} of them already complete"
        yield "folder", str(length.folder)
