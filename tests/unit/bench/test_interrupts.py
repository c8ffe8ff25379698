"""SIGTERM and Ctrl-C of the command line are neither lost nor a traceback where Python cannot raise them."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

START = """
import os, signal, sys, time
from bench.cli import interrupts
sys.unraisablehook = interrupts.not_raised
interrupts.listen()
number = signal.Signals[sys.argv[1]]
"""
NUMBERS = pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])


def ended(code: str, number: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code that is interrupted; it prints what it reached."""
    command = [sys.executable, "-c", START + textwrap.dedent(code), number]
    path = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[3])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


@NUMBERS
@pytest.mark.parametrize(
    ("seconds", "longest", "reached"), [(0.1, 5.0, "imported interrupted"), (60, 0.3, "interrupted")]
)
def test_a_module_is_imported_to_its_end_unless_that_takes_long(
    number: str, seconds: float, longest: float, reached: str, tmp_path: Path
) -> None:
    (tmp_path / "slow_module.py").write_text(
        f"import os, signal, sys, time\nos.kill(os.getpid(), signal.Signals[sys.argv[1]])\ntime.sleep({seconds})\n"
        "print('imported')\n"
    )
    code = f"""
    interrupts._LONGEST_IMPORT_SECONDS = {longest}
    try:
        import slow_module
        time.sleep(60)
    except KeyboardInterrupt:
        print('interrupted')
    """
    began = time.monotonic()
    process = ended(code, number, tmp_path)
    assert (process.stdout.split(), process.stderr, process.returncode) == (reached.split(), "", 0)
    assert time.monotonic() - began < 30


@NUMBERS
def test_one_that_comes_while_an_object_is_deleted_is_not_lost(number: str, tmp_path: Path) -> None:
    code = """
    class Deleted:
        def __del__(self):
            os.kill(os.getpid(), number)
            time.sleep(0.01)
    try:
        Deleted()
        time.sleep(10)
    except KeyboardInterrupt:
        print('interrupted')
    """
    process = ended(code, number, tmp_path)
    assert (process.stdout.split(), process.stderr, process.returncode) == (["interrupted"], "", 0)


def test_another_exception_there_is_still_printed(tmp_path: Path) -> None:
    code = """
    class Deleted:
        def __del__(self):
            raise ValueError('of the object')
    Deleted()
    """
    process = ended(code, "SIGTERM", tmp_path)
    assert "of the object" in process.stderr


def test_an_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    code = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupts.listen()
    os.kill(os.getpid(), signal.SIGINT)
    print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
    """
    assert ended(code, "SIGTERM", tmp_path).stdout == "True\n"
