"""Every registered reader against damaged files: a result or an InputError, soon, and nothing else."""

import gzip
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.examples import examples
from support.profiles import sample

from analysis.diagnose.explain import explain
from analysis.open import Source, open_sources
from analysis.readers.registry import READERS, find_reader, read_head
from analysis.render.perfetto import write_perfetto
from common.errors import InputError

SECONDS = 2.0
"""Processor time that one damaged input of a few KB may take."""


STRUCTURE = b"{}[]():,;\"'\n\t =%#<>"
TOKENS = (
    b"NaN", b"-Infinity", b"inf", b"null", b"true", b"[]", b"{}", b'""', b"[N/A]", b"n/a", b"-1", b"0", b"1e308",
    b"-0.0", b"0x1f", b"18446744073709551616", b"9" * 400, b"1e999999999", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[31m",
    b"%s%n", b"../../etc/passwd", b"<script>alert(1)</script>", b"'; DROP TABLE x; --", b"\r\n", b'"', b"\\u0000",
)  # fmt: skip
HUGE = (b"9" * 19, b"9" * 60, b"1e400", b"-9223372036854775809", b"7" * 5000)


def damage(data: bytearray, dice: random.Random) -> None:
    """Flip bits, cut the end, make a digit a huge number, mix up the structure, or put something else in a place."""
    kind = dice.choice(("flip", "cut", "number", "structure", "part", "part", "part"))
    start = dice.randrange(len(data) + 1)
    if kind == "cut":
        del data[start:]
    elif kind == "part":
        stop = min(len(data), start + dice.choice((1, 2, 8, 64, 1024)))
        part = bytes(data[start:stop])
        others = (b"", 3 * part, 20 * part, bytes(len(part)), part + dice.randbytes(100), dice.choice(TOKENS))
        data[start:stop] = dice.choice(others)
    else:
        wanted = {"flip": range(256), "number": b"0123456789", "structure": STRUCTURE}[kind]
        if places := [at for at, byte in enumerate(data) if byte in wanted]:
            place = dice.choice(places)
            flipped = bytes([data[place] ^ 1 << dice.randrange(8)])
            others = {"flip": flipped, "number": dice.choice(HUGE), "structure": bytes([dice.choice(STRUCTURE)])}
            data[place : place + 1] = others[kind]


def mutations(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield FUZZ_INPUTS damaged versions of `data`, the same ones for the same seed."""
    dice = random.Random(seed)
    for _ in range(int(os.environ.get("FUZZ_INPUTS") or examples(300))):
        damaged = bytearray(data)
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            damage(damaged, dice)
        yield bytes(damaged)


@pytest.mark.parametrize("name", READERS)
def test_the_sample_of_a_reader_is_recognised_and_read(name: str, tmp_path: Path) -> None:
    path = sample(name, tmp_path / "sample")
    assert find_reader(read_head(path)) == name and open_sources(path).kinds == (name,)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_give_a_result_that_can_be_explained_or_an_input_error(name: str, tmp_path: Path) -> None:
    data = sample(name, tmp_path / "sample").read_bytes()
    packed = gzip.compress(data)
    cuts = [packed[:end] for end in range(1, len(packed), max(1, len(packed) // 10))]
    path = tmp_path / "damaged"
    explained = 0
    for number, damaged in enumerate([*mutations(data, seed=len(name)), *cuts]):
        path.write_bytes(damaged)
        began = time.process_time()
        try:
            source: Source | None = open_sources(path)
        except InputError as error:
            assert str(error)
            source = None
        assert time.process_time() - began < SECONDS, f"damaged input {number} of {name} took too long"
        if source is not None and explained < 5:
            explained += len(explain(source)) > 0
            if source.timelines:
                write_perfetto(source.timelines, tmp_path / "out.json")
                json.loads((tmp_path / "out.json").read_text())
    assert explained


ODD: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "blank": lambda path: path.write_bytes(b" \n" * 1000),
    "empty gzip": lambda path: path.write_bytes(gzip.compress(b"")),
    "zeros": lambda path: path.write_bytes(bytes(100_000)),
    "junk": lambda path: path.write_bytes(random.Random(1).randbytes(100_000)),
    "one long line": lambda path: path.write_text("a," * 2_000_000),
    "Git LFS pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "empty folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "loop of links": lambda path: path.symlink_to(path),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "SQLite header alone": lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(84)),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.timeout(20)
def test_files_that_are_no_profile_are_refused_with_their_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    ODD[kind](path)
    with pytest.raises(InputError, match=r"odd\.json"):
        open_sources(path)
