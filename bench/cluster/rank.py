"""Entry point of every rank: bind the process to its CPUs and execute the program. Standard library only.

torchrun binds ranks to the CPUs near their GPU only if numactl is installed, and never on a CPU. This file is run by
its path, not as a module, since the program may have another Python, folder and PYTHONPATH.
"""

import ctypes
import json
import os
import signal
import sys

# Environment variable: JSON list with the logical CPUs of each local rank, empty for no binding.
CPUS_VARIABLE = "BERTBENCH_LAUNCH_CPUS"
# Environment variable: number of restarts of the world, the same on every node.
ROUND_VARIABLE = "BERTBENCH_LAUNCH_ROUND"
# Environment variable: PYTHONPATH of the program, empty for none.
PYTHONPATH_VARIABLE = "BERTBENCH_LAUNCH_PYTHONPATH"
# Environment variable: set if the launch, not the user, silenced the C++ logs of the agent.
QUIET_VARIABLE = "BERTBENCH_LAUNCH_QUIET"
# Environment variable: set in a bound rank, so that it does not divide its cores again.
BOUND_VARIABLE = "BERTBENCH_BOUND"

_PR_SET_PDEATHSIG = 1
_PARENT_VARIABLE = "BERTBENCH_PARENT_PID"  # also in bench.run.processes, which this Python may not find


def main(argv: list[str]) -> int:
    """Execute the program `argv`; return only if it cannot be run."""
    if sys.platform.startswith("linux"):  # a program must not outlive its launch
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(os.environ.get(_PARENT_VARIABLE, os.getppid())):
            return 1  # the launch has already ended
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    python_path = os.environ.pop(PYTHONPATH_VARIABLE, "")
    os.environ.pop("PYTHONPATH", None)
    if python_path:
        os.environ["PYTHONPATH"] = python_path
    if os.environ.pop(QUIET_VARIABLE, ""):
        os.environ.pop("TORCH_CPP_LOG_LEVEL", None)
    shares = json.loads(os.environ.pop(CPUS_VARIABLE, "[]"))
    local_rank = int(os.environ["LOCAL_RANK"])
    own = shares[local_rank] if local_rank < len(shares) else []
    if own:
        os.sched_setaffinity(0, own)
        os.environ[BOUND_VARIABLE] = "1"
    # torchrun counts restarts per node; all ranks of a world need the same number.
    os.environ["TORCHELASTIC_RESTART_COUNT"] = os.environ.pop(ROUND_VARIABLE, "0")
    try:
        os.execvp(argv[0], argv)  # noqa: S606 # nosec B606 # an argument list, as the user gave it
    except OSError as error:
        sys.stderr.write(f"bertbench: rank {os.environ['RANK']} cannot run {argv[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
