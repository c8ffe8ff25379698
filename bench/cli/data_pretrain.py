"""`bertbench data pretrain`: dumps and text to HDF5 shards."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bench.cli.options import in_plural, parse, plain_words
from bench.cli.progress import show_stages
from bert.tasks.pretrain.config import PrepareConfig
from common.redact import terminal_text

if TYPE_CHECKING:
    from bert.tasks.pretrain.summary import LengthSummary, PrepareSummary, StageSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPretrainOptions:
    """Turn dumps and text into HDF5 shards of pretraining instances; a call with the same options continues."""

    prepare: Annotated[PrepareConfig, tyro.conf.arg(name="")]
    json: bool = False
    """Print the summary as JSON."""


OPTIONS = {"data pretrain": DataPretrainOptions}
_LISTS = {"--seq-len": "--seq-lens", "--stage": "--stages"}


def main(argv: list[str]) -> int:
    """Run the command; 0 when what was asked for is complete."""
    options = parse(DataPretrainOptions, in_plural(plain_words(argv), _LISTS), "bertbench data pretrain")
    from bert.tasks.pretrain.prepare import prepare

    _show_terms(options.prepare)
    summary = prepare(options.prepare, show_stages())
    if options.json:
        print(json.dumps(summary.to_json(), indent=2))
    else:
        _show(summary)
    return 0


def _show_terms(config: PrepareConfig) -> None:
    """Show the terms of what will be downloaded, before anything is."""
    if not config.download or not {"download", "extract", "clean"} & set(config.stages):
        return
    from bench.cli.data_download import show_terms
    from bert.data.remote.obtain import named

    for name in config.download:
        show_terms(named(name))


def _show(summary: "PrepareSummary") -> None:
    for stage in summary.stages:
        print(f"{stage.stage:<11} {_stage_line(stage)}")
    if summary.documents is not None:
        print(f"{'documents':<11} {summary.documents:,}")
    if summary.sentences is not None:
        print(f"{'sentences':<11} {summary.sentences:,}")
    if summary.vocab_size is not None:
        trained = "trained on this text" if summary.vocab_trained else "given"
        print(f"{'vocabulary':<11} {summary.vocab_size:,} word pieces, {trained}: {summary.vocab_path}")
    for length in summary.lengths:
        _show_length(length)
    for note in summary.notes:
        print(f"note: {terminal_text(note)}", file=sys.stderr)


def _stage_line(stage: "StageSummary") -> str:
    if stage.kept:
        return f"finished before, {stage.files:,} file(s): {stage.folder}"
    state = "" if stage.complete else ", other parts are not finished"
    return f"{stage.seconds:.1f} s, {stage.files:,} file(s){state}: {stage.folder}"


def _show_length(length: "LengthSummary") -> None:
    kept = f", {length.shards_kept} of them finished before" if length.shards_kept else ""
    print(
        f"{'instances':<11} {length.training_instances:,} training + {length.test_instances:,} test, "
        f"{length.seq_len} tokens, up to {length.max_predictions} predictions"
    )
    if length.padding_efficiency is not None:
        print(f"{'real tokens':<11} {length.padding_efficiency:.1%} of all, the rest is padding")
    print(f"{'shards':<11} {length.shards}{kept}")
    print(f"{'folder':<11} {Path(length.folder)}")
