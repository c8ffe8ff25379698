"""Make the files of tests/data from tests/data/sources, from random numbers and from runs of this project.

`python tests/data/make.py` writes the text, tables, vocabulary, checkpoints and counters; `--record` records the traces
again, whose times then differ. The README says how the other files were made.
"""

import bz2
import gzip
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

DATA = Path(__file__).resolve().parent
sys.path[:0] = [str(DATA.parents[1]), str(DATA.parent)]

from support import checkpoints, datasets, ncu_csv, recordings  # noqa: E402
from support.recordings import write_kineto, write_ncu, write_nsys  # noqa: E402
from support.shared_files import unpacked  # noqa: E402

from bert.corpus.texts import documents  # noqa: E402
from bert.data.vocabulary import train_vocabulary  # noqa: E402

SOURCES = DATA / "sources"
VOCABULARY_SIZE = 3000
BOOK_BYTES = 260_000


def source(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


def write(name: str, text: str, encoding: str = "utf-8", newline: str = "\n") -> None:
    path = DATA / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding, newline=newline)


def marked(chance: random.Random, sentence: str) -> str:
    """Return a sentence of generated words with the marks that real text has."""
    plain, end = sentence[:-1], sentence[-1]
    words = plain.split()
    first, rest = (" ".join(part).rstrip(",") for part in (words[: len(words) // 2], words[len(words) // 2 :]))
    forms = (
        f"{plain}{end}", f"{plain}{end}", f"{plain}{end}",
        f'"{first}," said Mr. {words[-1].title()}, "{rest}{end}"',
        f"{first} ({rest}){end}",
        f"{first}, e.g. {rest}{end}",
        f"Dr. {first}—i.e. the {rest}—was 4,{chance.randint(100, 999)} ft. high{end}",
        f"It's {first}; they don't {rest}{end}",
        f"{first}, {chance.randint(1, 99)}.{chance.randint(0, 9)} % of {rest}{end}",
        f"St. {first} & Co. of the U.S. {rest} at {chance.randint(1, 12)} p.m.",
    )  # fmt: skip
    return chance.choice(forms)


def chapters(seed: int, size: int) -> Iterator[str]:
    """Yield chapters of marked text with a heading each."""
    chance = random.Random(seed)
    for number, document in enumerate(documents(seed, size), start=3):
        paragraphs = document.decode().strip().split("\n\n")
        texts = [" ".join(marked(chance, one) for one in re.findall(r"\w[^.?!]+[.?!]", text)) for text in paragraphs]
        yield f"CHAPTER {number}.\n\n\n" + "\n\n".join(map(folded, texts))


def folded(text: str) -> str:
    """Return text in lines of at most 76 characters."""
    return re.sub(r"(.{1,76})(?: |$)", r"\1\n", " ".join(text.split())).strip()


def make_books() -> None:
    """Write two books as Project Gutenberg frames them, with CRLF, one of them in latin-1."""
    frame = "*** {} OF THE PROJECT GUTENBERG EBOOK {} ***"
    keeper = "\n\n\n".join([source("book.txt"), *chapters(1, BOOK_BYTES)])
    for name, title, text, encoding in (
        ("keeper.txt", "THE KEEPER OF HALDEN DAM", keeper, "utf-8-sig"),
        ("letters-8.txt", "LETTERS FROM THE RIVER", source("letters.txt"), "latin-1"),
    ):
        head = f"A synthetic header of {title.title()}, a text written for tests.\n\nLanguage: English\n\n"
        tail = "\n\nA synthetic license: this text may be used by everybody for everything.\n"
        whole = f"{head}{frame.format('START', title)}\n\n\n{text}\n\n{frame.format('END', title)}{tail}"
        write(f"pretrain/books/{name}", whole, encoding, "\r\n")


def make_wiki() -> None:
    """Write the pages as a MediaWiki dump, with its header."""
    pages = []
    for number, page in enumerate(source("wiki.txt").split("<<< ")[1:], start=1):
        head, _, text = page.partition("\n")
        title, namespace, target = (part.strip() for part in head.split("|"))
        redirect = f'\n    <redirect title="{escape(target)}" />' if target else ""
        pages.append(
            f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>{redirect}\n"
            f"    <revision>\n      <id>{100 + number}</id>\n      <model>wikitext</model>\n"
            f'      <text bytes="{len(text)}" xml:space="preserve">{escape(text.strip())}</text>\n'
            "    </revision>\n  </page>\n"
        )
    head = "  <siteinfo>\n    <sitename>Wikipedia</sitename>\n    <dbname>testwiki</dbname>\n  </siteinfo>\n"
    begin = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">'
    dump = f"{begin}\n{head}{''.join(pages)}</mediawiki>\n"
    (DATA / "pretrain/wiki").mkdir(parents=True, exist_ok=True)
    (DATA / "pretrain/wiki/pages.xml.bz2").write_bytes(bz2.compress(dump.encode()))


def make_vocabulary() -> None:
    texts = [source(path.name) for path in sorted(SOURCES.glob("*.txt"))]
    vocabulary = train_vocabulary([*texts, *chapters(1, BOOK_BYTES)], VOCABULARY_SIZE, lower_case=True)
    write("vocab/uncased.txt", "".join(f"{piece}\n" for piece in vocabulary.pieces))


def make_squad() -> None:
    """Write the questions in SQuAD's two versions; 1.1 has no questions without an answer."""
    for version in ("1.1", "2.0"):
        articles: dict[str, list[dict[str, object]]] = {}
        for block in source("questions.txt").split("= ")[1:]:
            title, context, *asked = block.strip().split("\n")
            place = len(articles.setdefault(title, []))
            questions = []
            for number, line in enumerate(asked):
                question, *texts = (part.strip() for part in line[2:].split(" | "))
                answers = [{"text": text, "answer_start": context.index(text)} for text in texts]
                one = {"id": f"{title[:4].lower()}-{place}-{number}", "question": question, "answers": answers}
                if version == "2.0":
                    questions.append({**one, "is_impossible": not answers})
                elif answers:
                    questions.append(one)
            articles[title].append({"context": context, "qas": questions})
        data = [{"title": title.replace(" ", "_"), "paragraphs": found} for title, found in articles.items()]
        whole = json.dumps({"version": version, "data": data}, indent=1, ensure_ascii=False)
        write(f"squad/dev-v{version}.json", whole)


def make_checkpoints() -> None:
    """Write a small random model as transformers saves it, in the older .bin, and as a TensorFlow checkpoint."""
    import torch

    model = checkpoints.theirs()
    folder = checkpoints.saved(DATA / "checkpoints/hugging-face", model)
    (folder / "model.safetensors").unlink()
    state = {name: value for name, value in model.state_dict().items() if "decoder" not in name}
    torch.save(state, folder / "pytorch_model.bin")
    prefix = DATA / "checkpoints/tensorflow/bert_model.ckpt"
    checkpoints.saved_by_tensorflow(prefix, model)
    shutil.copy(folder / "vocab.txt", prefix.parent)


def make_counters() -> None:
    """Write ncu's tables: the long form of several versions, with a program's output around it, and the raw form."""
    (DATA / "ncu").mkdir(exist_ok=True)
    old = "ID,Process ID,Process Name,Host Name,Kernel Name,Kernel Time,Context,Stream,Section Name,Metric Name"
    old += ",Metric Unit,Metric Value"
    new = old.replace("Kernel Time,Context,Stream", "Context,Stream,Block Size,Grid Size,Device,CC")
    new += ",Rule Name,Rule Type,Rule Description,Estimated Speedup Type,Estimated Speedup"
    ranges = new.replace("Kernel Name", f"{ncu_csv.NVTX[1]},Kernel Name")
    write("ncu/details-12-columns.csv", "".join(details(old.split(","))))
    write("ncu/details-20-columns.csv", "".join(details(new.split(","))))
    write("ncu/details-21-columns.csv", "".join(details(ranges.split(","))))
    lines = enumerate(details(old.split(","), "파이썬"))
    mixed = "".join(line[:-1] + ("\r\n" if number % 2 else "\n") for number, line in lines)
    write("ncu/details-cp949-mixed-ends.csv", mixed, "cp949", "")
    write("ncu/raw.csv", ncu_csv.raw())
    ((kernels,), _) = recordings.counters(3, kernels=24)
    with tempfile.TemporaryDirectory() as folder:
        write_ncu(kernels, Path(folder))
        shutil.copy(Path(folder) / "raw.csv", DATA / "ncu/raw-24-kernels.csv")


def details(columns: Sequence[str], process_name: str = "python3") -> Iterator[str]:
    """Yield lines of the details page of ncu_csv's kernels with these columns."""
    yield from ("step 1 loss 10.3, it's \"fine\n", "==PROF== Connected to process 7\n", quoted(columns))
    for number, (process, kernel, name, cycles, duration, pipes) in enumerate(ncu_csv.KERNELS):
        place = {"ID": str(kernel), "Process ID": str(process), "Process Name": process_name, "Host Name": "127.0.0.1"}
        place |= {"Kernel Name": name, "Kernel Time": f"2026-Jan-05 10:00:0{number}", "Context": "1", "Stream": "7"}
        place |= {"Block Size": "(128, 1, 1)", "Grid Size": "(33, 1, 1)", "Device": "0", "CC": "9.0"}
        place[ncu_csv.NVTX[1]] = ncu_csv.ranges("run")
        counted = [("gpc__cycles_elapsed.max", "cycle", cycles), ("gpu__time_duration.sum", "usecond", duration)]
        counted += [(metric, "%", value) for metric, value in zip(ncu_csv.METRICS, pipes, strict=True)]
        for metric, unit, value in counted:
            row = {**place, "Section Name": "Command line profiler metrics", "Metric Name": metric}
            row |= {"Metric Unit": unit, "Metric Value": value}
            yield quoted([row.get(column, "") for column in columns])
        if "Rule Name" in columns:
            rule = {**place, "Section Name": "SpeedOfLight", "Rule Name": "SOLBottleneck", "Rule Type": "INF"}
            yield quoted([rule.get(column, "") for column in columns])
    yield from ("==PROF== Disconnected from process 7\n", "42 samples\n")


def quoted(cells: Sequence[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def make_gpu_traces() -> None:
    """Write work of a GPU and of four ranks whose times are known, as PyTorch's profiler and nsys write it."""
    with tempfile.TemporaryDirectory() as folder:
        (trace,), _ = recordings.one_gpu(4, steps=6, stretches=12)
        write_kineto(trace, Path(folder))
        write_nsys(trace, Path(folder))
        (DATA / "kineto/nccl-4-ranks").mkdir(parents=True, exist_ok=True)
        (DATA / "nsys").mkdir(exist_ok=True)
        shutil.copy(Path(folder) / "rank0.pt.trace.json.gz", DATA / "kineto/one-gpu.json.gz")
        export = (Path(folder) / "rank0.sqlite").read_bytes()
        (DATA / "nsys/one-gpu.sqlite.gz").write_bytes(gzip.compress(export, mtime=0))
        for trace in recordings.ranks(5)[0]:
            write_kineto(trace, DATA / "kineto/nccl-4-ranks")


def record() -> None:
    """Record steps of a tiny model on a CPU: one rank, and two with gloo."""
    common = (
        "profile pretrain --preset tiny --device cpu --profiler torch --start 4 --stop 7 --batch-sizes 2 --threads 1"
    )
    for name, more in (("cpu", ""), ("gloo-2-ranks", "--strategies ddp --devices 2")):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "bench.cli.main", *common.split(), *more.split(), "--out", out]
            subprocess.run(command, cwd=DATA.parents[1], check=True)
            for rank, path in enumerate(sorted(Path(out).rglob("trace-rank*.json*"))):
                document = json.loads(unpacked(path))
                document.pop("traceName", None)
                (DATA / "kineto" / name).mkdir(parents=True, exist_ok=True)
                packed = gzip.compress(json.dumps(document).encode(), mtime=0)
                (DATA / "kineto" / name / f"rank{rank}.json.gz").write_bytes(packed)


def main(words: Sequence[str]) -> None:
    """Make everything."""
    make_books()
    make_wiki()
    make_vocabulary()
    make_squad()
    for split in ("development", "validation", "test"):
        datasets.write_gap(DATA / f"gap/gap-{split}.tsv", datasets.learnable_gap(36, split))
    datasets.make_glue(DATA / "glue", ["cola", "wnli", "stsb"], rows=24)
    make_checkpoints()
    make_counters()
    make_gpu_traces()
    if "--record" in words:
        record()


if __name__ == "__main__":
    main(sys.argv[1:])
