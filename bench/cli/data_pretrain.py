"""`bertbench data pretrain`: convert dumps and text to HDF5 shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result
from bert.tasks.pretrain.prepare import PrepareConfig

if TYPE_CHECKING:
    from bert.tasks.pretrain.prepare import PrepareSummary


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

    summary = prepare(options.prepare, show_stages())
    return Result(document=summary.to_json(), blocks=[Facts(list(_facts(summary)))], notes=summary.notes)


def _facts(summary: "PrepareSummary") -> Iterator[tuple[str, str]]:
    for stage in summary.stages:
        state = "already complete" if stage.kept else f"{stage.seconds:.1f} s"
        yield stage.stage, f"{state}, {stage.files:,} file(s): {stage.folder}"
    yield "documents", f"{summary.documents:,}"
    yield "sentences", f"{summary.sentences:,}"
    trained = "trained on this text" if summary.vocab_trained else "given"
    yield "vocabulary", f"{summary.vocab_size:,} word pieces, {trained}: {summary.vocab_path}"
    for length in summary.lengths:
        counts = f"{length.training_instances:,} training + {length.test_instances:,} test"
        yield "instances", f"{counts}, {length.seq_len} tokens, up to {length.max_predictions} predictions"
        yield "real tokens", f"{100 * length.padding_efficiency:.1f} %, the rest is padding"
        kept = f", {length.shards_kept} already complete" if length.shards_kept else ""
        yield "shards", f"{length.shards}{kept}"
        yield "folder", str(length.folder)
