"""The bases of parallel strategies: start ranks, wrap the model, step, agree, save state that ranks hold in parts."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from bert.observer import Observer
from bert.optim.adamw import AdamW
from bert.optim.arena import Arena, segments_of
from bert.optim.precision import Precision
from bert.parallel import JOIN_TIMEOUT_VARIABLE
from bert.private import process_groups
from bert.speed.copies import copy_of, has_low_gradients
from common.errors import BertbenchError, UsageError
from common.train_spec import TrainSpec

T = TypeVar("T")
Moments = Mapping[str, Mapping[str, torch.Tensor]]
"""State of an optimizer: by parameter name and key, whole tensors."""
Moment = tuple[str, str, torch.Tensor]
"""One tensor of it: parameter name, key, tensor."""
Options = Mapping[str, Any]
"""Options of a strategy by name, plain JSON values."""
NO_OPTIONS: Options = {}

DEFAULT_JOIN_TIMEOUT_SECONDS = 300
_ONE_STEP = TrainSpec(precision="fp32", micro_batch_size=1)

# Process groups that this process has left, kept until it ends. The last one to drop a group, such as the reducer of a
# model, waits for gloo's threads while it holds the interpreter's lock, and a thread that still has to free a tensor
# waits for the lock: about one run of two ranks in twenty never ended.
_LEFT: list[Any] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """What a strategy must know about the steps before it wraps the model."""

    train: TrainSpec = _ONE_STEP
    """Precision, micro-batch and micro-steps per update."""
    optimizer: str = "adamw"
    """A name in bert.optim.registry.OPTIMIZERS."""
    max_grad_norm: float | None = None
    """Norm that gradients are clipped to; None does not clip."""
    optimizer_norm: float | None = None
    """Norm to which the optimizer itself clips, which then nothing else does."""
    learning_rate: float | None = None
    """Highest learning rate of the run; it and the weight decay are None if only who makes the optimizer knows."""
    weight_decay: float | None = None


NO_PLAN = StepPlan()
"""Steps of one micro-batch in fp32, as far as a strategy can tell."""


class Strategy:
    """Parallelism of one training process; bert.parallel.STRATEGIES lists the subclasses.

    Where the ranks hold parts of the model, `weights` and `moments` put them together: checkpoints do not tell by which
    strategy, or by how many ranks, they were written. `model` is the one that was wrapped, without what is around it.
    """

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        self.options = options
        self.rank = 0
        self.local_rank = 0
        self.world_size = 1
        """Ranks: processes that each draw batches of their own."""
        self.devices_per_rank = 1
        """Devices that each rank drives; its micro-batch is so many times the one of a device."""
        self.device = torch.device("cpu")
        self.arena: Arena | None = None
        """Where gradients lie; None leaves them to autograd."""

    def setup(self, device_type: str) -> None:
        """Join the process group of torchrun's environment; pick the device. Raises UsageError, MissingToolError."""
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if device_type == "cuda":
            self._pick_gpu()

    def _pick_gpu(self) -> None:
        visible = torch.cuda.device_count()
        if self.local_rank >= visible:
            raise UsageError(
                "device-missing",
                f"rank {self.rank} needs GPU {self.local_rank} of this node, but PyTorch sees {visible}: check "
                "CUDA_VISIBLE_DEVICES and the driver, or request fewer devices",
            )
        self.device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(self.device)

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Move the model to the device and make its gradients agree over the ranks. Raises UsageError."""
        return model.to(self.device)

    def prepare(self, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
        """Take the optimizer of the wrapped model over, before anything is loaded into it and before the first step."""

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Around one micro-step: before the last of a step, gradients are not reduced."""
        if self.arena is not None:
            self.arena.begin(last)
        return nullcontext()

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients of `loss`, scaled where the precision asks for it."""
        precision.scale(loss).backward()
        if self.arena is not None:
            self.arena.finish()

    def clip(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, precision: Precision
    ) -> None:
        """Scale the gradients so that their global 2-norm over all ranks is at most `max_norm`."""
        if isinstance(optimizer, AdamW) and optimizer.clips:
            optimizer.clip(max_norm)
        else:
            precision.unscale(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            precision.guard(optimizer, self.full(norm))

    def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> bool | torch.Tensor:
        """Apply and clear the gradients. Return whether they were applied, the same on every rank.

        False means gradients that were not finite; a scalar on the GPU, 1 for those, that the host has not waited for.
        """
        applied = precision.step(optimizer, wait)
        optimizer.zero_grad(set_to_none=True)
        return applied

    def full(self, value: torch.Tensor) -> torch.Tensor:
        """The whole of a tensor that ranks may hold parts of."""
        return value

    def updated(self, parameter: torch.Tensor) -> torch.Tensor:
        """What the optimizer updates: a parameter itself, or its float32 copy."""
        return parameter

    def weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors of the model's state dict by name, one after the other; every rank must take all of them."""
        for name, value in model.state_dict(keep_vars=True).items():
            yield name, self.full(self.updated(value).detach())

    def moments(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Moment]:
        """Whole tensors of the optimizer's state; every rank must take all."""
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state.get(self.updated(parameter), {}).items():
                yield name, key, self.full(value.detach())

    def load_moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: Moments, steps: int | None
    ) -> None:
        """Give the optimizer what `moments` gave, of any strategy; its options, such as the weight decay, stay its own.

        `steps` is what it counted for all parameters together, None where each has its own count.
        """
        names = {self.updated(parameter): name for name, parameter in model.named_parameters()}
        groups = optimizer.state_dict()["param_groups"]
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {
            index: {key: self.placed(value, parameter) for key, value in moments[names[parameter]].items()}
            for index, parameter in enumerate(ordered)
        }
        if steps is not None:
            groups = [{**group, "step": steps} for group in groups]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def placed(self, whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """Return the part of a whole tensor of a parameter's state that belongs to this rank, in memory of its own."""
        # A copy: what was read may be a mapping of the file, which the optimizer must not write into.
        return whole.clone() if whole.ndim == 0 else whole.to(parameter.device, copy=True)

    def whole(self, model: torch.nn.Module) -> torch.nn.Module:
        """A model with all weights on this rank's device, which needs no other rank to run; every rank must call it."""
        return model

    def barrier(self) -> None:
        """Wait for every rank."""

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise maximum over ranks of a CPU float64 vector, the same on every rank."""
        return values

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum over ranks of a CPU float64 vector, the same on every rank."""
        return values

    def gathered(self, value: T) -> list[T]:
        """What every rank gives, by rank; anything that can be pickled."""
        return [value]

    def teardown(self) -> None:
        """Leave the process group."""

    def any_rank(self, value: bool) -> bool:
        """Whether the value is true on any rank."""
        return bool(self.maximum(torch.tensor([float(value)], dtype=torch.float64)) > 0)

    def check_same(self, text: str, what: str) -> None:
        """Raise UsageError, on every rank, unless all ranks have the same text; every rank must call it."""
        first, *others = self.gathered(text)
        for rank, other in enumerate(others, 1):
            if other != first:
                raise UsageError("unsupported-combination", f"{what}: {other} on rank {rank}, but {first} on rank 0")

    def together(self, action: Callable[[], T]) -> T:
        """Run an action on every rank and return its local result; every rank must call it, at the same place.

        Raises:
            BertbenchError: it failed on a rank: the failure of the lowest such rank, of the same class and code on
                every rank; what is no BertbenchError there is one with the code rank-failed on the others.
        """
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:  # whatever it is, the other ranks would wait for this one forever
            failure = error
        if not self.any_rank(failure is not None):
            return result
        if isinstance(failure, BertbenchError | None):
            known = failure
        else:
            known = BertbenchError("rank-failed", f"{type(failure).__name__}: {failure}")
        rank, first = next((rank, each) for rank, each in enumerate(self.gathered(known)) if each is not None)
        if rank == self.rank and failure is not None:
            raise failure
        raise type(first)(first.code, f"rank {rank}: {first}") from failure


class SingleStrategy(Strategy):
    """One process, one device."""

    def setup(self, device_type: str) -> None:
        """Pick the device. Raises UsageError when several ranks were started or the device is absent."""
        super().setup(device_type)
        if self.world_size != 1:
            raise UsageError(
                "unsupported-combination",
                f"strategy single runs on one device, but {self.world_size} were requested: use strategy ddp",
            )

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Move the model to the device."""
        self._model = super().wrap(model, observer, plan)
        return self._model

    def prepare(self, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
        """Give bf16 gradients memory that each step uses again; if it saves the optimizer work, others too."""
        segments = segments_of(self._model)
        if getattr(optimizer, "keeps_addresses", False) and any(copy_of(p) for p in self._model.parameters()):
            self.arena = Arena(self._model, segments)
        elif low := [p for segment in segments for p in segment if has_low_gradients(p)]:
            Arena(self._model, [low], moves=False)

    @classmethod
    def alone(cls, device_type: str) -> "SingleStrategy":
        """Return one that computes by itself on this process's device, whatever world it is a rank of."""
        strategy = cls()
        strategy.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if device_type == "cuda":
            strategy._pick_gpu()
        return strategy


class ProcessGroupStrategy(Strategy):
    """One process per device, in a group over NCCL (GPUs) or gloo (CPUs); the base of those that use it."""

    _cpu_group: Any = None

    def setup(self, device_type: str) -> None:
        """Join the process group that torchrun's environment describes."""
        super().setup(device_type)
        timeout = join_timeout()
        if device_type == "cuda":
            dist.init_process_group("nccl", timeout=timeout, device_id=self.device)
            # Small host-side values (step times) travel over gloo, so that agreeing on them never touches the GPU.
            self._cpu_group = dist.new_group(backend="gloo", timeout=timeout)
        else:
            dist.init_process_group("gloo", timeout=timeout)

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.device.type == "cuda":
            dist.barrier(device_ids=[self.local_rank])
        else:
            dist.barrier()

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise maximum over ranks of a CPU float64 vector."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Element-wise sum over ranks of a CPU float64 vector."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def _reduced(self, values: torch.Tensor, operation: Any) -> torch.Tensor:
        result = values.clone()
        dist.all_reduce(result, op=operation, group=self._cpu_group)
        return result

    def gathered(self, value: T) -> list[T]:
        """What every rank gives, by rank."""
        result: list[Any] = [None] * self.world_size
        dist.all_gather_object(result, value, group=self._cpu_group)
        return result

    def teardown(self) -> None:
        """Leave the process group when every rank has come to this: who goes first breaks the last calls of others."""
        if dist.is_initialized():
            self.barrier()
            _LEFT.extend(process_groups())
            dist.destroy_process_group()


def join_timeout() -> timedelta:
    """Return the time after which a rank gives up waiting for the others."""
    return timedelta(seconds=int(os.environ.get(JOIN_TIMEOUT_VARIABLE, DEFAULT_JOIN_TIMEOUT_SECONDS)))


class WholeModel:
    """A copy of a model that takes no memory; nothing observes it."""

    def __init__(self, model: torch.nn.Module, observer: Observer) -> None:
        """Copy `model`, which is whole still; `observer` is the one it was built with."""
        empty = {
            id(one): torch.nn.Parameter(torch.empty_like(one, device="meta"), requires_grad=one.requires_grad)
            for one in model.parameters()
        }
        # Observers hold open files: they are not copied with the model.
        self._blank = copy.deepcopy(model, {id(observer): Observer(), **empty})

    def filled(self, weights: Iterator[tuple[str, torch.Tensor]], device: torch.device) -> torch.nn.Module:
        """Return a model with these weights (a whole state dict) on `device`."""
        model = copy.deepcopy(self._blank)
        model.load_state_dict({name: value.detach().to(device) for name, value in weights}, assign=True)
        return model.to(device)
