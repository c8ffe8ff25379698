"""Texts that people read use the field's terms, American spelling and one number style.

`python tests/contract/test_words.py [PATH ...]` prints every violation below the given files or folders.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

GENERATED = ("docs/reference/columns.md", "docs/reference/commands.md", "docs/reference/errors.md", "docker/locks/")
MARKUP = (".html", ".jinja", ".sh", ".toml", ".txt")
CODE = (".c", ".css", ".js")
WITHOUT_SUFFIX = ("Makefile", ".ci/run", "docker/Dockerfile")

# Regular expressions, where a blank is any white space, and what to write instead. The exceptions are names of counts
# in databases.
PHRASES = {
    r"told": "reported, given, distinguished",
    r"sisters": "collectives, related tools",
    r"(has|have|had) come to": "results; reached",
    r"(go|goes|going|gone) on with": "resume, continue",
    r"(held|hold|holds|holding) (\w+ )?against": "compared with, checked against",
    r"held to": "checked for, required to",
    r"(taken|take|takes|taking) (\w+ )?apart": "broken down",
    r"made[- ]up": "synthetic, composed",
    r"levers?": "optimization",
    r"recomputing|recomputation|recomputed activations?": "activation checkpointing",
    r"(?<!dot[- ])products|matrix products?": "GEMMs",
    r"nothing hides|(where|if|when) nothing (is|was) (said|given|named)": "exposed; by default",
    r"stands? (in|at|there|here|beside|between|alone|still)(?!, read)": "is in; see",
    r"more stands": "see",
    r"(is|are|it) not decided|undecided": "not conclusive",
    r"is (left )?open": "too close to call, unknown",
    r"of no known kind": "unrecognized format",
    r"line ends(?! within a field)": "line endings",
    r"names what (is|was) not": "out of range, unknown",
    r"differ anyway": "normal spread",
    r"changes who": "varies",
    r"likewise": "repeat the description or leave it out",
    r"anew|once more": "again",
    r"(is|are|was|were) mended|mends?": "fix",
    r"speaks? of": "describe, mention",
    r"whoever|somebody else": "anyone who; name the actor",
    r"(say|says|said|saying) of": "report about",
    r"(come|comes|came) to(?! \d)": "result in, results",
    r"(is|are|was|were|be) said": "is reported, is shown",
    r"(gone|goes|go|going|went) on": "continue, resume",
    r"waits? to be": "name what to do",
    r"(is|are|was|were) not there|there twice": "missing, duplicate",
    r"doubts?|doubtful": "caution",
    r"misses the (trace|step|measurement)": "reproduces the trace to within 0.1 %",
    r"devices simulated": "simulation error on the measured devices",
    r"holds? it to": "checks against",
}

# Docstrings that only continue the name they document.
RIDDLE = re.compile(r"\s*(Whose|Which|Likewise|Ditto|Whether|Where)\.\s*")

ISE = (
    "amort author canonical capital categor central character custom emphas equal factor familiar final formal "
    "general harmon initial item linear local material maxim memor minim neutral normal optim organ parallel personal "
    "prior quant random real recogn regular sanit serial special stabil standard summar symbol synchron token util "
    "vector visual"
)
BRITISH = (
    rf"\w*({'|'.join(ISE.split())})is(e|ed|es|er|ers|ing|ations?)",
    r"\w*(behavi|col|fav|flav|harb|hon|lab|neighb)our\w*",
    r"(centre|fibre|litre|kilometre|metre|licence|defence|offence|grey|catalogue|programme|storey|cheque)[sd]?",
    r"(analyse|analysed|analyser|analysing|judgement|artefact|artefacts|whilst|amongst|learnt|spelt|fulfil|ageing)",
    r"\w*(label|model|travel|cancel|signal|channel|level|total)l(ed|ing|er)",
)
NUMBERS = (r"(\d|\})%(?!\w)", r"\de\+\d", r"\de-0\d", r"(?<=[\s(|<])\.\d+(?![\w.])")  # 66.1 %, 14500 ms, 1.4e-6, 0.5

FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
# Code, options, settings, paths and names of code; the targets of links.
NOT_PROSE = re.compile(
    r"`[^`]*`|\]\([^)]*\)|https?://\S+|--[\w-]+|\b\w+=\S*|[\w.-]*(?<=\w)[/_](?=\w)[\w./-]*|\b[A-Z]{3,}\b"
)


# Comments and strings in CODE.
CODE_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/|(\"|'|`)(?:\\.|(?!\1)[^\\\n])*\1", re.DOTALL)


def pattern(expression: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])({expression})(?![\w-])".replace(" ", r"\s+"), re.IGNORECASE)


CHECKS = {
    **{pattern(expression): better for expression, better in PHRASES.items()},
    **{pattern(expression): "American spelling" for expression in BRITISH},
}
NUMBER_CHECKS = {re.compile(expression): "numbers as in 66.1 %, 14.5 s" for expression in NUMBERS}


def blanked(expression: re.Pattern[str], text: str) -> str:
    """The text with every match replaced by one mark and its line breaks."""
    return expression.sub(lambda match: "□" + "\n" * match[0].count("\n"), text)


def comments(text: str) -> Iterator[tuple[int, str]]:
    """The comments of a Python file with their lines; those on consecutive lines are one."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] > last + 1:
            yield last - len(block) + 1, "\n".join(block)
            block = []
        block.append(token.string.lstrip("#"))
        last = token.start[0]
    if block:
        yield last - len(block) + 1, "\n".join(block)


def strings(text: str) -> Iterator[tuple[int, str]]:
    """The string literals of a Python file that hold several words, values of f-strings as {}."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            if id(node) not in inside:
                yield node.lineno, "".join(shown(part, inside) for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            value = node.value if re.search(r"\w(\s+\w|\.$)", node.value) else ""
            yield node.lineno, re.sub(r"^ +\w+:", "", value, flags=re.MULTILINE)


def shown(part: ast.expr, inside: set[int]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    if part.format_spec is None:
        return "{}"
    inside.add(id(part.format_spec))
    form = ast.unparse(part.format_spec)
    return "{}%" if form.endswith("%'") else "1e+04" if form.endswith("e'") else "{}"


def texts(name: str, text: str) -> Iterator[tuple[int, str]]:
    """What people read in a file, with the number of the line where it begins."""
    if name.endswith(".py"):
        yield from comments(text)
        yield from strings(text)
    elif name.endswith(".md"):
        history = text.find("\n## [0") if name == "CHANGELOG.md" else -1
        yield 1, blanked(FENCE, text if history < 0 else text[:history])
    elif name.endswith(CODE):
        for match in CODE_TEXT.finditer(text):
            if re.search(r"\w\s+\w", match[0]) or match[0].startswith("/"):
                yield 1 + text.count("\n", 0, match.start()), match[0]
    else:
        yield 1, re.sub(r"^(\s*)#+", r"\1", text, flags=re.MULTILINE)


def violations(name: str, text: str) -> list[str]:
    """One line for every phrase of a file to rewrite."""
    checks = {**CHECKS, **(NUMBER_CHECKS if name.endswith((".md", ".py")) else {})}
    found = []
    for line, part in texts(name, text):
        if RIDDLE.fullmatch(part):
            found.append((line, part.strip(), "say it or leave it out"))
        prose = blanked(NOT_PROSE, part)
        for check, better in checks.items():
            for match in check.finditer(prose):
                found.append((line + prose.count("\n", 0, match.start()), " ".join(match[0].split()), better))
    return [f"{name}:{line}: {phrase!r}: {better}" for line, phrase, better in sorted(found)]


def files(*below: str) -> list[str]:
    """The files of the repository with texts for people, below the given paths."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *below],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        name
        for name in listed.stdout.splitlines()
        if (name.endswith((".md", ".py", *MARKUP, *CODE)) or name in WITHOUT_SUFFIX)
        and not name.startswith(("tests/", *GENERATED))
        and (ROOT / name).is_file()
    ]


def all_violations(*below: str) -> list[str]:
    return [line for name in files(*below) for line in violations(name, (ROOT / name).read_text(encoding="utf-8"))]


def test_no_text_has_a_phrase_to_avoid() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("a copy without git does not say which files are its own")
    found = all_violations()
    assert not found, "\n".join(found)


def test_checkers_catch() -> None:
    page = (
        "Levers are\nmade\nup.\n```\ntold\n```\n`told` --levers [a](told.md) 5% colour 1.45e+04 LEVERS\n"
        "Utilisation .5 1.5\n"
    )
    found = ["1 Levers", "2 made up", "7 5%", "7 5e+0", "7 colour", "8 .5", "8 Utilisation"]
    assert [phrase(line) for line in violations("a.md", page)] == found
    assert [phrase(line) for line in violations("a.js", "let colour = 1; // grey\nlet a = 'told';\nb = 'is told'")] == [
        "1 grey",
        "3 told",
    ]
    module = (
        'def told():\n    """Whose."""\n    return f"{told:.1%} anew", "told", "is\\tonce more"  # of\n    # sisters\n'
    )
    assert [phrase(line) for line in violations("a.py", module)] == [
        "2 Whose.",
        "3 anew",
        "3 once more",
        "3 }%",
        "4 sisters",
    ]


def phrase(violation: str) -> str:
    """The line and the phrase of a violation."""
    return " ".join([violation.split(":")[1], violation.split("'")[1]])


if __name__ == "__main__":
    print("\n".join(all_violations(*sys.argv[1:])))
