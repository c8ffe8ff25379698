"""One program on several nodes: unequal numbers of processes per node, started by torchrun, watched to their end."""

BACKEND = "bertbench"
"""Name of bench.cluster.rendezvous among the rendezvous backends of torchrun."""
LISTENER_VARIABLE = "BERTBENCH_LAUNCH_LISTENER"
"""Environment variable, on node 0: the socket at which the agents' store listens, opened by the launch."""
STOPPING_VARIABLE = "BERTBENCH_LAUNCH_STOPPING"
"""Environment variable: a file that is there once processes are to end."""
RESTARTS_FILE = "restarts"
"""Beside that file: a line of JSON for each restart of the world, with what each node found to have failed first."""
GRACE_SECONDS = 8.0
"""What processes may take to end when another one has failed, before they are killed."""
