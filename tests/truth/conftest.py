"""The book that every test of this folder writes into; `make truth-test` keeps it in OUT."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.truth_book import Book

from bench.machine.devices import find_devices
from bench.machine.environment import capture


@pytest.fixture
def book(whole_book: Book) -> Book:
    """The book, at the first row of a test."""
    whole_book.begin_test()
    return whole_book


@pytest.fixture(scope="session")
def whole_book() -> Iterator[Book]:
    """Rows of all tests, written down after the last one, whatever failed."""
    found = Book()
    yield found
    found.write(Path(os.environ.get("TRUTH_OUT", "runs/truth")), capture(find_devices("cpu")))
