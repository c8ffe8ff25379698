"""Damaged versions of a valid input, the same ones for the same seed: for tests that readers survive any file."""

import os
import random
from collections.abc import Callable, Iterator

from support.examples import examples

_STRUCTURE = b"{}[]():,;\"'\n\t =%#<>"
_TOKENS = (
    b"NaN", b"-Infinity", b"inf", b"null", b"true", b"[]", b"{}", b'""', b"[N/A]", b"n/a", b"-1", b"0", b"1e308",
    b"-0.0", b"0x1f", b"18446744073709551616", b"9" * 400, b"1e999999999", b"\xff\xfe", b"\xed\xa0\x80", b"\x1b[31m",
    b"%s%n", b"../../etc/passwd", b"<script>alert(1)</script>", b"'; DROP TABLE x; --", b"\r\n", b'"', b"\\u0000",
)  # fmt: skip


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` damaged versions of `data`, each with one to four kinds of damage; equal for equal arguments."""
    dice = random.Random(seed)
    for _ in range(count):
        found = bytearray(data)
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            dice.choice(_DAMAGES)(found, dice)
        yield bytes(found)


def count_from_environment(most: int = 300) -> int:
    """Return how many damaged inputs to try per reader: FUZZ_INPUTS, else by support.examples."""
    return int(os.environ.get("FUZZ_INPUTS") or examples(most))


def _place(data: bytearray, dice: random.Random) -> tuple[int, int]:
    """A slice, short as a rule."""
    start = dice.randrange(len(data) + 1)
    return start, min(len(data), start + dice.choice((1, 2, 8, 64, 1024)))


def _flip(data: bytearray, dice: random.Random) -> None:
    for _ in range(dice.choice((1, 3, 30))):
        if data:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _delete(data: bytearray, dice: random.Random) -> None:
    start, stop = _place(data, dice)
    del data[start:stop]


def _insert(data: bytearray, dice: random.Random) -> None:
    start, _ = _place(data, dice)
    data[start:start] = dice.randbytes(dice.choice((1, 4, 100)))


def _cut(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data) + 1) :]


def _duplicate(data: bytearray, dice: random.Random) -> None:
    start, stop = _place(data, dice)
    where = dice.randrange(len(data) + 1)
    data[where:where] = data[start:stop] * dice.choice((1, 2, 20))


def _huge_number(data: bytearray, dice: random.Random) -> None:
    digits = [position for position, byte in enumerate(data) if 48 <= byte <= 57]
    if digits:
        start = dice.choice(digits)
        data[start : start + 1] = dice.choice((b"9" * 19, b"9" * 60, b"1e400", b"-9223372036854775809", b"7" * 5000))


def _swap_structure(data: bytearray, dice: random.Random) -> None:
    found = [position for position, byte in enumerate(data) if byte in _STRUCTURE]
    if found:
        data[dice.choice(found)] = dice.choice(_STRUCTURE)


def _token(data: bytearray, dice: random.Random) -> None:
    start, stop = _place(data, dice)
    data[start:stop] = dice.choice(_TOKENS)


def _nul(data: bytearray, dice: random.Random) -> None:
    start, stop = _place(data, dice)
    data[start:stop] = bytes(stop - start)


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _delete, _insert, _cut, _duplicate, _huge_number, _swap_structure, _token, _nul,
)  # fmt: skip
