"""Measures the extraction of a MediaWiki dump: MB of XML per second, against mwparserfromhell alone, and its workers.

    python tests/slow/bench_extract.py DUMP [WORKERS ...]

`parser alone` is `mwparserfromhell.parse(text).strip_code()` over the same articles in the same process, one core,
XML read before. `extract` is the whole stage: dump in, part files out. The sides alternate, and the best of three runs
counts, because the machine is shared. Without DUMP the excerpt in ../shared is repeated to about 50 MB; the parser
alone is then measured on one copy of it.
"""

import argparse
import bz2
import json
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bert.corpus import extract  # noqa: E402
from bert.corpus.dumps import Dump, split_pages  # noqa: E402
from bert.corpus.extract import Work, extract_unit  # noqa: E402
from bert.corpus.files import Source  # noqa: E402
from bert.corpus.wikitext import is_redirect  # noqa: E402
from bert.data.pool import Workers  # noqa: E402
from bert.data.stages import Part, StageFolder  # noqa: E402

SAMPLE = ROOT.parent / "shared" / "data" / "pretrain" / "wiki" / "enwiki-sample.xml.bz2"
REPETITIONS = 3
_MEGABYTE = 1e6


def repeated(sample: Path, folder: Path, megabytes: float = 50.0) -> Path:
    """Write the pages of a dump again and again as a multistream dump of about this size; return its path."""
    data = bz2.decompress(sample.read_bytes())
    head, pages = data.split(b"<page>", 1)
    body = b"<page>" + pages[: pages.rfind(b"</page>") + len(b"</page>")] + b"\n"
    whole = [page for page in body.split(b"</page>") if page.strip()]
    streams = [
        bz2.compress(b"</page>".join(whole[at : at + 25]).lstrip() + b"</page>\n") for at in range(0, len(whole), 25)
    ]
    path = folder / "repeated-pages-articles-multistream.xml.bz2"
    copies = max(1, round(megabytes * _MEGABYTE / len(body)))
    path.write_bytes(bz2.compress(head) + b"".join(streams) * copies + bz2.compress(b"</mediawiki>\n"))
    return path


def measure(dump: Path, workers: tuple[int, ...] = (1, 2), most_parser_bytes: int = 8_000_000) -> dict[str, object]:
    """Return seconds, MB of XML per second, and their ratios.

    Args:
        dump: a dump.
        workers: numbers of workers to measure.
        most_parser_bytes: XML given to the parser alone, and to one core of the stage beside it: the first units.
    """
    units = list(Dump(dump).units())
    data = [unit.pages() for unit in units]
    total = sum(map(len, data))
    taken, size = [], 0
    for unit, pages in zip(units, data, strict=True):
        if size < most_parser_bytes:
            taken.append((unit, pages))
            size += len(pages)
    texts = [text for _, pages in taken for text in _articles(pages)]
    header = Dump(dump).header
    best: dict[str, float] = {}
    for _ in range(REPETITIONS):
        _keep(best, "parser alone", _parser_alone(texts))
        begun = time.perf_counter()
        for unit, _pages in taken:
            extract_unit(Work("x", unit, header))
        _keep(best, "one core", time.perf_counter() - begun)
        for count in workers:
            _keep(best, f"workers {count}", _stage(dump, count))
    stage = {count: total / _MEGABYTE / best[f"workers {count}"] for count in workers}
    parser, core = size / _MEGABYTE / best["parser alone"], size / _MEGABYTE / best["one core"]
    return {
        "xml_megabytes": total / _MEGABYTE,
        "parser_alone_mb_per_second": parser,
        "one_core_mb_per_second": core,
        "one_core_over_parser_alone": core / parser,
        "stage_mb_per_second": stage,
        "stage_over_one_worker": {count: rate / stage[workers[0]] for count, rate in stage.items()},
    }


def _keep(best: dict[str, float], name: str, seconds: float) -> None:
    best[name] = min(best.get(name, seconds), seconds)


def _parser_alone(texts: list[str]) -> float:
    import mwparserfromhell

    begun = time.perf_counter()
    for text in texts:
        mwparserfromhell.parse(text).strip_code()
    return time.perf_counter() - begun


def _articles(pages: bytes) -> list[str]:
    found = []
    for page in split_pages(pages):
        root = ElementTree.fromstring(page)
        text = root.findtext("revision/text") or ""
        if root.findtext("ns") == "0" and root.find("redirect") is None and not is_redirect(text):
            found.append(text)
    return found


def _stage(dump: Path, workers: int) -> float:
    """Return the seconds of the stage; the processes are started and warm before."""
    with tempfile.TemporaryDirectory() as folder, Workers(workers) as pool:
        list(pool.map(abs, range(4 * workers)))
        stage = StageFolder(Path(folder), extract.STAGE, extract.VERSION, {}, "bench")
        stage.begin()
        begun = time.perf_counter()
        extract.extract([Source(dump, dump.name, "")], stage, pool, Part(), lambda *done: None)
        return time.perf_counter() - begun


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description="Measure the extraction of a MediaWiki dump.")
    parser.add_argument("dump", nargs="?", type=Path)
    parser.add_argument("workers", nargs="*", type=int, default=[1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dump = options.dump or repeated(SAMPLE, Path(folder))
        print(json.dumps(measure(dump, tuple(options.workers) or (1, 2)), indent=2))


if __name__ == "__main__":
    main()
