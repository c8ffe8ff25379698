"""Which texts are trained on, evaluated on, and kept for the end. Done inside SQLite, which sorts on disk."""

import hashlib
import sqlite3
from collections.abc import Sequence

import numpy as np

# Texts that are equal to the model have one key and stay together, whatever their labels say: the smallest label
# stands for them.
_KEYS = """
CREATE TEMP TABLE keys AS SELECT key, min(label) AS label FROM texts GROUP BY key;
CREATE TEMP TABLE places AS
    SELECT key, row_number() OVER (ORDER BY label, key) - 1 AS place FROM keys
    WHERE label IN (SELECT label FROM keys GROUP BY label HAVING count(*) > 1);
"""
# Every n-th place of an order by label is one: each label has its share, up to one text.
_TAKE = """
CREATE TEMP TABLE chosen_{split} AS
    SELECT key FROM places WHERE CAST((place + 1) * {share!r} AS INTEGER) > CAST(place * {share!r} AS INTEGER);
UPDATE texts SET split = '{split}' WHERE key IN (SELECT key FROM chosen_{split});
"""
_REST = """
CREATE TEMP TABLE rest AS
    SELECT key, row_number() OVER (ORDER BY place) - 1 AS place FROM places
    WHERE key NOT IN (SELECT key FROM chosen_test);
DROP TABLE places;
ALTER TABLE rest RENAME TO places;
"""
# What no text of is trained on cannot be found either.
_TRAIN_ON_EACH = """
UPDATE texts SET split = 'train'
    WHERE key IN (SELECT min(key) FROM texts GROUP BY label HAVING sum(split = 'train') = 0);
"""
_END = "DROP TABLE keys; DROP TABLE places; DROP TABLE chosen_test; DROP TABLE chosen_validate;"


def text_key(pieces: Sequence[int], seed: int) -> int:
    """Return the hash of a text that the division goes by, a signed number of 64 bits.

    It is that of its word pieces: what is one text to the model, whatever its capitals, accents and white space in the
    file, has one key. Another vocabulary divides otherwise.
    """
    content = np.asarray(pieces, dtype="<i4").tobytes()
    digest = hashlib.blake2b(content, digest_size=8, salt=_salt(seed)).digest()
    return int.from_bytes(digest, "little", signed=True)


def divide(connection: sqlite3.Connection, validation: float, test: float) -> None:
    """Set `split` of all texts, which are 'train' before.

    Texts of equal word pieces come into one split. Of the different texts, in the order of their labels and keys,
    every n-th one is taken, so that each label has its share in each split, up to a text or two: of each label at
    least one text is trained on.

    Args:
        connection: a database with the tables of bert.tasks.classify.schema.
        validation: share of the texts for 'validate'.
        test: share of the texts for 'test'; the two are below 1 together.
    """
    connection.executescript(_KEYS)
    connection.executescript(_TAKE.format(split="test", share=float(test)))
    connection.executescript(_REST)
    connection.executescript(_TAKE.format(split="validate", share=float(validation / (1 - test))))
    connection.executescript(_TRAIN_ON_EACH)
    connection.executescript(_END)


def _salt(seed: int) -> bytes:
    return (seed % 2**64).to_bytes(8, "little")
