"""Measures how fast pretraining data are made: against the tokenizer alone, and against the published algorithm.

    python benchmarks/data.py [--data DIR | --text DIR] [--out DIR] [--rounds N] [--quick] [--previous DIR]

The real books and the wiki excerpt are made sentence text by the stages of the project. Then, in turns and in this
process: `encode_batch` of the tokenizers library on all sentences; the stages tokens and hdf5 with one worker, dupe
factor 1 and 3; the same text in shards with one worker and with two, whose processes have been started before; and the
published algorithm in plain Python, with its own tokenizer. All sides use one thread per
process. With --previous, a checkout of an earlier commit (`git worktree add DIR COMMIT`), also its "one worker", each
in a process of its own whose start does not count. Afterwards the same on the text repeated to 50 MB (not with
--quick).
Results go to DIR/data.json. Ends with 1 where a figure is not as needed.
"""

import os

# Read by the library when it is first used, here and in the workers.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import gc
import importlib
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("BENCH_ROOT") or HERE)
"""Checkout that is measured: another one where this script measures an earlier pipeline in a process of its own."""
sys.path[:0] = [str(ROOT), str(HERE / "tests")]

for package in ("bert", "common"):  # before modules that put this script's own checkout first
    importlib.import_module(package)

from support import plain_pretraining  # noqa: E402

from bert.corpus.files import find_inputs, identify  # noqa: E402
from bert.corpus.sharding import ShardPlan, shard  # noqa: E402
from bert.data.finished import Stage  # noqa: E402
from bert.data.pool import Workers  # noqa: E402
from bert.data.vocabulary import Vocabulary, load_vocabulary  # noqa: E402
from bert.tasks.pretrain import hdf5  # noqa: E402
from bert.tasks.pretrain.masking import InstanceConfig  # noqa: E402

DATA = HERE.parent / "shared/data"
SHARDS = 8
"""For two workers; each has the same number, and some."""
REPEATED_BYTES = 50_000_000
SEQ_LEN, MAX_PREDICTIONS = 128, 20
"""Phase 1."""
"""Extraction on one core over its parser alone, and with two workers over one."""
Seconds = dict[str, float]


@dataclass(frozen=True)
class Demand:
    """What a ratio has to be."""

    name: str
    what: str
    over: str
    most: float = float("inf")
    most_repeated: float | None = None
    """On the repeated text; None is `most`."""
    least: float = 0.0
    texts: tuple[str, ...] = ("unrepeated", "repeated")
    """Where it is asked for."""

    def met(self, text: str, ratio: float) -> bool:
        return text not in self.texts or self.least <= ratio <= self.limit(text)

    def limit(self, text: str) -> float:
        return self.most if self.most_repeated is None or text != "repeated" else self.most_repeated

    def needed(self, text: str) -> str:
        if self.least > 0.0:
            return f"at least {self.least:g}"
        return f"at most {self.limit(text):g}" if self.limit(text) < float("inf") else ""


DEMANDS = (
    Demand("one worker / encode_batch", "one worker", "encode_batch", most=0.14, most_repeated=0.08),
    Demand("previous pipeline / one worker", "previous, one worker", "one worker"),
    Demand("each further duplicate / encode_batch", "further duplicate", "encode_batch", most=0.15),
    Demand(
        "one worker / two workers", "one worker, in shards", "two workers, in shards", least=1.4, texts=("repeated",)
    ),
    Demand("published algorithm / one worker", "published", "one worker", least=5.0),
    Demand("published algorithm / two workers", "published", "two workers, in shards", least=8.0),
)


def asked(seconds: Seconds) -> list[Demand]:
    """Return the demands whose sides were measured."""
    return [demand for demand in DEMANDS if {demand.what, demand.over} <= seconds.keys()]


def silent(stage: str, done: int, total: int | None) -> None:
    """Take a stage's progress."""


def folder_of(path: Path, stage: str) -> Stage:
    """Return an empty stage folder."""
    shutil.rmtree(path, ignore_errors=True)
    return Stage(path, stage, 1, {}, "")


def sentence_text(data: Path, scratch: Path) -> list[Path]:
    """Make the books and dumps below `data` sentence text."""
    from bert.corpus.sentences import segment

    dumps, texts = (identify(paths, data, scratch / "digests.json") for paths in find_inputs(data))
    with Workers(1) as workers:
        done = segment(dumps, texts, folder_of(scratch / "sentences", "sentences"), workers, silent)
    return list(done.files)


class Bench:
    """The sides that are compared, on one text."""

    def __init__(self, text: Sequence[bytes], vocabulary_path: Path, scratch: Path, previous: Path | None) -> None:
        """Write the text as one shard and as several."""
        self.previous = previous
        scratch.mkdir()
        self.scratch = scratch
        self.vocabulary_path = vocabulary_path
        self.vocabulary = load_vocabulary(vocabulary_path, lower_case=True)
        self.whole = scratch / "text_training_0.txt"
        self.whole.write_bytes(b"".join(text))
        self.sentences = [line for line in self.whole.read_text(encoding="utf-8").split("\n") if line]
        plan = ShardPlan(training=SHARDS, test=0, test_fraction=0.0, seed=1)
        done = shard([self.whole], folder_of(scratch / "shards", "shard"), "text", plan, silent)
        self.shards = list(done.files)
        self.tokenizer = self.vocabulary._tokenizer
        self.tokenizer.encode_batch(["once"])

    def sides(self) -> dict[str, Callable[[], float]]:
        """Return what is measured; each returns its seconds."""
        found = {
            "encode_batch": self.library,
            "one worker": lambda: self.ours([self.whole], 1),
            "one worker, dupe factor 3": lambda: self.ours([self.whole], 3),
            "one worker, in shards": lambda: self.ours(self.shards, 1),
            "two workers, in shards": lambda: self.ours(self.shards, 1, workers=2),
            "published": self.published,
        }
        if self.previous is not None:
            found["previous, one worker"] = self.earlier
        return found

    def library(self) -> float:
        """Encode all sentences at once."""
        begun = time.perf_counter()
        encodings = self.tokenizer.encode_batch(self.sentences, add_special_tokens=False)
        took = time.perf_counter() - begun
        assert len(encodings) == len(self.sentences)
        return took

    def ours(self, shards: Sequence[Path], dupe_factor: int, workers: int = 1) -> float:
        """Make HDF5 shards of sentence text, in an earlier pipeline's process, too; none has seen the text before."""
        config = InstanceConfig(seq_len=SEQ_LEN, max_predictions=MAX_PREDICTIONS, dupe_factor=dupe_factor)
        # A vocabulary as it is when it has just been read: the time to make a tokenizer of it counts.
        vocabulary = Vocabulary(self.vocabulary.pieces, lower_case=True)
        length = hdf5.Length(folder_of(self.scratch / "hdf5", "hdf5"), config)
        with Workers(workers) as pool:
            list(pool.map(warm_up, range(4 * workers)))
            begun = time.perf_counter()
            (made,) = hdf5.make_shards(shards, vocabulary, [length], pool, silent)
            took = time.perf_counter() - begun
        assert len(made.files) == len(shards)
        return took

    def earlier(self) -> float:
        """Do it with one worker of the earlier pipeline."""
        environment = {**os.environ, "BENCH_ROOT": str(self.previous)}
        command = [sys.executable, __file__, "--once", str(self.whole), str(self.vocabulary_path), str(self.scratch)]
        return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    def published(self) -> float:
        """Do the same with the published algorithm and tokenizer in plain Python."""
        begun = time.perf_counter()
        plain_pretraining.make(
            [self.whole],
            self.vocabulary_path,
            self.scratch / "plain.hdf5",
            seq_len=SEQ_LEN,
            max_predictions=MAX_PREDICTIONS,
        )
        return time.perf_counter() - begun

    def measure(self, rounds: int) -> dict[str, Any]:
        """Measure all sides in turns; return seconds and ratios, those of each round and their medians."""
        every: list[Seconds] = []
        for _ in range(rounds):
            seconds: Seconds = {}
            for name, side in self.sides().items():
                gc.collect()
                seconds[name] = side()
            seconds["further duplicate"] = (seconds["one worker, dupe factor 3"] - seconds["one worker"]) / 2
            every.append(seconds)
        ratios = {
            demand.name: [seconds[demand.what] / seconds[demand.over] for seconds in every]
            for demand in asked(every[0])
        }
        return {
            "bytes": self.whole.stat().st_size,
            "sentences": len(self.sentences),
            "seconds": {name: statistics.median(seconds[name] for seconds in every) for name in every[0]},
            "ratios": {name: statistics.median(found) for name, found in ratios.items()},
            "rounds": {"seconds": every, "ratios": ratios},
        }


def warm_up(number: int) -> None:
    """Import what a worker needs, long enough for each worker to get one of these."""
    import h5py  # noqa: F401
    import tokenizers  # noqa: F401

    with suppress(ImportError):
        import nanotoken  # noqa: F401

    time.sleep(0.1)


def once(whole: Path, vocabulary: Path, scratch: Path) -> float:
    """Return the seconds of one worker of the checkout that this process has imported."""
    assert Path(hdf5.__file__).is_relative_to(ROOT), f"{hdf5.__file__} is not of {ROOT}"
    bench = Bench.__new__(Bench)
    bench.scratch, bench.vocabulary = scratch / "previous", load_vocabulary(vocabulary, lower_case=True)
    bench.scratch.mkdir(exist_ok=True)
    return bench.ours([whole], 1)


def missed(results: dict[str, Any]) -> list[str]:
    """Return what is not as needed, one sentence each."""
    said = []
    for text, found in results["texts"].items():
        for demand in asked(found["seconds"]):
            if not demand.met(text, found["ratios"][demand.name]):
                said.append(
                    f"{text}, {demand.name}: {found['ratios'][demand.name]:.2f}, needed is {demand.needed(text)}"
                )
    return said


def show(results: dict[str, Any]) -> None:
    """Print the table."""
    for text, found in results["texts"].items():
        print(f"\n{text}: {found['bytes'] / 1e6:.1f} MB, {found['sentences']:,} sentences")
        for name, seconds in found["seconds"].items():
            rate = found["bytes"] / 1e6 / seconds if seconds > 0 else float("inf")
            print(f"  {name:40}{seconds:9.3f} s {rate:9.1f} MB/s")
        for demand in asked(found["seconds"]):
            ratio = found["ratios"][demand.name]
            every = found["rounds"]["ratios"][demand.name]
            spread = f"{min(every):.2f} to {max(every):.2f}"
            needed = (
                f"{demand.needed(text)}{'' if demand.met(text, ratio) else '  MISSED'}" if text in demand.texts else ""
            )
            print(f"  {demand.name:40}{ratio:9.2f}   {spread:16} {needed}")


def main() -> int:
    """Measure, print and write the figures; 1 where one is not as needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA / "pretrain", help="folder of books and dumps")
    parser.add_argument("--text", type=Path, help="instead: folder of sentence text (.txt)")
    parser.add_argument("--vocabularies", type=Path, default=DATA / "vocab", help="folder of bert-uncased.txt")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-data"), help="folder of the results")
    parser.add_argument("--rounds", type=int, default=5, help="turns of all sides on the text as it is")
    parser.add_argument("--quick", action="store_true", help="only the text as it is, not repeated; 3 rounds")
    parser.add_argument("--previous", type=Path, help="checkout of an earlier commit, measured beside this one")
    parser.add_argument("--once", type=Path, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(once(*options.once))
        return 0
    for needed in (options.text or options.data, options.vocabularies):
        if not needed.is_dir():
            print(f"{needed} is not there: see --help for what is needed", file=sys.stderr)
            return 2
    options.out.mkdir(parents=True, exist_ok=True)
    before = os.getloadavg()[0]
    results: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "texts": {}}
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        scratch = Path(name).resolve()
        paths = sorted(options.text.glob("*.txt")) if options.text else sentence_text(options.data, scratch)
        text = [path.read_bytes() for path in paths]
        uncased = options.vocabularies / "bert-uncased.txt"
        rounds = min(options.rounds, 3) if options.quick else options.rounds
        results["texts"]["unrepeated"] = Bench(text, uncased, scratch / "unrepeated", options.previous).measure(rounds)
        if not options.quick:
            times = max(2, round(REPEATED_BYTES / sum(map(len, text))))
            repeated = Bench(text * times, uncased, scratch / "repeated", options.previous)
            results["texts"]["repeated"] = repeated.measure(1)
    results["load"] = [round(before, 2), round(os.getloadavg()[0], 2)]
    results["missed"] = missed(results)
    (options.out / "data.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"{results['machine']}, load {results['load']}")
    show(results)
    for sentence in results["missed"]:
        print(f"not reached: {sentence}", file=sys.stderr)
    return 1 if results["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
