"""The stages that make text: download, extract and clean, sentences, shard."""

import dataclasses
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bert.corpus.files import Source, find_inputs, identify, is_dump
from bert.data.stages import MANIFEST_FILE, Finished, clear_stage, fingerprint_of, read_finished
from bert.tasks.pretrain.preparation.config import PrepareConfig
from bert.tasks.pretrain.preparation.runner import Make, StageRunner
from common.errors import InputError, UsageError

DOWNLOAD_FOLDER = "download"
_DIGESTS_FILE = ".inputs.json"


def download(runner: StageRunner) -> list[Path]:
    """Fetch what `--download` names, or find it where an earlier call put it; return its files.

    Raises as bert.data.remote.obtain.download_named.
    """
    from bert.data.remote.obtain import RemoteOptions, download_named

    config, began = runner.config, time.perf_counter()
    options = RemoteOptions(
        language=config.language, date=config.date, books_limit=config.books_limit, mirror=config.mirror or ""
    )
    folder = config.output / DOWNLOAD_FOLDER
    files = [path for name in config.download for path in download_named(name, folder, options, runner.progress)]
    if "download" in config.stages:
        runner.add("download", folder, len(files), began, kept=False, complete=True, counts=None)
    return files


def paragraphs(runner: StageRunner, downloaded: Sequence[Path]) -> list[Finished]:
    """Run extract and clean on the input and what was downloaded, each where it is wanted and has something to do.

    Raises:
        InputError: no input, or none with text in it.
    """
    config = runner.config
    dumps, texts = _inputs(config, downloaded)
    ended: list[Finished] = []
    for stage, sources in (("extract", dumps), ("clean", texts)):
        path = config.stage_folder(stage)
        if not sources:
            if stage in config.stages:  # what an earlier call made of other input is no part of this one
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
            "data-missing",
            f"no text in the {len(dumps) + len(texts)} file(s) of the input: give a folder with text, or dumps with "
            "articles",
        )
    return ended


def _inputs(config: PrepareConfig, downloaded: Sequence[Path]) -> tuple[list[Source], list[Source]]:
    """Return the dumps and texts of all inputs."""
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


def sentences(runner: StageRunner, texts: Sequence[Finished]) -> Finished | None:
    """Run the stage sentences on the results of extract and clean; with none given, on those an earlier call made.

    Raises:
        InputError: extract or clean is not complete.
        MissingToolError: the splitter does not run here.
    """
    from bert.corpus.sentences import VERSION, segment
    from bert.corpus.splitter import splitter_version

    config = runner.config
    if not texts:
        folders = [(config.stage_folder(stage), stage) for stage in ("extract", "clean")]
        texts = [read_finished(path, stage) for path, stage in folders if path.is_dir()]
        if not texts:
            read_finished(*folders[0])  # says which stage to run
    parts = [part for done in texts for part in done.files]
    settings = {"splitter": config.splitter, "version": splitter_version(config.splitter)}
    content = fingerprint_of([done.fingerprint for done in texts])
    return runner.run(
        "sentences",
        VERSION,
        config.stage_folder("sentences"),
        settings,
        content,
        lambda folder: segment(parts, folder, runner.workers, config.share, runner.progress, config.splitter),
    )


def shards(runner: StageRunner, segmented: Finished | None) -> Finished | None:
    """Run the stage shard on sentences; with None given, on those an earlier call made.

    Raises:
        InputError: sentences is not complete.
        UsageError: fewer documents than shards.
    """
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


def found_shards(config: PrepareConfig) -> Finished:
    """Return the shards of sentences that an earlier call made.

    Raises:
        InputError: there are none, or they are not complete.
        UsageError: there are several numbers of them.
    """
    if config.shards is not None:
        return read_finished(config.sharded_folder(config.shards), "shard")
    found = sorted(config.output.glob(f"sharded_training_shards_*_fraction_{config.test_fraction:g}"))
    found = [path / config.dataset_name for path in found if (path / config.dataset_name).is_dir()]
    if len(found) > 1:
        names = ", ".join(path.parent.name for path in found)
        raise UsageError(
            "data-ambiguous", f"{config.output} holds several numbers of shards ({names}): say which with --shards"
        )
    return read_finished(found[0] if found else config.sharded_folder(0).parent / config.dataset_name, "shard")
