"""Entry point: picks the command, runs it, turns expected errors into one message and an exit code.

Exit codes: 0 done or stopped in time, 1 a check failed (compare), 2 bad usage or input, 3 part of a sweep or the
training failed, 130 interrupted.
"""

import errno
import importlib
import io
import os
import signal
import sys
import threading
import types

from bench.out_of_memory import memory_is_short, ran_out_of_memory
from common.errors import BertbenchError
from common.redact import terminal_text

# name -> (module, one line of help); a module is imported when its command is called.
COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("bench.cli.doctor", "what this machine is, which tools can run, the remedy for each lack"),
    "data": ("bench.cli.data", "prepare and check inputs: `data pretrain` turns text into HDF5 shards"),
    "convert": ("bench.cli.convert", "turn a TensorFlow, Hugging Face or NVIDIA checkpoint into a folder of weights"),
    "train": ("bench.cli.train", "train, resume, evaluate: pretraining, SQuAD, GAP, GLUE, CSV files of texts"),
    "predict": ("bench.cli.predict", "what a trained model answers: `predict squad` writes predictions.json"),
    "eval": ("bench.cli.eval", "official scores of predictions: SQuAD 1.1 and 2.0, GAP, GLUE"),
    "results": ("bench.cli.results", "what a text classification has come to, from any of the files it left"),
    "compare-strategies": (
        "bench.cli.compare_strategies",
        "one training by strategies, precisions, implementations: time, losses, scores",
    ),
    "compare-heads": ("bench.cli.compare_heads", "GAP with each head: validation loss and accuracy by epoch, time"),
    "launch": ("bench.cli.launch", "run any program with torchrun on one node or several, with unequal GPU counts"),
    "tune": ("bench.cli.tune", "search hyper-parameters: each trial is a training, laggards are pruned"),
    "autotune": ("bench.cli.autotune", "find the fastest batch, strategy and memory trade by measuring a few of them"),
    "throughput": ("bench.cli.throughput", "sweep batch sizes, devices, precisions, implementations; measure each"),
    "speed-of-light": ("bench.cli.speed_of_light", "the floor of a step, and what the measured step loses to what"),
    "comm": ("bench.cli.comm", "measure all-reduce and its sisters alone, by size, as nccl-tests prints them"),
    "profile": ("bench.cli.profile", "run trials under a profiler for iterations [start, stop)"),
    "analyze": ("bench.cli.analyze", "say what a profile, a trace, a table of counters or a log shows"),
    "core-util": ("bench.cli.core_util", "use of FMA, FP16, Tensor and SFU cores from Nsight Compute's tables"),
    "allreduce": (
        "bench.cli.allreduce",
        "communication: overlapped, exposed, waiting, and what if it were free",
    ),
    "perfetto": ("bench.cli.perfetto", "write traces for ui.perfetto.dev, with steps, phases, exposed communication"),
    "submit": ("bench.cli.submit", "render a job for Slurm, Kubernetes or AzureML, and hand it over"),
    "collect": ("bench.cli.collect", "gather the run directories of several nodes into one"),
    "report": ("bench.cli.report", "make the HTML report of a run directory or of a profile"),
    "history": ("bench.cli.history", "what many runs measured over time; exit code 1 on a regression of the newest"),
    "compare": ("bench.cli.compare", "hold two runs or two traces against each other; exit code 1 on a regression"),
}

_BEGIN_AGAIN = (
    "doctor", "data csv", "convert", "predict", "eval", "results", "analyze", "core-util", "allreduce", "perfetto",
    "submit", "collect", "report", "compare", "history",
)  # fmt: skip
"""Commands that keep nothing of a call that did not end."""

_OUT_OF_MEMORY = "out of memory: free some, raise the limit (`ulimit`, cgroup), or use fewer --workers or --devices"

_USAGE = """usage: bertbench COMMAND [options]

Measures and explains how fast BERT trains.

{commands}

  bertbench COMMAND --help   options of a command
  bertbench --version        version

Start with `bertbench doctor`, or `make bench` for a whole measurement.
"""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    threading.excepthook = _end_of_a_thread
    code = run(sys.argv[1:] if argv is None else argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # all is said: it would only change the exit code
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run the command line and return its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? where it has no character
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"bertbench {version('bertbench')}")
        return 0
    try:
        module = importlib.import_module(_command(argv[0]))
        code = int(module.main(argv[1:]))
        sys.stdout.flush()
        return code
    except BertbenchError as error:
        print(f"bertbench: {terminal_text(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bertbench: interrupted; {_after_interrupt(argv)}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has gone
        sys.stderr.close()
        return 0
    except Exception as error:
        if ran_out_of_memory(error) or memory_is_short():
            print(f"bertbench: {_OUT_OF_MEMORY}; {_after_interrupt(argv)}", file=sys.stderr)
            return 2
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EIO) or error.filename is not None:
            raise
        print(f"bertbench: cannot write the output: {error.strerror}; send it elsewhere", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left unwritten must not fail again at the end
        return 2


def usage() -> str:
    """Return the screen that `bertbench --help` shows."""
    width = max(map(len, COMMANDS))
    return _USAGE.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()))


def _command(name: str) -> str:
    from common.registry import lookup

    return lookup(COMMANDS, name, "command")[0]


def _after_interrupt(argv: list[str]) -> str:
    """Say what is left of a command that was interrupted."""
    if argv[0] in _BEGIN_AGAIN or " ".join(argv[:2]) in _BEGIN_AGAIN:
        return "nothing unfinished is kept, the same command begins again"
    return "what was finished is kept, the same command continues"


def _end_of_a_thread(ended: threading.ExceptHookArgs) -> None:
    """Say nothing of threads that end for lack of memory: who waits for them says it."""
    if ended.exc_value is None or not ran_out_of_memory(ended.exc_value):
        threading.__excepthook__(ended)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a batch system may send it twice: what tidies up is not disturbed
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
