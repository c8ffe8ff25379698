"""Entry point: runs the command and converts expected errors to one message and an exit code.

Exit codes: 0 done or stopped in time, 1 a check failed (as of compare), 2 bad usage or input, 3 part of a sweep or the
training failed, 4 not conclusive (compare), 130 interrupted, 143 ended by SIGTERM.
"""

import errno
import gc
import io
import os
import signal
import sys

from bench.cli.progress import terminal_text
from common.errors import BertbenchError

USAGE = """usage: bertbench COMMAND [options]

Measures and explains BERT training speed. Start: `bertbench doctor`.

  doctor                   check this machine and which tools can run on it
  data, convert            prepare data sets; convert checkpoints
  train                    train or resume a task, or compare several
  predict                  predict with a trained model
  eval                     official scores
  tune                     search: best score, throughput
  throughput, measure      measure samples/s of BERT; of any PyTorch script
  speed-of-light           measure the floor of a step, and where time is lost
  comm                     benchmark collectives by message size
  profile                  profile training steps
  analyze, core-util       explain a profile; utilization of FMA, Tensor cores
  allreduce                exposed communication
  launch, submit           run on nodes; submit a cluster job
  report                   HTML page of a run, a profile or a classification
  compare                  find regressions: between two runs, over many runs

Options, examples: bertbench COMMAND --help. Also: -V.
"""


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    code = run(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # too late
    gc.freeze()  # the process ends: without this, Python would search everything for garbage again
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run the command line and return its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? where it has no character
    try:
        try:
            return _command(argv)
        finally:
            print(end="", flush=True)
    except KeyboardInterrupt as error:
        if os.environ.get("RANK", "0") == "0":  # of several ranks one says it
            print("bertbench: interrupted; run the same command again: finished results are kept", file=sys.stderr)
        return 143 if isinstance(error, _Terminated) else 130
    except BertbenchError as error:
        problem = terminal_text(error.shown())
    except PermissionError as error:
        problem = f"cannot use {error.filename}: {error.strerror} [path-unreadable]"
    except OSError as error:
        if error.filename or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # unwritten output must not fail again at exit
        if error.errno == errno.EPIPE:  # the reader of our output (head, less) has gone
            return 0
        problem = f"cannot write the output: {error.strerror} [write-failed]"
    except (MemoryError, RuntimeError) as error:
        from bench.run.resources import ran_out_of_memory

        if not ran_out_of_memory(error):
            raise
        problem = "out of memory: use fewer --workers or --devices, or smaller batches [out-of-memory]"
    print(f"bertbench: {problem}", file=sys.stderr)
    return 2


def _terminate(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a batch system may send it again, during the cleanup
    raise _Terminated


def _command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"bertbench {version('bertbench')}")
        return 0
    from bench.cli import dispatch

    return dispatch.call(argv)


if __name__ == "__main__":
    main()
