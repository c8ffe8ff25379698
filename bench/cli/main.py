"""Entry point: runs the command and converts expected errors to one message and an exit code.

Exit codes: 0 done or stopped in time, 1 a check failed (as of compare), 2 bad usage or input, 3 part of a sweep or the
training failed, 4 not conclusive (compare), 130 interrupted.
"""

import errno
import gc
import io
import os
import signal
import sys
import types

from bench.cli.progress import terminal_text
from bench.run.out_of_memory import ran_out_of_memory
from common.errors import BertbenchError

_BEGIN_AGAIN = (
    "doctor", "data csv", "convert", "predict", "eval", "analyze", "core-util", "allreduce", "submit",
    "report", "compare", "measure",
)  # fmt: skip
"""Commands that do not resume: another call starts again."""

_OUT_OF_MEMORY = "out of memory: free some, raise the limit (`ulimit`, cgroup), or use fewer --workers or --devices"
# Commands that only read. Python's own limit, hundreds, would search the objects of imported libraries again and again,
# for a tenth of a short command's time. Those that measure or train keep it: ranks may run in this process.
_READS = frozenset({"allreduce", "analyze", "compare", "core-util", "report"})
_OBJECTS_PER_COLLECTION = 100_000
# Why a path cannot be used, wherever a command meets it, and what to do.
_UNUSABLE: dict[int | None, str] = {
    errno.EACCES: "permission denied; ask the owner of the file and its folders for access (chmod -R +rX)",
    errno.ENAMETOOLONG: "the name is too long; give a shorter path",
    errno.ELOOP: "its symbolic links lead back to themselves; remove or correct one",
}
_LOOP = "Symlink loop from "  # of Path.resolve before Python 3.13, with the path's repr

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

Options, examples: bertbench COMMAND --help. Also: -V, --completion SHELL.
"""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in _READS:
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
    code = run(words)
    for number in (signal.SIGINT, signal.SIGTERM):  # all output is written: they would only change the exit code
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()  # the process ends: without this, Python would search everything for garbage again
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run the command line and return its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? where it has no character
    try:
        return _written(argv)
    except BertbenchError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of a launcher that ends the other ranks too
        print(f"bertbench: {terminal_text(error.shown())}", file=sys.stderr)
        signal.signal(signal.SIGTERM, _interrupt)
        return 2
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":  # of several ranks one says it
            print(f"bertbench: interrupted; {_after_interrupt(argv)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        sys.stderr.close()
        return 0
    except Exception as error:
        if (why := _unusable_path(error)) is not None:
            print(f"bertbench: cannot use {terminal_text(why)} [path-unreadable]", file=sys.stderr)
            return 2
        if ran_out_of_memory(error):
            print(f"bertbench: {_OUT_OF_MEMORY}; {_after_interrupt(argv)} [out-of-memory]", file=sys.stderr)
            return 2
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        print(
            f"bertbench: cannot write the output: {error.strerror}; redirect it to another place [write-failed]",
            file=sys.stderr,
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # unwritten output must not fail again at exit
        return 2


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    """End the command as Ctrl-C does; a batch system may send SIGTERM again, which must not interrupt the cleanup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _written(argv: list[str]) -> int:
    """Run the command, write all its output and return its exit code. Raises OSError if it cannot be written."""
    try:
        code = _command(argv)
    except SystemExit:  # the help of a command
        print(end="", flush=True)
        raise
    print(end="", flush=True)
    return code


def _command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"bertbench {version('bertbench')}")
        return 0
    if argv[0] == "--completion":
        from bench.cli.completion import completion

        print(completion(argv[1:]), end="")
        return 0
    from bench.cli.dispatch import call

    return call(argv)


def _after_interrupt(argv: list[str]) -> str:
    if argv[0] in _BEGIN_AGAIN or " ".join(argv[:2]) in _BEGIN_AGAIN:
        return "run the same command to start again"
    return "run the same command to resume; finished results are kept"


def _unusable_path(error: Exception) -> str | None:
    """Return the path that an error is about and why it cannot be used; None for an error about something else."""
    if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):
        return f"{str(error).removeprefix(_LOOP)}: {_UNUSABLE[errno.ELOOP]}"
    if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename is not None:
        return f"{error.filename}: {_UNUSABLE[error.errno]}"
    return None


if __name__ == "__main__":
    main()
