"""The ranks that torchrun, `bertbench launch` or a batch system started together, as seen by one of them."""

import os
from dataclasses import dataclass

from common.errors import UsageError

AGENT_STORE_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable: True where torchrun, not rank 0, hosts the store of the ranks."""
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """The place of this process among the ranks."""

    rank: int
    local_rank: int
    """Rank on this node."""
    world_size: int
    """Number of ranks on all nodes."""
    local_world_size: int
    nodes: int

    def check_devices(self, *given: int | None) -> int:
        """Return the world size. Raises UsageError where --devices is another number."""
        others = {*given} - {None, self.world_size}
        if others:
            problem = f"--devices {others.pop()}, but {self.world_size} ranks were launched: omit --devices"
            raise UsageError("option-conflict", problem)
        return self.world_size

    def threads(self, cpu_cores: int) -> int:
        """Return the CPU threads of this rank: the number set by its launcher, else its share of the node's cores."""
        given = os.environ.get("OMP_NUM_THREADS", "")
        is_set = given.isdigit() and int(given) > 1  # torchrun sets 1 where nobody says it
        return int(given) if is_set else max(1, cpu_cores // self.local_world_size)


def joined_world() -> World | None:
    """Return the world of which this process is a rank, or None."""
    if any(name not in os.environ for name in _NEEDED):
        return None
    rank, local_rank, world_size = (int(os.environ[name]) for name in _NEEDED[:3])
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1))  # batch systems do not set it
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", world_size // local_world_size))
    return World(rank, local_rank, world_size, local_world_size, max(1, nodes))
