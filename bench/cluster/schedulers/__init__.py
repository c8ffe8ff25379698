"""The cluster schedulers, by name. An entry is "module:class"; `load_scheduler` imports it on demand."""

from typing import TYPE_CHECKING

from common.registry import load

if TYPE_CHECKING:
    from bench.cluster.schedulers.base import Scheduler

SCHEDULERS = {
    "slurm": "bench.cluster.schedulers.slurm:Slurm",
    "kubernetes": "bench.cluster.schedulers.kubernetes:Kubernetes",
    "azureml": "bench.cluster.schedulers.azureml:AzureML",
}


def load_scheduler(name: str) -> "Scheduler":
    """Return the scheduler `name`. Raises UsageError if it is unknown."""
    scheduler: Scheduler = load(SCHEDULERS, name, "scheduler")()
    return scheduler
