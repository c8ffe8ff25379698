"""A small text of its own in the forms of all data sets, the same on every machine: no random numbers, no clock."""

import bz2
import json
from pathlib import Path

WORDS = (
    "the", "river", "old", "bridge", "stone", "runs", "under", "a", "red", "and", "blue", "sky", "near", "Ada",
    "walks", "to", "market", "with", "seven", "books", "of", "café", "naïve", "unbelievable", "don't", "1843", "3.5",
    "London", "writes", "about", "engines", "that", "count", "numbers", "for", "every", "morning", "light",
)  # fmt: skip
NAMES = ("Ada", "Bea", "Cleo", "Dora", "Eva", "Fay")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def sentence(number: int) -> str:
    places = range(5 + number * 7 % 11)
    words = [WORDS[(number * 13 + place * place + place * (3 + number % 5)) % len(WORDS)] for place in places]
    end = "?!."[min(number % 9, 2)]
    text = " ".join(words)
    return f"{text[0].upper()}{text[1:]}{end}"


def sentences(first: int, count: int) -> str:
    return " ".join(sentence(number) for number in range(first, first + count))


def vocabulary(folder: Path) -> Path:
    """Write a vocabulary of half the words, so that others are cut, and of all letters."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [word.lower() for word in WORDS[::2] if word.isalpha()]
    pieces = dict.fromkeys([*special, *words, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,;:?!'\"-()"])
    return _write(folder / "vocab.txt", "".join(f"{piece}\n" for piece in pieces))


def corpus(folder: Path) -> Path:
    for book in range(2):
        paragraphs = (sentences(500 * book + 6 * number, 6) for number in range(40))
        _write(folder / f"book-{book}.txt", "\n\n".join(paragraphs) + "\n")
    pages = [_page(number) for number in range(30)]
    redirect = "<redirect title='P0'/><revision><text>#REDIRECT [[P0]]</text></revision>"
    pages.append(f"<page><title>R</title><ns>0</ns>{redirect}</page>")
    dump = f"<mediawiki xml:lang='en'><siteinfo></siteinfo>{''.join(pages)}</mediawiki>"
    (folder / "own-pages-articles.xml.bz2").write_bytes(bz2.compress(dump.encode()))
    return folder


def _page(number: int) -> str:
    text = (
        f"{{{{Infobox|name=P{number}}}}}'''P{number}''' {sentences(1000 + 8 * number, 4)}&lt;ref&gt;away&lt;/ref&gt;\n"
        f"[[File:a.png|thumb|away]] See [[London|the {WORDS[number]}]] and [http://example.org {WORDS[-number]}].\n\n"
        f"== History ==\n{sentences(1004 + 8 * number, 4)}\n{{|\n| away || away\n|}}\n* {sentence(number)}\n"
    )
    return (
        f"<page><title>P{number}</title><ns>0</ns><id>{number + 1}</id><revision><text>{text}</text></revision></page>"
    )


def squad(folder: Path) -> tuple[Path, Path]:
    return _questions(folder / "train-v2.0.json", 24, 0), _questions(folder / "dev-v2.0.json", 8, 300)


def _questions(path: Path, contexts: int, first: int) -> Path:
    paragraphs = []
    for number in range(contexts):
        context = sentences(first + 9 * number, 4 + number % 6)
        words, questions = context.split(), []
        for question in range(3):
            begin = (5 * number + 7 * question) % (len(words) - 3)
            answer = " ".join(words[begin : begin + 1 + question])
            at = len(" ".join(words[:begin])) + (begin > 0)
            questions.append(
                {"id": f"{number}-{question}", "question": f"What of {words[(begin + 9) % len(words)]}?"}
                | {"is_impossible": question == 2}
                | {"answers": [] if question == 2 else [{"text": answer, "answer_start": at}]}
            )
        paragraphs.append({"context": context, "qas": questions})
    return _write(path, json.dumps({"version": "v2.0", "data": [{"title": "own", "paragraphs": paragraphs}]}))


def gap(folder: Path) -> tuple[Path, Path]:
    return _mentions(folder / "gap-development.tsv", 60), _mentions(folder / "gap-validation.tsv", 24)


def _mentions(path: Path, rows: int) -> Path:
    columns = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL"
    lines = [columns.replace(" ", "\t")]
    for number in range(rows):
        a, b = NAMES[number % 6], NAMES[(number + 1 + number // 6 % 5) % 6]
        pronoun = ("she", "his", "her", "he")[number // 3 % 4]
        before = sentence(number).replace("Ada", "Gus")
        text = f"{before} {a} {('praised', 'thanked', 'asked')[number % 3]} {b} because {pronoun} mattered."
        at = [str(text.rindex(f" {word} ") + 1) for word in (pronoun, a, b)]
        answers = [str(number % 3 == place).upper() for place in (1, 2)]
        split = path.stem.partition("-")[2]
        cells = [f"{split}-{number + 1}", text, pronoun, at[0], a, at[1], answers[0], b, at[2], answers[1], "u"]
        lines.append("\t".join(cells))
    return _write(path, "\n".join(lines) + "\n")


def glue(folder: Path) -> Path:
    header = "index genre filename year old_index source1 source2 sentence1 sentence2 score".replace(" ", "\t")
    for split, rows in (("train", 60), ("dev", 20)):
        first = 0 if split == "train" else 200
        cola = [f"gj04\t{number % 2}\t*\t{sentence(first + number)}" for number in range(rows)]
        stsb = [
            f"{number}\tnews\tf\t2012\t1\tnone\tnone\t{sentence(first + number)}\t{sentence(first + 3 * number)}\t"
            f"{number % 11 / 2:.3f}"
            for number in range(rows)
        ]
        _write(folder / "CoLA" / f"{split}.tsv", "\n".join(cola) + "\n")
        _write(folder / "STS-B" / f"{split}.tsv", "\n".join([header, *stsb]) + "\n")
    return folder


def texts(folder: Path) -> Path:
    """Write a CSV of texts with three labels; some are long, some hold line breaks and quotes."""
    lines = ["text,label"]
    for number in range(120):
        text = sentences(number, 1 + number % 3) + ('\nand ""more"", too' if number % 7 == 0 else "")
        lines.append(f'"{("red ", "green ", "blue ")[number % 3]}{text}",{("one", "two", "three")[number % 3]}')
    return _write(folder / "texts.csv", "\n".join(lines) + "\n")


def _write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", newline="")
    return path
