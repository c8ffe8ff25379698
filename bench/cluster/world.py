"""A world of ranks started by torchrun, `bertbench launch` or a batch system, as seen by one rank."""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from common.errors import BertbenchError, UsageError

_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
AGENT_STORE_VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
"""Environment variable: True where torchrun, not rank 0, hosts the store."""
_POLL_SECONDS = 0.1
# Seconds that a rank waits for the store, and for the message of rank 0.
_NOTICE_SECONDS = 600.0
_NOTICE_KEY = "train"


@dataclass(frozen=True, slots=True)
class World:
    """The place of this process in the world."""

    rank: int
    local_rank: int
    """Rank on this node."""
    world_size: int
    """Number of ranks on all nodes."""
    local_world_size: int
    nodes: int

    def check_devices(self, *asked: int | None) -> int:
        """Return the world size; refuse another number of devices. Raises UsageError."""
        if {number for number in asked if number is not None} - {self.world_size}:
            given = " ".join(str(number) for number in asked)
            raise UsageError(
                "option-conflict",
                f"--devices {given}, but {self.world_size} ranks were launched: omit --devices, or launch {given}",
            )
        return self.world_size

    def check_nodes(self, asked: Sequence[int]) -> None:
        """Refuse another number of nodes than there are. Raises UsageError."""
        if asked and set(asked) != {self.nodes}:
            raise UsageError(
                "option-conflict",
                f"--nodes {' '.join(map(str, asked))}, but this world of {self.world_size} ranks has {self.nodes} "
                f"node{'s' if self.nodes > 1 else ''}: launch once for each number of nodes",
            )

    def threads(self, cpu_cores: int) -> int:
        """Return the CPU threads of this rank: the number set by its launcher, else its share of the node's cores."""
        told = os.environ.get("OMP_NUM_THREADS", "")
        return int(told) if told.isdigit() and int(told) else max(1, cpu_cores // self.local_world_size)


def joined_world() -> World | None:
    """Return the world of which this process is a rank, or None."""
    if any(name not in os.environ for name in _NEEDED):
        return None
    try:
        rank, local_rank, world_size = (int(os.environ[name]) for name in _NEEDED[:3])
        int(os.environ["MASTER_PORT"])
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1))  # batch systems do not set it
        nodes = int(os.environ.get("GROUP_WORLD_SIZE") or world_size // max(1, local_world_size))
    except ValueError as error:
        values = ", ".join(f"{name}={os.environ[name]!r}" for name in _NEEDED)
        raise UsageError(
            "option-value", f"{values}: the variables of a rank must be whole numbers; unset them to run without ranks"
        ) from error
    if not (0 <= rank < world_size and 0 <= local_rank < max(1, local_world_size)):
        raise UsageError(
            "option-value", f"rank {rank} of {world_size} (local rank {local_rank} of {local_world_size}) is not valid"
        )
    return World(rank, local_rank, world_size, local_world_size, max(1, nodes))


class Notice:
    """One message from rank 0 to the others, before they join a process group."""

    def __init__(self, world: World) -> None:
        """Connect to the store of the world. Raises BertbenchError if there is none."""
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        hosts = world.rank == 0 and os.environ.get(AGENT_STORE_VARIABLE) != "True"
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            # The process group uses the same store, since no other process can have its port.
            store = TCPStore(
                address, port, is_master=hosts, timeout=timedelta(seconds=_NOTICE_SECONDS), wait_for_workers=False
            )
        except RuntimeError as error:
            raise BertbenchError(
                "node-unreachable", f"rank {world.rank} cannot reach the store at {address}:{port}: {error}"
            ) from error
        os.environ[AGENT_STORE_VARIABLE] = "True"
        attempt = os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"bertbench/{attempt}", store)

    def tell(self, **content: Any) -> None:
        """Send the message, on rank 0."""
        self._store.set(_NOTICE_KEY, json.dumps(content))

    def hear(self) -> dict[str, Any]:
        """Wait for the message, on the other ranks, and handle signals meanwhile. Raises BertbenchError on timeout."""
        deadline = time.monotonic() + _NOTICE_SECONDS
        while time.monotonic() < deadline:
            if self._store.check([_NOTICE_KEY]):
                content: dict[str, Any] = json.loads(self._store.get(_NOTICE_KEY))
                return content
            time.sleep(_POLL_SECONDS)
        raise BertbenchError("node-unreachable", f"rank 0 did not answer within {_NOTICE_SECONDS:g} s: see its log")


class Leader:
    """Rank 0 of a world, which tells the waiting ranks what to run, or to exit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._told = False
        self._notice: Notice | None = None
        if world.world_size > 1 and os.environ.get(AGENT_STORE_VARIABLE) != "True":
            self._open()  # hosts the store before this process starts a rank

    def tell(self, **content: Any) -> None:
        """Send the message to the others; only the first call has an effect."""
        if not self._told and self.world.world_size > 1:
            self._told = True
            self._open().tell(**content)

    def _open(self) -> Notice:
        if self._notice is None:
            self._notice = Notice(self.world)  # kept alive, since it may host the store
        return self._notice


@contextlib.contextmanager
def leading(world: World | None) -> Iterator[Leader | None]:
    """Run the block as rank 0 of `world`; at the end tell the others to exit if they got no message."""
    leader = None if world is None else Leader(world)
    code = 2
    try:
        yield leader
        code = 0
    finally:
        if leader is not None:
            with contextlib.suppress(BertbenchError):  # an earlier error is more important
                leader.tell(end=code)
