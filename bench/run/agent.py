"""torchrun as a child of the harness: starts the ranks, ends with them, writes down which of them failed and how."""

import os
import signal
import sys
import time
from pathlib import Path

from bench.run.out_of_memory import memory_is_short
from bench.run.processes import STOP_VARIABLE, die_with_parent, hold_stop_signals
from records.files import write_record


def main(argv: list[str]) -> int:
    """Run torchrun with argv[1:]; on failure write the ranks' exit codes to argv[0]."""
    die_with_parent(signal.SIGKILL)
    if STOP_VARIABLE in os.environ:
        hold_stop_signals()
    failures_path = Path(argv[0])
    began = time.perf_counter()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    from bench.run.processes import TRIAL_FOLDER, own_folder

    import_seconds = time.perf_counter() - began
    failures = []
    try:
        with own_folder(TRIAL_FOLDER) as folder:
            wanted = parse_args(argv[1:])
            wanted.log_dir = wanted.log_dir or str(folder)  # torchrun would leave an empty one behind
            run(wanted)
    except ChildFailedError as error:
        failures = [
            {"rank": rank, "exit_code": failure.exitcode, "time": failure.timestamp}
            for rank, failure in sorted(error.failures.items())
        ]
    write_record(failures_path, {"failures": failures, "import_seconds": import_seconds})
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        exit_code = main(sys.argv[1:])
    except Exception as error:
        if not memory_is_short():
            raise
        raise MemoryError("the launcher of the ranks is out of memory") from error  # ends the log, and is reported
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # an orderly exit of torch takes half a second per trial
