"""Run one program on several nodes with torchrun: unequal numbers of processes per node, supervised until they end."""

BACKEND = "bertbench"
"""Name of bench.cluster.rendezvous among the rendezvous backends of torchrun."""
LISTENER_VARIABLE = "BERTBENCH_LAUNCH_LISTENER"
"""Environment variable on node 0: the listening socket of the agents' store, opened by the launch."""
STOPPING_VARIABLE = "BERTBENCH_LAUNCH_STOPPING"
"""Environment variable: a file that exists once processes should exit."""
RESTARTS_FILE = "restarts"
"""File beside it: a JSON line for each restart of the world, with the first failure on each node."""
GRACE_SECONDS = 8.0
"""Seconds that processes have to exit after another one fails, before they are killed."""
