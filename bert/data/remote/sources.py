"""What can be had by name: where it is, on which terms, and how to get what this program does not fetch."""

from collections.abc import Callable
from dataclasses import dataclass

from bert.data.remote.listings import Ask, Choice, RemoteFile, plan_dump, plan_exports, plan_pg19, plan_squad


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSource:
    """One name of `bertbench data download`."""

    name: str
    """As it is given."""
    what: str
    """What it is, in a line."""
    base: str = ""
    """Address that --mirror replaces; empty where nothing is fetched."""
    terms: tuple[str, ...]
    """The licence and what it asks, a line each."""
    needs: str = ""
    """Size, where a source states it."""
    connections: int = 1
    key: Callable[[Choice], str] = lambda choice: "all"
    """Tells choices apart that lead to different files."""
    plan: Callable[[Ask, Choice], list[RemoteFile]] | None = None
    """Finds the files; None where this program does not fetch it."""
    instead: tuple[str, ...] = ()
    """How to get it where this program does not, a line each."""


_WIKIPEDIA_TERMS = (
    "Text: Creative Commons Attribution-ShareAlike 4.0 and, for most of it, the GNU Free Documentation License.",
    "Whoever passes the text on, changed or not, names Wikipedia and its authors and keeps the license.",
    "https://dumps.wikimedia.org/legal.html, https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use",
    "The server asks programs for a User-Agent with a way to reach you (--contact, BERTBENCH_CONTACT), may refuse "
    "those without one, and limits connections per address; two are used here.",
)
_GUTENBERG_TERMS = (
    "The books are free of copyright in the United States; elsewhere, check the law of your country.",
    "The name Project Gutenberg is a trademark: read https://www.gutenberg.org/policy/license.html before you pass on "
    "files that carry it.",
)

SOURCES: dict[str, NamedSource] = {
    source.name: source
    for source in (
        NamedSource(
            name="wikipedia",
            what="articles of one Wikipedia: the pages-articles dump (XML, bz2)",
            base="https://dumps.wikimedia.org",
            terms=_WIKIPEDIA_TERMS,
            needs="the program says how much before it begins; English: over 20 GB",
            connections=2,
            key=lambda choice: f"{choice.wiki}-{choice.date}",
            plan=plan_dump,
        ),
        NamedSource(
            name="wikipedia-exports",
            what="the same from the MediaWiki Content File Exports, which are to replace the dumps; all namespaces",
            base="https://dumps.wikimedia.org",
            terms=_WIKIPEDIA_TERMS,
            needs="more than wikipedia: pages of all namespaces; sizes are not published in the list",
            connections=2,
            key=lambda choice: f"{choice.wiki}-{choice.date}",
            plan=plan_exports,
        ),
        NamedSource(
            name="squad",
            what="SQuAD 1.1 and 2.0, training and development sets (JSON)",
            base="https://rajpurkar.github.io/SQuAD-explorer/dataset",
            terms=(
                "Creative Commons Attribution-ShareAlike 4.0; the paragraphs are from Wikipedia.",
                "https://rajpurkar.github.io/SQuAD-explorer/",
            ),
            needs="82 MB",
            plan=plan_squad,
        ),
        NamedSource(
            name="pg19",
            what="books, instead of BookCorpus: 28,602 from Project Gutenberg, published before 1919, one .txt each",
            base="https://storage.googleapis.com",
            terms=(
                "The collection (DeepMind, https://github.com/google-deepmind/pg19): Apache License 2.0.",
                _GUTENBERG_TERMS[0],
                "Its authors advise against it for general-purpose models: language and views are dated.",
            ),
            needs="11.5 GB; --books-limit takes the first of the list only",
            connections=8,
            key=lambda choice: "all" if choice.books_limit is None else f"first-{choice.books_limit}",
            plan=plan_pg19,
        ),
        NamedSource(
            name="gutenberg",
            what="books: all of Project Gutenberg, in any language",
            terms=_GUTENBERG_TERMS,
            instead=(
                "Project Gutenberg's site is for people; programs may use its mirrors, or the address below with two "
                "seconds between requests (https://www.gutenberg.org/policy/robot_access.html), which wget does:",
                "  wget -w 2 -m -H 'https://www.gutenberg.org/robot/harvest?filetypes[]=txt&langs[]=en'",
                "Unpack the .zip files and give the folder of .txt files to `bertbench data pretrain --input`; their "
                "headers and footers are taken off there.",
            ),
        ),
        NamedSource(
            name="bookcorpusopen",
            what="books: 17,868 from smashwords.com, collected as a replacement of BookCorpus",
            terms=(
                "No license: the books are their authors', on the terms of smashwords.com "
                "(https://www.smashwords.com/about/tos); whether you may train on them is yours to find out.",
            ),
            needs="2.4 GB packed, 6.6 GB as text",
            instead=(
                "Not fetched here, as nobody with the rights to the books offers it. The card of the data set "
                "`bookcorpusopen` at Hugging Face says where it is; put its .txt files into a folder and give that to "
                "`bertbench data pretrain --input`.",
            ),
        ),
        NamedSource(
            name="bookcorpus",
            what="the books BERT was trained on; no longer distributed",
            terms=("No license; see https://arxiv.org/abs/2105.05241 for what is known of it.",),
            instead=(
                "It is no longer to be had from its authors. Use pg19 or gutenberg instead, or give any folder of .txt "
                "files to `bertbench data pretrain --input`.",
            ),
        ),
    )
}
"""Every name `bertbench data download` knows."""
