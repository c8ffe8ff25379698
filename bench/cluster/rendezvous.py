"""Rendezvous of torchrun's agents under a launch: it keeps the given node ranks, and a restart restarts the world.

torchrun's static rendezvous keeps node ranks but lets an agent restart its processes alone. Its c10d rendezvous
restarts the world but orders nodes by address, and workers fail to connect if only some nodes counted a restart. This
backend is registered with torchrun (torch.distributed.elastic.rendezvous): round 0 is the start, and an agent that
begins round n + 1 makes the others restart into it.
"""

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)

from bench.cluster import BACKEND, LISTENER_VARIABLE, RESTARTS_FILE, STOPPING_VARIABLE
from bench.cluster.rank import ROUND_VARIABLE

# Agents may import torch from a slow file system; the launches detect lost nodes.
_MEET_SECONDS = 600.0
_POLL_SECONDS = 0.05


def _unknown() -> dict[str, Any] | None:
    """Return no failed rank; the default before `register`."""
    return None


_first_failure: Callable[[], dict[str, Any] | None] = _unknown


class AgreedRendezvous(RendezvousHandler):
    """The rendezvous of one agent."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        address, _, port = parameters.endpoint.rpartition(":")
        self._run_id = parameters.run_id
        self._nodes = parameters.max_nodes
        self._node_rank = int(parameters.config["node_rank"])
        self._max_restarts = int(parameters.config["max_restarts"])
        self._round = -1
        listener = os.environ.pop(LISTENER_VARIABLE, None)
        self._hosts = listener is not None
        self._of_ranks: TCPStore | None = None
        self._place = RendezvousStoreInfo(address, int(port))
        self._store = TCPStore(
            address,
            int(port),
            is_master=self._hosts,
            timeout=timedelta(seconds=_MEET_SECONDS),
            wait_for_workers=False,
            master_listen_fd=None if listener is None else int(listener),
        )

    def get_backend(self) -> str:
        """Return the name of the backend in torchrun."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Return True: the agent of node 0 hosts the store of the ranks and reserves its port in advance."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and wait for all agents.

        Raises:
            RendezvousStateError: no restarts are left.
            RendezvousGracefulExitError: a stop was requested.
            RendezvousTimeoutError: an agent did not join.
        """
        if Path(os.environ[STOPPING_VARIABLE]).exists():
            raise RendezvousGracefulExitError("a stop was requested")
        if self._round >= self._max_restarts:
            raise RendezvousStateError(
                f"processes failed again after {self._max_restarts} restart{'' if self._max_restarts == 1 else 's'} of "
                "the world, the limit of --max-restarts"
            )
        self._round += 1
        os.environ[ROUND_VARIABLE] = str(self._round)
        if self._round:
            self._store.set(self._failed(self._node_rank), json.dumps(_first_failure()))
        joined = self._joined(self._round)
        self._store.add(joined, 1)
        deadline = time.monotonic() + _MEET_SECONDS
        while (present := self._store.add(joined, 0)) < self._nodes:
            if time.monotonic() >= deadline:
                raise RendezvousTimeoutError(
                    f"{present} of {self._nodes} nodes joined round {self._round} within {_MEET_SECONDS:g} s"
                )
            time.sleep(_POLL_SECONDS)
        if self._round:
            self._write_restart()
        store = PrefixStore(f"{self._run_id}/{self._round}", self._store)
        return RendezvousInfo(store, self._node_rank, self._nodes, self._meeting_place())

    def _meeting_place(self) -> RendezvousStoreInfo:
        """Return the store of this round's ranks; each restart gets a new one without entries of former ranks."""
        if self._round == 0:
            return self._place
        key = f"{self._run_id}/place/{self._round}"
        address = self._place.master_addr
        if self._hosts:
            self._of_ranks = TCPStore(address, 0, is_master=True, wait_for_workers=False)
            self._store.set(key, str(self._of_ranks.port))
        return RendezvousStoreInfo(address, int(self._store.get(key)))

    def _failed(self, node: int) -> str:
        return f"{self._run_id}/failed/{self._round}/{node}"

    def _write_restart(self) -> None:
        found = {node: json.loads(self._store.get(self._failed(node))) for node in range(self._nodes)}
        line = json.dumps({"round": self._round, "failures": found})
        with Path(os.environ[STOPPING_VARIABLE]).with_name(RESTARTS_FILE).open("a", encoding="ascii") as file:
            file.write(f"{line}\n")

    def _joined(self, number: int) -> str:
        return f"{self._run_id}/joined/{number}"

    def is_closed(self) -> bool:
        """Return False: the launches end the job, never the rendezvous."""
        return False

    def set_closed(self) -> None:
        """Do nothing."""

    def num_nodes_waiting(self) -> int:
        """Return 1 if another agent waits in the next round, which makes torchrun restart the ranks here."""
        try:
            return int(self._store.check([self._joined(self._round + 1)]))
        except RuntimeError:  # the agent of node 0 has ended; the launches handle it
            return 0

    def get_run_id(self) -> str:
        """Return the name of the launch."""
        return self._run_id

    def shutdown(self) -> bool:
        """Do nothing and return True."""
        return True


def register(first_failure: Callable[[], dict[str, Any] | None]) -> None:
    """Register the backend with torchrun; `first_failure` returns the first failed rank of this node."""
    global _first_failure
    _first_failure = first_failure
    rendezvous_handler_registry.register(BACKEND, AgreedRendezvous)
