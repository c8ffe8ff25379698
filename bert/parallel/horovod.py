"""Horovod's all-reduce (Sergeev and Del Balso 2018), where it is installed: over NCCL on GPUs, gloo on CPUs.

torchrun starts the ranks, as for every strategy; the first of them serves the addresses that Horovod's own launcher
would serve. Small host-side values travel in PyTorch's gloo group.
"""

import importlib.util
import os
import socket
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from bert.observer import Observer
from bert.optim.precision import Precision
from bert.parallel.base import NO_PLAN, ProcessGroupStrategy, StepPlan, Strategy, join_timeout
from common.errors import MissingToolError


class HorovodStrategy(ProcessGroupStrategy):
    """One process per device; each gradient's all-reduce begins when it is ready in the last micro-step."""

    _horovod: Any = None
    _server: Any = None
    _reducing = True
    _handles: list[int]
    _observer: Observer

    def setup(self, device_type: str) -> None:
        """Join the ranks. Raises MissingToolError without horovod."""
        if importlib.util.find_spec("horovod") is None:
            raise MissingToolError(
                "package-missing",
                "strategy horovod needs the package horovod, built for this PyTorch, which is not installed: build the "
                "image with WITH_HOROVOD=1, or see docs/how-to/strategies.md",
            )
        Strategy.setup(self, device_type)
        dist.init_process_group("gloo", timeout=join_timeout())
        os.environ |= self._addresses()
        import horovod.torch

        self._horovod = horovod.torch
        self._horovod.init()

    def _addresses(self) -> dict[str, str]:
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cross_size = self.world_size // local_size
        port = torch.zeros(1, dtype=torch.int64)
        if self.rank == 0:
            port[0] = self._serve(local_size)
        dist.broadcast(port, 0)
        return {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(int(port)),
            "HOROVOD_HOSTNAME": socket.gethostname(),
            "HOROVOD_RANK": str(self.rank),
            "HOROVOD_SIZE": str(self.world_size),
            "HOROVOD_LOCAL_RANK": str(self.local_rank),
            "HOROVOD_LOCAL_SIZE": str(local_size),
            "HOROVOD_CROSS_RANK": str(self.rank // local_size),
            "HOROVOD_CROSS_SIZE": str(cross_size),
        }

    def _serve(self, local_size: int) -> int:
        """Serve the ranks' addresses; return the port."""
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        names = ",".join(f"node{node}:{local_size}" for node in range(self.world_size // local_size))
        self._server = RendezvousServer(verbose=0)
        port = self._server.start()
        self._server.init(get_host_assignments(parse_hosts(names), self.world_size))
        return int(port)

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Make the ranks' weights those of the first, and have each gradient reduced when it is ready."""
        self._observer, self._handles = observer, []
        model.to(self.device)
        self._horovod.broadcast_parameters(model.state_dict(), root_rank=0)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._reduce, name))
        return model

    def _reduce(self, name: str, parameter: torch.Tensor) -> None:
        if self._reducing:
            average = self._horovod.Average
            self._handles.append(self._horovod.allreduce_async_(parameter.grad, name=name, op=average))

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Before the last micro-step gradients stay local."""
        self._reducing = last
        return nullcontext()

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients; in the last micro-step wait until all are the mean over the ranks."""
        super().backward(loss, precision)
        if self._handles:
            self._observer.mark("gradients_ready")
        for handle in self._handles:
            self._horovod.synchronize(handle)
        self._handles.clear()

    def barrier(self) -> None:
        """Wait for every rank."""
        dist.barrier()

    def teardown(self) -> None:
        """Leave the ranks."""
        if self._horovod is not None:
            self._horovod.shutdown()
        super().teardown()
        if self._server is not None:
            self._server.stop()
