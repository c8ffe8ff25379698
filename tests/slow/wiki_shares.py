"""Prints what becomes of the words of a MediaWiki dump: the table of docs/explanation/pretraining-data.md.

    python tests/slow/wiki_shares.py [DUMP ...]

A word is a run of letters and digits in the wikitext of an article. Each is counted once, where the stage `extract`
drops it or keeps it, in the order in which the stage looks at a page. Without DUMP: the excerpts in ../shared.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "slow")]

from bench_extract import SAMPLE, _articles  # noqa: E402

from bert.corpus import markup, wikitext  # noqa: E402
from bert.corpus.dumps import Dump  # noqa: E402
from bert.corpus.wikitext import is_disambiguation  # noqa: E402

_WORD = re.compile(r"\w+")
_REFERENCE = re.compile(r"<ref(?:\s[^<>]*[^/<>])?>.*?</ref\s*>|<ref\s[^<>]*/>", re.DOTALL | re.IGNORECASE)
_TABLE = re.compile(r"^[ \t:*#]*(\{\||\|\})")


def words(text: str) -> int:
    """Return the number of words in a text."""
    return len(_WORD.findall(text))


def shares(texts: list[str], namespaces: tuple[str, ...]) -> Counter[str]:
    """Return words by what becomes of them; they add up to all words of the texts."""
    found: Counter[str] = Counter()
    for text in texts:
        found += _of_page(text, namespaces)
    return found


def _of_page(text: str, namespaces: tuple[str, ...]) -> Counter[str]:
    prefix, parser, found = wikitext._prefix(namespaces), wikitext._Parser(), Counter[str]()
    steps = {
        "references": lambda page: _REFERENCE.sub("", page),
        "comments, formulas, galleries and other tags": markup.remove_tags,
        "templates": lambda page: markup.replace_templates(page, parser.template),
        "files, categories and other languages": lambda page: markup.remove_links(page, prefix),
    }
    total, rest = words(text), text
    for name, step in steps.items():
        before, rest = words(rest), step(rest)
        found[name] += before - words(rest)
    running = list(wikitext._running_lines(text, prefix, parser, wikitext.Page()))
    outside = _outside_tables(rest)
    found["tables"] += words(rest) - sum(map(words, outside))
    headings = sum(words(line) for line in outside if line.startswith("="))
    found["headings"] += headings
    found["sections of references and links"] += sum(map(words, outside)) - headings - sum(map(words, running))
    for block in wikitext._blocks(iter(running)):
        kept = wikitext._paragraph(block, parser, prefix)
        kind = "list items" if block[0] in "*#:; " else "paragraphs"
        if not kept:
            found[f"{kind} that are no sentence"] += words(block)
            continue
        found[f"kept: {kind}"] += words(kept)
        found["targets of links and other markup"] += words(block) - words(kept)
    assert sum(found.values()) == total
    return found


def _outside_tables(text: str) -> list[str]:
    lines, unclosed, depth = [], markup.unclosed_tables(text), 0
    for number, line in enumerate(text.split("\n")):
        mark = _TABLE.match(line)
        if mark and mark[1] == "{|" and number not in unclosed:
            depth += 1
        elif mark and mark[1] == "|}" and depth:
            depth -= 1
        elif not depth:
            lines.append(line)
    return lines


def main() -> None:
    """Print a row for each kind, most words first."""
    parser = argparse.ArgumentParser(description="What becomes of the words of a MediaWiki dump.")
    parser.add_argument(
        "dumps", nargs="*", type=Path, default=[SAMPLE, SAMPLE.with_name("enwiki-table-markup.xml.bz2")]
    )
    found: Counter[str] = Counter()
    articles = 0
    for path in parser.parse_args().dumps:
        dump = Dump(path)
        texts = [text for unit in dump.units() for text in _articles(unit.pages()) if not is_disambiguation(text)]
        articles += len(texts)
        found += shares(texts, dump.header.hidden)
    total = sum(found.values())
    print(f"{articles} articles, {total:,} words")
    for name, count in found.most_common():
        print(f"| {name} | {count:,} | {count / total:.1%} |")


if __name__ == "__main__":
    main()
