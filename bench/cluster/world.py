"""A world of ranks that somebody else started (torchrun, `bertbench launch`, a batch system), seen from one of them."""

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
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_POLL_SECONDS = 0.1
# How long a rank waits for the store, and for rank 0's word.
_NOTICE_SECONDS = 600.0
_NOTICE_KEY = "train"


@dataclass(frozen=True, slots=True)
class World:
    """Where this process stands in it."""

    rank: int
    local_rank: int
    """Number among the ranks of this node."""
    world_size: int
    """Ranks of all nodes."""
    local_world_size: int
    nodes: int

    def check_devices(self, *asked: int | None) -> int:
        """Return the world size; refuse another number of devices. Raises UsageError."""
        if {number for number in asked if number is not None} - {self.world_size}:
            given = " ".join(str(number) for number in asked)
            raise UsageError(
                "option-conflict",
                f"--devices {given}, but this is one of {self.world_size} ranks that were launched: leave --devices "
                "out, or launch as many",
            )
        return self.world_size

    def check_nodes(self, asked: Sequence[int]) -> None:
        """Refuse another number of nodes than there are. Raises UsageError."""
        if asked and set(asked) != {self.nodes}:
            raise UsageError(
                "option-conflict",
                f"--nodes {' '.join(map(str, asked))}, but this world of {self.world_size} ranks has {self.nodes} "
                f"node{'s' if self.nodes > 1 else ''}: launch on as many, one call for each number",
            )

    def threads(self, cpu_cores: int) -> int:
        """Return the CPU threads of this rank: what those who started it say, else its share of the node's cores."""
        told = os.environ.get("OMP_NUM_THREADS", "")
        return int(told) if told.isdigit() and int(told) else max(1, cpu_cores // self.local_world_size)


def joined_world() -> World | None:
    """Return the world that this process was started as a rank of, None where it is none.

    Raises:
        UsageError: the variables that say so are damaged.
    """
    if any(name not in os.environ for name in _NEEDED):
        return None
    try:
        rank, local_rank, world_size = (int(os.environ[name]) for name in _NEEDED[:3])
        int(os.environ["MASTER_PORT"])
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1))  # batch systems leave it out
        nodes = int(os.environ.get("GROUP_WORLD_SIZE") or world_size // max(1, local_world_size))
    except ValueError as error:
        values = ", ".join(f"{name}={os.environ[name]!r}" for name in _NEEDED)
        raise UsageError(
            "option-value", f"{values}: these variables make a process a rank, with whole numbers; unset them"
        ) from error
    if not (0 <= rank < world_size and 0 <= local_rank < max(1, local_world_size)):
        raise UsageError(
            "option-value", f"rank {rank} of {world_size} (local rank {local_rank} of {local_world_size}) cannot be"
        )
    return World(rank, local_rank, world_size, local_world_size, max(1, nodes))


class Notice:
    """What rank 0 tells the others before they join a process group, once."""

    def __init__(self, world: World) -> None:
        """Connect to the store of the world; raises BertbenchError where there is none."""
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        hosts = world.rank == 0 and os.environ.get(_AGENT_STORE) != "True"
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        try:
            # A store that rank 0 hosts here is the one of the process group too: no other process can have its port.
            store = TCPStore(
                address, port, is_master=hosts, timeout=timedelta(seconds=_NOTICE_SECONDS), wait_for_workers=False
            )
        except RuntimeError as error:
            raise BertbenchError(
                "node-unreachable", f"rank {world.rank} finds no store at {address}:{port}: {error}"
            ) from error
        os.environ[_AGENT_STORE] = "True"
        attempt = os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"bertbench/{attempt}", store)

    def tell(self, **content: Any) -> None:
        """Tell it, on rank 0."""
        self._store.set(_NOTICE_KEY, json.dumps(content))

    def hear(self) -> dict[str, Any]:
        """Wait for it, on the others; signals are taken meanwhile. Raises BertbenchError where nothing comes."""
        deadline = time.monotonic() + _NOTICE_SECONDS
        while time.monotonic() < deadline:
            if self._store.check([_NOTICE_KEY]):
                content: dict[str, Any] = json.loads(self._store.get(_NOTICE_KEY))
                return content
            time.sleep(_POLL_SECONDS)
        raise BertbenchError("node-unreachable", f"rank 0 said nothing within {_NOTICE_SECONDS:g} s")


class Leader:
    """Rank 0 of a world: the others wait until it says what they are to do, or that there is nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._told = False
        self._notice: Notice | None = None
        if world.world_size > 1 and os.environ.get(_AGENT_STORE) != "True":
            self._open()  # hosts the store, before this process starts a rank that would

    def tell(self, **content: Any) -> None:
        """Tell the others; only the first call counts."""
        if not self._told and self.world.world_size > 1:
            self._told = True
            self._open().tell(**content)

    def _open(self) -> Notice:
        if self._notice is None:
            self._notice = Notice(self.world)  # kept: where it hosts the store, that must last
        return self._notice


@contextlib.contextmanager
def leading(world: World | None) -> Iterator[Leader | None]:
    """Inside, this process is rank 0 of `world`; in the end the others hear that nothing follows, if nothing did."""
    leader = None if world is None else Leader(world)
    code = 2
    try:
        yield leader
        code = 0
    finally:
        if leader is not None:
            with contextlib.suppress(BertbenchError):  # what went wrong before is what counts
                leader.tell(end=code)
