"""What a refusal has to be: its code, and the facts that its message names; never how it is worded."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from common.errors import BertbenchError, Code


@contextmanager
def refused(
    code: Code, *facts: object, kind: type[BertbenchError] = BertbenchError
) -> "Iterator[pytest.ExceptionInfo[BertbenchError]]":
    """Hold what happens inside to be refused with this code, by a message that names every fact (its `str`)."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    missing = [str(fact) for fact in facts if str(fact) not in str(caught.value)]
    assert not missing, f"not in {str(caught.value)!r}: {missing}"


def code_of(stderr: str) -> str:
    """Return the code at the end of the last message on stderr of a command; "" where there is none."""
    found: list[str] = re.findall(r"\[([a-z]+(?:-[a-z]+)+)\]$", stderr.strip(), re.MULTILINE)
    return found[-1] if found else ""


def check_refusal(stderr: str, code: Code, *facts: object) -> None:
    """Hold stderr of a command to end in a refusal with this code, whose text names every fact (its `str`)."""
    assert code_of(stderr) == code, stderr
    missing = [str(fact) for fact in facts if str(fact) not in stderr]
    assert not missing, f"not in {stderr!r}: {missing}"
    assert "Traceback" not in stderr
