"""Runs one stage after the other: keeps what is complete, notes how long each took."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert.data.pool import Progress, Workers
from bert.data.stages import MANIFEST_FILE, Counts, Finished, StageFolder
from bert.tasks.pretrain.preparation.config import PrepareConfig
from bert.tasks.pretrain.preparation.summary import StageSummary
from common.errors import UsageError
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
            UsageError: other parts are not finished, and this call was to go on with the next stage.
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
        self.add(
            stage,
            path,
            files,
            began,
            kept=kept,
            complete=done is not None,
            counts=None if done is None else done.counts,
        )
        if done is None and self.config.share.count == 1:
            raise UsageError(
                "data-unprepared", f"the stage {stage} did not finish in {path}: run the same command again"
            )
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
