"""What torchrun starts for every rank: binds the process to its CPUs and becomes the program. Standard library only.

torchrun binds ranks to the CPUs near their GPU where numactl is installed, and not at all on a CPU. Runs as a file, not
as a module of the suite: the program may have another Python, folder and PYTHONPATH.
"""

import ctypes
import json
import os
import signal
import sys

# Environment variable: JSON list with the logical CPUs of each local rank, empty where a rank is not bound.
CPUS_VARIABLE = "BERTBENCH_LAUNCH_CPUS"
# Environment variable: how often the world was started anew, the same on every node.
ROUND_VARIABLE = "BERTBENCH_LAUNCH_ROUND"
# Environment variable: PYTHONPATH as the program is to have it, empty for none.
PYTHONPATH_VARIABLE = "BERTBENCH_LAUNCH_PYTHONPATH"
# Environment variable: set where the launch, not the user, has made PyTorch's C++ parts of the agent quiet.
QUIET_VARIABLE = "BERTBENCH_LAUNCH_QUIET"
# Environment variable: set in a rank that has been bound, which then takes no share of its cores again.
BOUND_VARIABLE = "BERTBENCH_BOUND"

_PR_SET_PDEATHSIG = 1
_PARENT_VARIABLE = "BERTBENCH_PARENT_PID"  # bench.run.processes, which the program's Python need not find


def main(argv: list[str]) -> int:
    """Become the program `argv`; return only where it cannot be run."""
    if sys.platform.startswith("linux"):  # a program must not outlive its launch, however that ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(os.environ.get(_PARENT_VARIABLE, os.getppid())):
            return 1  # it had ended before
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
    # torchrun counts on each node the restarts that this node began; ranks of one world must name the same number.
    os.environ["TORCHELASTIC_RESTART_COUNT"] = os.environ.pop(ROUND_VARIABLE, "0")
    try:
        os.execvp(argv[0], argv)  # noqa: S606 # nosec B606 # an argument list, as the user gave it
    except OSError as error:
        sys.stderr.write(f"bertbench: rank {os.environ['RANK']} cannot run {argv[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
