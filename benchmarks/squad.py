"""Measures how fast SQuAD features are made: against the tokenizer alone, a plain pipeline and Hugging Face's recipe.

    python benchmarks/squad.py [--data DIR] [--out DIR] [--rounds N] [--quick]

On dev v1.1, in turns: `encode_batch` of the tokenizers library on the pairs of question and context, on one thread; our
features with one process and with two, whose processes have been started before, and as a user meets them, start
included; the published algorithm in plain Python with its own tokenizer; and the recipe of transformers' run_qa.py,
`datasets.map` with the fast tokenizer, with one process and with two (where `datasets` is installed). Then the same
data ten times with ids of their own: one process against two (not with --quick). Results go to DIR/squad.json. Ends
with 1 where a ratio is not as needed.
"""

import os

# Read by the library when it is first used, here and in the workers.
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import gc
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from run_qa_recipe import QaFeatures  # noqa: E402
from support import plain_squad  # noqa: E402
from support.datasets import silent  # noqa: E402
from support.plain_tokenizer import PlainTokenizer  # noqa: E402

from bert.data.pool import Workers  # noqa: E402
from bert.data.vocabulary import Vocabulary, load_vocabulary  # noqa: E402
from bert.tasks.squad import prepare  # noqa: E402
from bert.tasks.squad.prepare import SquadConfig  # noqa: E402

DATA = ROOT.parent / "shared/data"
TIMES = 10
DEMANDS = (
    ("one process / encode_batch", "one process", "encode_batch", 0.0, 0.13),
    ("ten times: one process / encode_batch", "ten times, one process", "encode_batch, ten times", 0.0, 0.13),
    ("plain / two processes", "plain", "two processes", 10.0, float("inf")),
    ("datasets.map, its faster / one process", "datasets.map", "one process", 3.0, float("inf")),
    ("ten times: one process / two processes", "ten times, one process", "ten times, two processes", 1.4, float("inf")),
)
"""Name, what, over what, least, most."""


def start(place: tuple[Path, str]) -> None:
    """Make a worker ready, long enough for each worker to get one of these; it has met no word of the data."""
    prepare._vocabulary(place[0], True, place[1]).encode(["once"])
    time.sleep(0.2)


def ours(source: Path, vocab: Path, scratch: Path, workers: int, mode: Any = "merge", started: bool = True) -> float:
    """Make the features of a dataset; return the seconds."""
    shutil.rmtree(scratch, ignore_errors=True)
    prepare._vocabulary.cache_clear()
    config = SquadConfig(input=(source,), vocab=vocab, output=scratch, split="training", mode=mode, workers=workers)
    with Workers(workers) as pool:
        if workers > 1 and started:
            fingerprint = load_vocabulary(vocab, lower_case=True).fingerprint
            list(pool.map(start, [(vocab, fingerprint)] * workers))
        own = mock.patch.object(prepare, "Workers", lambda count: nullcontext(pool)) if started else nullcontext()
        with own:
            begun = time.perf_counter()
            prepare.prepare(config, silent)
            return time.perf_counter() - begun


def library(pairs: list[tuple[str, str]], vocabulary: Vocabulary) -> float:
    """Encode all pairs at once, without windows and without reading what comes out."""
    tokenizer = vocabulary._tokenizer
    begun = time.perf_counter()
    encodings = tokenizer.encode_batch(pairs)
    took = time.perf_counter() - begun
    assert len(encodings) == len(pairs)
    return took


def plain(source: Path, vocab: Path) -> float:
    """Make all windows by the published algorithm in plain Python, every word tokenised as often as it is met."""
    begun = time.perf_counter()
    pieces = vocab.read_text(encoding="utf-8").split("\n")[:-1]
    tokenizer = PlainTokenizer(pieces, lower_case=True)
    marks = (tokenizer.ids["[CLS]"], tokenizer.ids["[SEP]"])
    made = plain_squad.features(plain_squad.load(source), False, True, tokenizer.encode, marks)
    assert sum(len(example.windows) for example in made) > 0
    return time.perf_counter() - begun


def run_qa(source: Path, vocab: Path, scratch: Path, processes: int) -> float:
    """Prepare training features as transformers' run_qa.py does: `datasets.map` in batches, offsets, answer spans."""
    import datasets
    from transformers import BertTokenizerFast

    datasets.disable_progress_bars()
    datasets.disable_caching()
    tokenizer = BertTokenizerFast(vocab=str(vocab), do_lower_case=True)
    begun = time.perf_counter()
    rows: dict[str, list[Any]] = {name: [] for name in ("id", "question", "context", "answers")}
    for article in plain_squad.load(source)["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                golds = question["answers"][:1]
                rows["id"].append(question["id"])
                rows["question"].append(question["question"].lstrip())
                rows["context"].append(paragraph["context"])
                rows["answers"].append(
                    {"text": [gold["text"] for gold in golds], "start": [gold["answer_start"] for gold in golds]}
                )
    table = datasets.Dataset.from_dict(rows)
    made = table.map(
        QaFeatures(tokenizer),
        batched=True,
        num_proc=processes if processes > 1 else None,
        remove_columns=table.column_names,
        load_from_cache_file=False,
    )
    made.save_to_disk(str(scratch))
    took = time.perf_counter() - begun
    assert made.num_rows >= table.num_rows
    return took


def repeated(document: dict[str, Any], path: Path) -> Path:
    """Write the data ten times, each time with other ids."""
    articles = []
    for turn in range(TIMES):
        copy = json.loads(json.dumps(document["data"]))
        for article in copy:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    question["id"] = f"{turn}-{question['id']}"
        articles += copy
    path.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    return path


def sides(source: Path, vocab: Path, scratch: Path, ten_times: Path | None) -> dict[str, Callable[[], float]]:
    """Return what is measured; each returns its seconds."""
    document = plain_squad.load(source)
    paragraphs = [paragraph for article in document["data"] for paragraph in article["paragraphs"]]
    pairs = [(question["question"], paragraph["context"]) for paragraph in paragraphs for question in paragraph["qas"]]
    vocabulary = load_vocabulary(vocab, lower_case=True)
    vocabulary.encode(["once"])
    found: dict[str, Callable[[], float]] = {
        "encode_batch": lambda: library(pairs, vocabulary),
        "one process": lambda: ours(source, vocab, scratch / "ours", 1),
        "two processes": lambda: ours(source, vocab, scratch / "ours", 2),
        "two processes, spill": lambda: ours(source, vocab, scratch / "ours", 2, "spill"),
        "two processes, start included": lambda: ours(source, vocab, scratch / "ours", 2, started=False),
        "plain": lambda: plain(source, vocab),
    }
    try:
        import datasets  # noqa: F401

        found["datasets.map, one process"] = lambda: run_qa(source, vocab, scratch / "hf", 1)
        found["datasets.map, two processes"] = lambda: run_qa(source, vocab, scratch / "hf", 2)
    except ImportError:
        print("datasets is not installed: its side is left out (pip install datasets)", file=sys.stderr)
    if ten_times is not None:
        found["ten times, one process"] = lambda: ours(ten_times, vocab, scratch / "ours", 1)
        found["ten times, two processes"] = lambda: ours(ten_times, vocab, scratch / "ours", 2)
        found["ten times, one process, spill"] = lambda: ours(ten_times, vocab, scratch / "ours", 1, "spill")
        found["ten times, two processes, spill"] = lambda: ours(ten_times, vocab, scratch / "ours", 2, "spill")
        found["ten times, two processes, start included"] = lambda: ours(
            ten_times, vocab, scratch / "ours", 2, started=False
        )
    return found


def measure(named: dict[str, Callable[[], float]], rounds: int) -> list[dict[str, float]]:
    """Return the seconds of all sides, round by round."""
    every = []
    for turn in range(rounds):
        seconds = {}
        for name, side in named.items():
            if name == "plain" and turn:
                continue  # its one turn takes as long as all others together
            gc.collect()
            seconds[name] = side()
        if "plain" in every[0] if every else False:
            seconds["plain"] = every[0]["plain"]
        both = [seconds[name] for name in seconds if name.startswith("datasets.map, ")]
        if both:
            seconds["datasets.map"] = min(both)
        seconds["encode_batch, ten times"] = TIMES * seconds["encode_batch"]
        every.append(seconds)
    return every


def main() -> int:
    """Measure, print and write the figures; 1 where one is not as needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with squad/dev-v1.1.json.gz and vocab/")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-data"), help="folder of the results")
    parser.add_argument("--rounds", type=int, default=5, help="turns of all sides but the plain one, which has one")
    parser.add_argument("--quick", action="store_true", help="not the data ten times; 3 rounds")
    options = parser.parse_args()
    source, vocab = options.data / "squad/dev-v1.1.json.gz", options.data / "vocab/bert-uncased.txt"
    for needed in (source, vocab):
        if not needed.is_file():
            print(f"{needed} is not there: see --help for what is needed", file=sys.stderr)
            return 2
    options.out.mkdir(parents=True, exist_ok=True)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        scratch = Path(name).resolve()
        ten_times = None if options.quick else repeated(plain_squad.load(source), scratch / "train-ten-times.json")
        every = measure(
            sides(source, vocab, scratch, ten_times), min(options.rounds, 3) if options.quick else options.rounds
        )
    seconds = {name: statistics.median(one[name] for one in every) for name in every[0]}
    ratios = {
        name: [one[what] / one[over] for one in every]
        for name, what, over, _, _ in DEMANDS
        if what in seconds and over in seconds
    }
    results: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "seconds": seconds}
    results |= {"load": [round(before, 2), round(os.getloadavg()[0], 2)], "rounds": every, "ratios": ratios}
    print(f"{results['machine']}, load {results['load']}")
    for name, value in seconds.items():
        print(f"  {name:44}{value:9.3f} s")
    missed = []
    for name, _, _, least, most in DEMANDS:
        if name not in ratios:
            continue
        ratio = statistics.median(ratios[name])
        needed = f"at least {least:g}" if least else f"at most {most:g}"
        spread = f"{min(ratios[name]):.2f} to {max(ratios[name]):.2f}"
        print(f"  {name:44}{ratio:9.2f}   {spread:16} {needed}{'' if least <= ratio <= most else '  MISSED'}")
        if not least <= ratio <= most:
            missed.append(f"{name}: {ratio:.2f}, needed is {needed}")
    results["missed"] = missed
    (options.out / "squad.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    for sentence in missed:
        print(f"not reached: {sentence}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
