"""The pipeline of pretraining data, stage after stage: download, extract and clean, sentences, shard, tokens, hdf5."""

from bert.corpus.files import PREPARED_PREFIXES
from bert.data.pool import Progress, Workers
from bert.data.stages import Finished
from bert.tasks.pretrain.preparation import instances, text
from bert.tasks.pretrain.preparation.config import PrepareConfig
from bert.tasks.pretrain.preparation.notes import notes_of
from bert.tasks.pretrain.preparation.runner import StageRunner
from bert.tasks.pretrain.preparation.summary import PrepareSummary
from common.atomic import remove_left_overs
from common.errors import UsageError
from common.locks import locked


def prepare(config: PrepareConfig, progress: Progress = lambda stage, done, total: None) -> PrepareSummary:
    """Run the stages of `config`; what is finished with equal settings and input is kept, the rest made.

    Raises:
        InputError: no text, a file that is none (named), a vocabulary that is none, a stage before that is unfinished.
        UsageError: fewer documents than shards, or the input lies where the shards would go.
        MissingToolError: what splits sentences does not run here.
        StorageError: the output cannot be written.
        LockedError: another preparation is writing to the output folder.
    """
    _keep_apart(config)
    shared = config.share.count > 1
    remedy = "wait for it, or give another --output"
    with locked(config.output, "another preparation", remedy, shared=shared):
        # What another part writes beside us has names of left-overs, too.
        if not shared:
            remove_left_overs(config.output)
        try:
            with Workers(config.workers) as workers:
                return _run(StageRunner(config, workers, progress))
        except BaseException:
            # A worker that was killed could not remove its own.
            for folder in {path.parent for path in config.output.rglob(".*.tmp")} if not shared else ():
                remove_left_overs(folder)
            raise


def _keep_apart(config: PrepareConfig) -> None:
    """Refuse an input that lies where the stages keep their files."""
    if config.input is None or not config.input.resolve().is_relative_to(config.output.resolve()):
        return
    parts = config.input.resolve().relative_to(config.output.resolve()).parts
    if parts and parts[0].startswith(PREPARED_PREFIXES):
        raise UsageError(
            "option-conflict",
            f"--input {config.input} lies in a folder where --output {config.output} keeps files of its own: "
            "give another --output, or move the text",
        )


def _run(runner: StageRunner) -> PrepareSummary:
    """Run what was asked for; a stage that was not asked for must be complete where a later one needs it."""
    wanted = runner.config.stages
    fetch = runner.config.download and {"download", "extract", "clean"} & set(wanted)
    downloaded = text.download(runner) if fetch else []
    texts = text.paragraphs(runner, downloaded) if {"extract", "clean"} & set(wanted) else []
    segmented = text.sentences(runner, texts) if "sentences" in wanted else None
    sharded = text.shards(runner, segmented) if "shard" in wanted else None
    if "hdf5" not in wanted:
        return _summary(runner, None)
    return _summary(runner, text.found_shards(runner.config) if sharded is None else sharded)


def _summary(runner: StageRunner, sharded: Finished | None) -> PrepareSummary:
    """Make the HDF5 shards of `sharded` and say what the whole call ended with."""
    pieces = path = None
    lengths = []
    if sharded is not None:
        pieces, path = instances.vocabulary(runner, sharded)
        files = instances.tokens(runner, sharded, pieces)
        lengths = [instances.hdf5(runner, sharded, pieces, files, length) for length in runner.config.seq_lens]
    counts = {stage.stage: stage.counts for stage in runner.stages}
    text_counts = next((counts[stage] for stage in ("shard", "sentences") if counts.get(stage)), {})
    return PrepareSummary(
        dataset=runner.config.dataset_name,
        stages=tuple(runner.stages),
        lengths=tuple(lengths),
        documents=text_counts.get("documents"),
        sentences=text_counts.get("sentences"),
        vocab_size=None if pieces is None else len(pieces.pieces),
        vocab_path=path,
        vocab_trained=pieces is not None and runner.config.vocab is None,
        notes=tuple(notes_of(runner.stages, runner.replaced, pieces, runner.changed)),
    )
