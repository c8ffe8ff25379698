"""The truth corpus as a folder: recordings in the formats of profilers, and a manifest with the known answers."""

import contextlib
import errno
import glob
import gzip
import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.truth import recordings
from bench.truth.formats import WRITERS
from bench.truth.recordings import Answers
from common.atomic import storage_errors, sync_files
from common.errors import StorageError
from records.files import write_record

MANIFEST = "manifest.json"


class Quantity(NamedTuple):
    """What a number of the manifest is."""

    kind: str
    unit: str
    """"" for a count or a share."""
    definition: str
    relative: float = 1e-3
    """An answer is right within this share of the truth, or within `absolute`."""
    absolute: float = 0.0


RECORDINGS: dict[str, tuple[str, Callable[[int], tuple[Sequence[Any], Answers]]]] = {
    "kineto": ("kineto", recordings.one_gpu),
    "kineto-short": ("kineto", lambda seed: recordings.one_gpu(seed + 1, unit=37)),
    "kineto-queue": ("kineto", lambda seed: recordings.deep_queue(seed + 2)),
    "kineto-ranks": ("kineto", lambda seed: recordings.ranks(seed + 3)),
    "kineto-clocks": ("kineto", lambda seed: recordings.ranks(seed + 4, clocks=True)),
    "nsys": ("nsys", lambda seed: recordings.one_gpu(seed + 5)),
    "nsys-short": ("nsys", lambda seed: recordings.one_gpu(seed + 6, unit=37)),
    "nsys-queue": ("nsys", lambda seed: recordings.deep_queue(seed + 7)),
    "ncu": ("ncu", lambda seed: recordings.counters(seed + 8)),
}
"""Format, and what makes the parts to write and the answers from a seed, by name.

In the short ones kernels last 0.04 to 15 us, and times are no whole number of microseconds.
"""

_STEPS = "from the start of the first step to the end of the last"
QUANTITIES = {
    "window_ms": Quantity("window", "ms", f"Time {_STEPS}."),
    "steps": Quantity("window", "", "Steps.", 0),
    "step_time_median_ms": Quantity("window", "ms", "Median duration of a step."),
    "work_span_ms": Quantity(
        "window", "ms", "Time from the start of the first kernel or copy to the end of the last."
    ),
    "compute_ms": Quantity("utilization", "ms", "Time of window_ms with at least one kernel that is no collective."),
    "launched_compute_ms": Quantity("utilization", "ms", "The same of all work of the steps, whenever it ran."),
    "kernel_busy_ms": Quantity("utilization", "ms", "Time of window_ms with a kernel, collectives included."),
    "kernel_utilization": Quantity("utilization", "", "kernel_busy_ms / window_ms.", 0, 5e-4),
    "sm_weighted_utilization": Quantity(
        "utilization", "", "Mean over window_ms of the share of the SMs that the blocks of running kernels fill, with "
        "a block per SM and at most all SMs; collectives included.", 0, 5e-4,
    ),
    "idle_ms": Quantity("utilization", "ms", "Time of window_ms without a kernel and without a copy."),
    "idle_in_work_span_ms": Quantity("utilization", "ms", "The same of work_span_ms."),
    "communication_ms": Quantity("communication", "ms", "Time with at least one collective."),
    "overlapped_ms": Quantity("communication", "ms", "Time with a collective and a kernel that is none."),
    "exposed_ms": Quantity("communication", "ms", "Time with a collective and no other kernel."),
    "overlap_share": Quantity("communication", "", "overlapped_ms / communication_ms.", 0, 5e-4),
    "copy_ms": Quantity("copies", "ms", "Time with at least one copy."),
    "exposed_copy_ms": Quantity("copies", "ms", "Time with a copy and no kernel."),
    "copied_bytes": Quantity("copies", "B", "Sum of the bytes of all copies."),
    "kernel_calls": Quantity("kernels", "", "Calls of this kernel.", 0),
    "kernel_total_ms": Quantity("kernels", "ms", "Sum of the durations of this kernel."),
    "idle_launch_ms": Quantity(
        "idle causes", "ms", "Of each idle gap of work_span_ms in which the CPU launches the next work: the time until "
        "that launch call ends, without idle_data_ms.",
    ),
    "idle_data_ms": Quantity(
        "idle causes", "ms", "The part of it in which the CPU is in the marked range of the data loader."
    ),
    "idle_queued_ms": Quantity(
        "idle causes", "ms", "The rest of idle_in_work_span_ms: the next work had been launched."
    ),
    "wait_ms": Quantity(
        "ranks", "ms", "Of this rank's collectives: the time from its start to the start of the last rank that joins."
    ),
    "transfer_ms": Quantity("ranks", "ms", "The rest of its collectives: until their end."),
    "last_rank": Quantity("ranks", "", "The rank that most often joins a collective last.", 0),
    "bus_bandwidth_gb_s": Quantity(
        "ranks", "GB/s", "2 (n - 1) / n x bytes of all all-reduces / transfer_ms of a rank, of n ranks; 10^9 bytes."
    ),
    "clock_offset_us": Quantity(
        "ranks", "us", "How far the clock of this rank is ahead of that of rank 0: collectives end on all at once."
    ),
    "counted_time_ms": Quantity("counters", "ms", "Sum of the durations of all kernels."),
    "pipe_utilization": Quantity(
        "counters", "", "Share of the peak of this pipeline, mean over the kernels weighted by cycles.", 0, 5e-4
    ),
}  # fmt: skip
"""By name. A rank's communication, compute, overlapped and exposed time is that of its own trace."""


def write_corpus(folder: Path, seed: int) -> dict[str, Any]:
    """Write the corpus into a new or empty folder, all or nothing; return its manifest.

    Raises:
        StorageError: the folder is not empty or cannot be written, or the disk is full.
    """
    about, facts = {}, []
    with _new_folder(folder) as made:
        for name, (form, make) in RECORDINGS.items():
            place = made / name
            place.mkdir()
            parts, answers = make(seed)
            for part in parts:
                with _sqlite_errors(place):
                    WRITERS[form](part, place)
            sync_files(place)
            files = {f"{name}/{path.name}": _digest(path) for path in sorted(place.iterdir())}
            about[name] = {"format": form, "sha256": files}
            facts += [
                {"id": f"{name}:{quantity}" + f"[{of}]" * bool(of), "recording": name, "quantity": quantity, "of": of,
                 "value": value}
                for (quantity, of), value in answers.items()
            ]  # fmt: skip
        quantities = {name: quantity._asdict() for name, quantity in QUANTITIES.items()}
        manifest = {"seed": seed, "quantities": quantities, "recordings": about, "facts": facts}
        write_record(made / MANIFEST, manifest)
    return manifest


@contextlib.contextmanager
def _sqlite_errors(folder: Path) -> Iterator[None]:
    """Turn SQLite's error for a full disk into the OSError that it stands for."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(errno.ENOSPC if "full" in str(error) else errno.EACCES, str(error), str(folder)) from error


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, before compression."""
    data = path.read_bytes()
    return hashlib.sha256(gzip.decompress(data) if path.suffix == ".gz" else data).hexdigest()


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder` that gets its name on success, and is removed on failure or by the next call."""
    folder = folder.absolute()
    with storage_errors(folder):
        if folder == Path.cwd():  # replacing it would leave the user's shell in a folder that is gone
            raise StorageError("folder-occupied", f"{folder} is the current folder: choose a new one for the corpus")
        if folder.exists() and not folder.is_dir():
            raise StorageError("folder-occupied", f"{folder} is a file: give a folder for the corpus")
        if folder.exists() and any(folder.iterdir()):
            raise StorageError(
                "folder-occupied", f"{folder} exists and is not empty: choose a new folder for the corpus, or remove it"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        begin = f".{folder.name}."
        for left in folder.parent.glob(f"{glob.escape(begin)}????????.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=begin, suffix=".tmp", dir=folder.parent))
        try:
            yield made
            made.chmod(0o755)
            made.replace(folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
