"""The book that every test of this folder writes into; `make release-test` keeps it in OUT."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from truth_book import Book


@pytest.fixture(scope="session")
def book() -> Iterator[Book]:
    """Rows of all tests, written down after the last one, whatever failed."""
    found = Book()
    yield found
    found.write(Path(os.environ.get("TRUTH_OUT", "runs/truth")))
