"""Measures the extraction of a MediaWiki dump: MB of XML per second, against mwparserfromhell alone, and its workers.

    python tests/slow/bench_extract.py DUMP [WORKERS ...] [--previous DIR]

`text of XML` is what one core does with pages that are unpacked; `one core` unpacks them as well, `bz2` does nothing
else. With --previous, a checkout of an earlier commit (`git worktree add DIR COMMIT`), also its `text of XML`, in a
process of its own whose start does not count. `parser alone` is `mwparserfromhell.parse(text).strip_code()` over the
same articles in the same process, one core, XML read before. These are seconds of CPU. `extract` is the whole stage, by
the clock: dump in, part files out. The sides alternate, and the best of three runs counts, because the machine is
shared. Without DUMP the excerpt in ../shared is repeated to about 50 MB; the parser alone is then measured on one copy
of it.
"""

import argparse
import bz2
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parents[2]
ROOT = Path(os.environ.get("BENCH_ROOT") or HERE)
"""Checkout that is measured: another one where this script measures an earlier extraction in a process of its own."""
sys.path.insert(0, str(ROOT))

from bert.corpus import extract  # noqa: E402
from bert.corpus.dumps import Dump, Unit, split_pages  # noqa: E402
from bert.corpus.extract import Work, extract_unit  # noqa: E402
from bert.corpus.files import Source  # noqa: E402
from bert.corpus.wikitext import is_redirect  # noqa: E402
from bert.data.pool import Workers  # noqa: E402
from bert.data.stages import Part, StageFolder  # noqa: E402

SAMPLE = HERE.parent / "shared" / "data" / "pretrain" / "wiki" / "enwiki-sample.xml.bz2"
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


def measure(
    dump: Path,
    workers: tuple[int, ...] = (1, 2),
    most_parser_bytes: int = 8_000_000,
    previous: Path | None = None,
    rounds: int = REPETITIONS,
) -> dict[str, object]:
    """Return seconds, MB of XML per second, and their ratios.

    Args:
        dump: a dump.
        workers: numbers of workers to measure.
        most_parser_bytes: XML given to the parser alone, and to one core beside it: the first units.
        previous: checkout of an earlier commit, measured beside this one.
        rounds: times that each side is measured.
    """
    total = sum(len(unit.pages()) for unit in Dump(dump).units())
    taken = _first_units(dump, most_parser_bytes)
    unpacked = [dataclasses.replace(unit, data=unit.pages()) for unit in taken]
    texts = [text for unit in unpacked for text in _articles(unit.pages())]
    size = sum(len(unit.pages()) for unit in unpacked)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        _keep(seconds, "parser alone", _parser_alone(texts))
        _keep(seconds, "text of XML", _extracted(dump, unpacked))
        if previous is not None:
            _keep(seconds, "previous", _previous(previous, dump, most_parser_bytes))
        _keep(seconds, "one core", _extracted(dump, taken))
        _keep(seconds, "bz2", _unpacked(taken))
        for count in workers:
            _keep(seconds, f"workers {count}", _stage(dump, count))
    rate = {name: size / _MEGABYTE / min(every) for name, every in seconds.items()}
    stage = {count: total / _MEGABYTE / min(seconds[f"workers {count}"]) for count in workers}
    found: dict[str, object] = {
        "xml_megabytes": total / _MEGABYTE,
        "parser_alone_mb_per_second": rate["parser alone"],
        "text_of_xml_mb_per_second": rate["text of XML"],
        "text_of_xml_over_parser_alone": rate["text of XML"] / rate["parser alone"],
        "bz2_mb_per_second": rate["bz2"],
        "one_core_mb_per_second": rate["one core"],
        "one_core_over_parser_alone": rate["one core"] / rate["parser alone"],
        "stage_mb_per_second": stage,
        "stage_over_one_worker": {count: rate / stage[workers[0]] for count, rate in stage.items()},
    }
    if previous is not None:
        ratios = [before / now for before, now in zip(seconds["previous"], seconds["text of XML"], strict=True)]
        found["previous_text_of_xml_mb_per_second"] = rate["previous"]
        found["text_of_xml_over_previous"] = {"median": statistics.median(ratios), "rounds": ratios}
    return found


def _keep(seconds: dict[str, list[float]], name: str, took: float) -> None:
    seconds.setdefault(name, []).append(took)


def _first_units(dump: Path, most_bytes: int) -> list[Unit]:
    taken, size = [], 0
    for unit in Dump(dump).units():
        if size >= most_bytes:
            break
        taken.append(unit)
        size += len(unit.pages())
    return taken


def _extracted(dump: Path, units: Sequence[Unit]) -> float:
    header = Dump(dump).header
    begun = time.process_time()
    for unit in units:
        extract_unit(Work("x", unit, header))
    return time.process_time() - begun


def _unpacked(units: Sequence[Unit]) -> float:
    begun = time.process_time()
    for unit in units:
        unit.pages()
    return time.process_time() - begun


def once(dump: Path, most_bytes: int) -> float:
    """Return the seconds for the text of unpacked XML with the checkout that this process has imported, once warm."""
    assert Path(extract.__file__).is_relative_to(ROOT), f"{extract.__file__} is not of {ROOT}"
    units = [dataclasses.replace(unit, data=unit.pages()) for unit in _first_units(dump, most_bytes)]
    _extracted(dump, units[:1])
    return _extracted(dump, units)


def _previous(checkout: Path, dump: Path, most_bytes: int) -> float:
    command = [sys.executable, __file__, str(dump), str(most_bytes), "--once"]
    environment = {**os.environ, "BENCH_ROOT": str(checkout.resolve())}
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def _parser_alone(texts: list[str]) -> float:
    import mwparserfromhell

    begun = time.process_time()
    for text in texts:
        mwparserfromhell.parse(text).strip_code()
    return time.process_time() - begun


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
    parser.add_argument("--previous", type=Path, help="checkout of an earlier commit, measured beside this one")
    parser.add_argument("--rounds", type=int, default=REPETITIONS, help="times that each side is measured")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(once(options.dump, options.workers[0]))
        return
    with tempfile.TemporaryDirectory() as folder:
        dump = options.dump or repeated(SAMPLE, Path(folder))
        found = measure(dump, tuple(options.workers) or (1, 2), previous=options.previous, rounds=options.rounds)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
