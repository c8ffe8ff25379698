"""A lock on a folder: one process at a time, and nothing left behind where that is asked for."""

import threading
import time
from pathlib import Path

import pytest

from common.locks import locked


def test_a_lock_that_is_to_be_removed_holds_others_off_and_is_gone_when_all_are_done(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with locked(tmp_path, "another", "wait", wait=True, name=".a.lock", remove=True):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(most) == 80 and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="stopped"), locked(tmp_path, "x", "y", name=".a.lock", remove=True):
        raise ValueError("stopped")
    assert not list(tmp_path.iterdir())
