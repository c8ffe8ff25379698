"""How much tests draw that are marked `more`: less in `make test` than in `make test-slow`, which runs them again."""

import os

DRAWS_ALL = os.environ.get("TEST_EXAMPLES") == "all"


def examples(most: int) -> int:
    """Return how many examples to draw: a quarter of `most`, or all (TEST_EXAMPLES=all)."""
    return most if DRAWS_ALL else max(5, most // 4)
