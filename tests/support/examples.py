"""How many examples property tests draw."""

import os


def examples(most: int) -> int:
    """Return a quarter of `most` examples in `make test`, all in `make fuzz` (TEST_EXAMPLES=all)."""
    return most if os.environ.get("TEST_EXAMPLES") == "all" else max(5, most // 4)
