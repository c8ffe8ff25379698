"""The pipeline of pretraining data, stage after stage: download, extract and clean, sentences, shard, tokens, hdf5."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bert.corpus.files import PREPARED_PREFIXES, Source, find_inputs, identify, is_dump
from bert.data.pool import Progress, Workers
from bert.data.stages import (
    MANIFEST_FILE,
    Counts,
    Finished,
    StageFolder,
    clear_stage,
    fingerprint_of,
    read_finished,
    recorded_counts,
)
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary, sample_lines, train_vocabulary
from bert.tasks.pretrain.config import PrepareConfig
from bert.tasks.pretrain.shards import METADATA_FILE
from bert.tasks.pretrain.summary import LengthSummary, PrepareSummary, StageSummary, notes_of
from common.atomic import remove_left_overs, write_json
from common.errors import InputError, UsageError
from common.locks import locked

Make = Callable[[StageFolder], Finished | None]
"""Makes the files of a stage that are not done; None while other parts are at work."""


class StageRunner:
    """One call of the pipeline: what it was asked for, and what its stages ended with."""

    def __init__(self, config: PrepareConfig, workers: Workers, progress: Progress) -> None:
        self.config = config
        self.workers = workers
        self.progress = progress
        self.stages: list[StageSummary] = []
        self.replaced = 0
        self.changed: list[Path] = []

    def run(
        self,
        stage: str,
        version: int,
        path: Path,
        settings: dict[str, Any],
        source: str,
        make: Make,
        companions: Sequence[str] = (),
    ) -> Finished | None:
        """Run a stage, or keep what it made before.

        Args:
            stage: its name.
            version: of its code; files of another version are made again.
            path: its folder.
            settings: what its bytes depend on, beside the input.
            source: fingerprint of the input.
            make: called where the stage is not complete.
            companions: names of files beside the stage's own that `make` writes.

        Returns:
            The stage; None where other parts of it (`--part`) are not finished.

        Raises:
            UsageError: other parts are not finished, and this call was to continue with the next stage.
        """
        began = time.perf_counter()
        folder = StageFolder(path, stage, version, settings, source, companions)
        done = folder.finished()
        # Shards are looked at each time: one may be damaged where it lies.
        kept = done is not None and stage != "hdf5"
        if not kept:
            with locked(path, "another part that begins", "run it again", wait=True):
                self.replaced += folder.begin(alone=self.config.share.count == 1)
            self.changed += folder.changed
            done = make(folder)
        files = _files(path, companions) if done is None else len(done.files)
        counts = None if done is None else done.counts
        self.add(stage, path, files, began, kept=kept, complete=done is not None, counts=counts)
        if done is None and self.config.share.count == 1:
            raise UsageError("data-unprepared", f"the stage {stage} did not finish in {path}: run it again")
        return done

    def add(
        self, stage: str, path: Path, files: int, began: float, *, kept: bool, complete: bool, counts: Counts | None
    ) -> None:
        """Note what a stage ended with; `began` is a time.perf_counter()."""
        self.stages.append(
            StageSummary(
                stage=stage,
                folder=path,
                files=files,
                kept=kept,
                complete=complete,
                seconds=time.perf_counter() - began,
                counts={} if counts is None else dict(counts.numbers),
                examples={} if counts is None else dict(counts.names),
            )
        )


def _files(path: Path, companions: Sequence[str]) -> int:
    return sum(
        file.is_file() and file.name[0] != "." and file.name not in (MANIFEST_FILE, *companions)
        for file in path.iterdir()
    )


def prepare(config: PrepareConfig, progress: Progress = lambda stage, done, total: None) -> PrepareSummary:
    """Run the stages of `config`; what is finished with equal settings and input is kept, the rest made.

    Raises:
        InputError: no text, a file that is none (named), a vocabulary that is none, a stage before that is unfinished.
        UsageError: fewer documents than shards, or the input lies where the shards would go.
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
    if config.input is None or not config.input.resolve().is_relative_to(config.output.resolve()):
        return
    parts = config.input.resolve().relative_to(config.output.resolve()).parts
    if parts and parts[0].startswith(PREPARED_PREFIXES):
        raise UsageError(
            "option-conflict", f"--input {config.input} is inside --output {config.output}: give another --output"
        )


def _run(runner: StageRunner) -> PrepareSummary:
    """Run what was asked for; a stage that was not asked for must be complete where a later one needs it."""
    wanted = runner.config.stages
    fetch = runner.config.download and {"download", "extract", "clean"} & set(wanted)
    downloaded = _download(runner) if fetch else []
    texts = _paragraphs(runner, downloaded) if {"extract", "clean"} & set(wanted) else []
    segmented = _sentences(runner, texts) if "sentences" in wanted else None
    sharded = _shards(runner, segmented) if "shard" in wanted else None
    if "hdf5" not in wanted:
        return _summary(runner, None)
    return _summary(runner, _found_shards(runner.config) if sharded is None else sharded)


def _summary(runner: StageRunner, sharded: Finished | None) -> PrepareSummary:
    """Make the HDF5 shards of `sharded` and say what the whole call ended with."""
    pieces = path = None
    lengths = []
    if sharded is not None:
        pieces, path = _vocabulary(runner, sharded)
        files = _tokens(runner, sharded, pieces)
        lengths = [_hdf5(runner, sharded, pieces, files, length) for length in runner.config.seq_lens]
    counts = {stage.stage: stage.counts for stage in runner.stages}
    idle = [] if runner.stages else [_NOTHING_TO_DO[stage] for stage in runner.config.stages]
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
        notes=(*idle, *notes_of(runner.stages, runner.replaced, pieces, runner.changed)),
    )


# Only these stages may have no input; one of them is then all that was asked for.
_NOTHING_TO_DO = {
    "extract": "nothing to extract: the input holds no dumps; .txt files need no extraction, start with --stages clean",
    "clean": "nothing to clean: the input holds no .txt files; run --stages extract, then --stages sentences",
}
DOWNLOAD_FOLDER = "download"
_DIGESTS_FILE = ".inputs.json"


def _download(runner: StageRunner) -> list[Path]:
    """Fetch what `--download` names, or find it where an earlier call put it; return its files."""
    from bert.data.remote.obtain import RemoteOptions, obtain

    config, began = runner.config, time.perf_counter()
    options = RemoteOptions(
        language=config.language, date=config.date, books_limit=config.books_limit, mirror=config.mirror or ""
    )
    folder = config.output / DOWNLOAD_FOLDER
    files = [path for name in config.download for path in obtain(name, folder, options, runner.progress).files]
    if "download" in config.stages:
        runner.add("download", folder, len(files), began, kept=False, complete=True, counts=None)
    return files


def _paragraphs(runner: StageRunner, downloaded: Sequence[Path]) -> list[Finished]:
    """Run extract and clean on the input and what was downloaded, each where it is wanted and has something to do."""
    config = runner.config
    dumps, texts = _inputs(config, downloaded)
    ended: list[Finished] = []
    for stage, sources in (("extract", dumps), ("clean", texts)):
        path = config.stage_folder(stage)
        if not sources:
            if stage in config.stages:  # what an earlier call made of other input is not a part of this one
                clear_stage(path, (MANIFEST_FILE,))
        elif stage in config.stages:
            content = fingerprint_of([[source.name, source.digest] for source in sources])
            version, settings, make = _extract(runner, sources) if stage == "extract" else _clean(runner, sources)
            done = runner.run(stage, version, path, settings, content, make)
            ended += [done] if done is not None else []
        elif "sentences" in config.stages:
            ended.append(read_finished(path, stage))
    if "sentences" in config.stages and not any(done.counts.get("documents") for done in ended):
        raise InputError(
            "data-missing", f"the {len(dumps) + len(texts)} input file(s) hold no text: give some with text"
        )
    return ended


def _inputs(config: PrepareConfig, downloaded: Sequence[Path]) -> tuple[list[Source], list[Source]]:
    memory = config.output / _DIGESTS_FILE
    remote = config.output / DOWNLOAD_FOLDER
    dumps = identify([path for path in downloaded if is_dump(path)], remote, memory)
    texts = identify([path for path in downloaded if not is_dump(path)], remote, memory)
    folder = config.input
    if config.generate is not None:
        from bert.corpus.generated import generate_corpus

        folder = config.output / "text"
        generate_corpus(folder, config.seed, config.generate)
    if folder is not None:
        found = find_inputs(folder)
        dumps += identify(found.dumps, folder, memory)
        texts += identify(found.texts, folder, memory)
    return dumps, texts


def _extract(runner: StageRunner, sources: Sequence[Source]) -> tuple[int, dict[str, Any], Make]:
    from bert.corpus.extract import VERSION, extract

    keep = runner.config.keep_truncated  # no setting: the parts of a dump are the same with and without its end
    return (
        VERSION,
        {"parser": version("mwparserfromhell")},
        lambda folder: extract(
            sources, folder, runner.workers, runner.config.share, runner.progress, keep_truncated=keep
        ),
    )


def _clean(runner: StageRunner, sources: Sequence[Source]) -> tuple[int, dict[str, Any], Make]:
    from bert.corpus.clean import VERSION, clean

    return VERSION, {}, lambda folder: clean(sources, folder, runner.workers, runner.config.share, runner.progress)


def _sentences(runner: StageRunner, texts: Sequence[Finished]) -> Finished | None:
    """Run the stage sentences on the results of extract and clean; with none given, on those an earlier call made."""
    from bert.corpus.sentences import VERSION, segment, splitter_settings

    config = runner.config
    if not texts:
        folders = [(config.stage_folder(stage), stage) for stage in ("extract", "clean")]
        texts = [read_finished(path, stage) for path, stage in folders if path.is_dir()]
        if not texts:
            read_finished(*folders[0])  # says which stage to run
    parts = [part for done in texts for part in done.files]
    content = fingerprint_of([done.fingerprint for done in texts])
    return runner.run(
        "sentences",
        VERSION,
        config.stage_folder("sentences"),
        splitter_settings(),
        content,
        lambda folder: segment(parts, folder, runner.workers, config.share, runner.progress),
    )


def _shards(runner: StageRunner, segmented: Finished | None) -> Finished | None:
    """Run the stage shard on sentences; with None given, on those an earlier call made."""
    from bert.corpus.sharding import VERSION, ShardPlan, automatic_shards, check_documents, shard

    config = runner.config
    if segmented is None:
        segmented = read_finished(config.stage_folder("sentences"), "sentences")
    parts = segmented.files
    count = config.shards or automatic_shards(sum(path.stat().st_size for path in parts))
    plan = ShardPlan(
        training=count, test=config.test_shards(count), test_fraction=config.test_fraction, seed=config.seed
    )
    check_documents(segmented.counts.get("documents"), plan)
    return runner.run(
        "shard",
        VERSION,
        config.sharded_folder(count),
        {**dataclasses.asdict(plan), "dataset": config.dataset_name},
        segmented.fingerprint,
        lambda folder: shard(parts, folder, config.dataset_name, plan, runner.progress),
    )


def _found_shards(config: PrepareConfig) -> Finished:
    if config.shards is not None:
        return read_finished(config.sharded_folder(config.shards), "shard")
    found = sorted(config.output.glob(f"sharded_training_shards_*_fraction_{config.test_fraction:g}"))
    found = [path / config.dataset_name for path in found if (path / config.dataset_name).is_dir()]
    if len(found) > 1:
        names = ", ".join(path.parent.name for path in found)
        raise UsageError("data-ambiguous", f"{config.output} holds several shard counts ({names}): give --shards")
    return read_finished(found[0] if found else config.sharded_folder(0).parent / config.dataset_name, "shard")


VOCABULARY_BYTES = 64 * 2**20
"""A vocabulary is trained on at most this much text, taken evenly from the corpus."""


def _vocabulary(runner: StageRunner, sharded: Finished) -> tuple[Vocabulary, Path]:
    """Return the given vocabulary, the one trained before on the same text, or a new one, and where it is."""
    config = runner.config
    if config.vocab is not None:
        return load_vocabulary(config.vocab, config.lower_case), config.vocab
    key = fingerprint_of(sharded.fingerprint, config.vocab_size, config.lower_case)
    path = config.stage_folder("tokens").parent / f"{config.dataset_name}-{key[:12]}.vocab"
    if not path.is_file():
        runner.progress("training the vocabulary", 0, 1)
        train_vocabulary(sample_lines(sharded.files, VOCABULARY_BYTES), config.vocab_size, config.lower_case).save(path)
        runner.progress("training the vocabulary", 1, 1)
    return load_vocabulary(path, config.lower_case), path


def _tokens(runner: StageRunner, sharded: Finished, pieces: Vocabulary) -> list[Path]:
    """Run the stage tokens; return its files, of which a part (`--part`) has made its own."""
    from bert.tasks.pretrain.tokens import SUFFIX, VERSION, tokenize

    config = runner.config
    path = config.stage_folder("tokens")
    runner.run(
        "tokens",
        VERSION,
        path,
        {"vocabulary": pieces.fingerprint},
        sharded.fingerprint,
        lambda folder: tokenize(sharded.files, folder, pieces, runner.workers, config.share, runner.progress),
    )
    return [path / f"{shard.stem}{SUFFIX}" for shard in sharded.files]


def _hdf5(runner: StageRunner, sharded: Finished, pieces: Vocabulary, files: list[Path], seq_len: int) -> LengthSummary:
    """Run the stage hdf5 for one sequence length, with vocabulary and metadata beside the shards."""
    from bert.tasks.pretrain.hdf5 import SUFFIX, VERSION, is_whole, make_shards

    config = runner.config
    path, wanted = config.hdf5_folder(seq_len), config.instances(seq_len)
    settings = {
        **dataclasses.asdict(wanted),
        "length_bins": config.length_bins,
        "gzip_level": config.gzip_level,
        "vocabulary": pieces.fingerprint,
    }
    names = [f"{file.stem}{SUFFIX}" for file in files]
    kept: list[str] = []

    def make(folder: StageFolder) -> Finished | None:
        kept.extend(name for name in names if is_whole(folder, name))
        pieces.save(path / VOCABULARY_FILE)
        begun = _metadata(config, seq_len, pieces, folder, names)
        if len(kept) < len(names):
            write_json(path / METADATA_FILE, begun)
        bins, level = config.length_bins, config.gzip_level
        done = make_shards(
            files, folder, pieces, wanted, runner.workers, config.share, runner.progress, bins, gzip_level=level
        )
        if done is not None:
            samples = {name: _instances(folder.recorded(name)) for name in names}
            write_json(path / METADATA_FILE, {**begun, "samples": samples, "complete": True})
        return done

    runner.run("hdf5", VERSION, path, settings, sharded.fingerprint, make, companions=(METADATA_FILE, VOCABULARY_FILE))
    return _length_of(config, seq_len, path, names, kept)


def _metadata(
    config: PrepareConfig, seq_len: int, pieces: Vocabulary, folder: StageFolder, names: list[str]
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "vocab_size": len(pieces.pieces),
        "vocab": pieces.fingerprint,
        "vocab_trained": config.vocab_size if config.vocab is None else None,
        "lower_case": config.lower_case,
        "instances": dataclasses.asdict(config.instances(seq_len)),
        "length_bins": config.length_bins,
        "test_fraction": config.test_fraction,
        "settings": folder.fingerprint,
        "shards": names,
        "complete": False,
    }


def _instances(counts: Counts) -> int:
    from bert.tasks.pretrain.hdf5 import instances_of

    return counts.get(instances_of("training")) + counts.get(instances_of("test"))


def _length_of(config: PrepareConfig, seq_len: int, path: Path, names: list[str], kept: list[str]) -> LengthSummary:
    from bert.tasks.pretrain.hdf5 import REAL_TOKENS, instances_of

    done = [name for name in names if (path / name).is_file()]
    counts = Counts()
    for name in done:
        counts.merge(recorded_counts(path, name).to_json())
    training, test = (counts.get(instances_of(split)) for split in ("training", "test"))
    tokens = (training + test) * seq_len
    return LengthSummary(
        seq_len=seq_len,
        max_predictions=config.predictions(seq_len),
        folder=path,
        training_instances=training,
        test_instances=test,
        padding_efficiency=counts.get(REAL_TOKENS) / tokens if tokens else None,
        shards=len(done),
        shards_kept=len(kept),
    )
