"""DeepSpeed's engine with ZeRO stages 0 to 3 (Rajbhandari et al. 2020), where the package is installed.

Under bf16 and fp16 the model's parameters are of that type and DeepSpeed keeps float32 copies to update. Where only
those copies are exact, `weights` gives them: a checkpoint holds float32 weights, whichever strategy wrote it.
"""

import dataclasses
import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from bert import private
from bert.observer import Observer
from bert.optim.lamb import Lamb
from bert.optim.precision import Precision, outcome
from bert.parallel.base import NO_PLAN, Moment, Moments, ProcessGroupStrategy, StepPlan, WholeModel
from bert.parallel.deepspeed_config import Resolved, resolve
from common.errors import MissingToolError, UsageError


class DeepSpeedStrategy(ProcessGroupStrategy):
    """One process per device. Options: zero_stage, and config, DeepSpeed's own configuration."""

    engine: Any = None
    _resolved: Resolved
    _model: "_EngineModel"
    _whole: WholeModel
    _partitions: "_Partitions | None" = None
    _copies: Mapping[torch.Tensor, torch.Tensor] = MappingProxyType({})

    def setup(self, device_type: str) -> None:
        """Join the process group. Raises MissingToolError without deepspeed."""
        if importlib.util.find_spec("deepspeed") is None:
            raise MissingToolError(
                "package-missing",
                "strategy deepspeed needs the package deepspeed: pip install 'bertbench[deepspeed]'; without a GPU: "
                "DS_ACCELERATOR=cpu pip install deepspeed",
            )
        os.environ["DS_ACCELERATOR"] = device_type
        super().setup(device_type)
        import deepspeed

        deepspeed.utils.logger.setLevel(logging.WARNING)
        if device_type == "cpu":
            private.without_shared_memory()
        deepspeed.init_distributed("nccl" if device_type == "cuda" else "gloo", auto_mpi_discovery=False)

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Check the configuration; the model is taken over together with its optimizer, by `prepare`."""
        plan = dataclasses.replace(plan, train=dataclasses.replace(plan.train, world_size=self.world_size))
        self._resolved = resolve(self.options.get("config") or {}, plan, self.options.get("zero_stage"))
        self._whole = WholeModel(model, observer)
        model.to(self.device).register_forward_hook(_Output.of)
        self._model = _EngineModel(model, self)
        return self._model

    def prepare(self, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
        """Have DeepSpeed take over model and optimizer, and the options that only the file gives. Raises UsageError."""
        import deepspeed

        for group in optimizer.param_groups:
            decays = group["weight_decay"] != 0
            group.update({name: v for name, v in self._resolved.optimizer.items() if name != "weight_decay" or decays})
        model = self._model.model
        before = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
        try:
            self.engine, *_ = deepspeed.initialize(
                model=model, optimizer=optimizer, config=dict(self._resolved.config), dist_init_required=False
            )
        except (ValueError, AssertionError) as error:
            message = " ".join(str(error).split())
            raise UsageError("option-value", f"DeepSpeed refuses its configuration: {message}") from error
        if self._resolved.zero_stage:
            self._partitions = _Partitions(self.engine.optimizer, optimizer)
        else:
            self._copies = private.float32_copies(self.engine.optimizer)
        _forget_steps(optimizer)
        # The copies were made of rounded parameters.
        for name, parameter in model.named_parameters():
            if self._partitions is not None:
                self._partitions.set_weight(parameter, before.pop(name))
            else:
                self.updated(parameter).data.copy_(before.pop(name))
        if precision.scaler is not None and self._scaling is not None:
            precision.scaler.load_state_dict({**precision.scaler.state_dict(), "scale": self._scaling.cur_scale})

    @property
    def _scaling(self) -> Any:
        return private.loss_scaling(self.engine.optimizer)

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Mark the last micro-step. Stages 0 and 1 reduce gradients then, 2 and 3 in every micro-step."""
        self.engine.set_gradient_accumulation_boundary(is_boundary=last)
        return nullcontext()

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients; DeepSpeed scales the loss itself, from the scale that `precision` has."""
        if precision.scaler is not None:
            # It may have come from a checkpoint.
            state, scaling = precision.scaler.state_dict(), self._scaling
            scaling.cur_scale = float(state["scale"])
            scaling.last_overflow_iter = scaling.cur_iter - int(state["_growth_tracker"]) - 1
        self.engine.backward(loss, scale_wrt_gas=False)

    def clip(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, precision: Precision
    ) -> None:
        """DeepSpeed clips in `step`, to the norm of the plan."""

    def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> bool | torch.Tensor:
        """Apply and clear the gradients; return whether they were applied, as Precision.step does."""
        unwrapped = self.engine.optimizer is optimizer  # stage 0 in fp32: no optimizer of DeepSpeed looks
        if unwrapped and not isinstance(optimizer, Lamb):
            gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
            precision.guard(optimizer, torch.nn.utils.get_total_norm(gradients))
        self.engine.step()
        if unwrapped:
            return outcome(optimizer, wait=False)
        if precision.scaler is not None:
            scaling = self._scaling
            good = scaling.cur_iter - scaling.last_overflow_iter - 1
            good = (good - 1) % scaling.scale_window + 1 if good > 0 else 0
            state = precision.scaler.state_dict()
            precision.scaler.load_state_dict({**state, "scale": float(scaling.cur_scale), "_growth_tracker": good})
        return bool(self.engine.was_step_applied())

    def updated(self, parameter: torch.Tensor) -> torch.Tensor:
        """The parameter or, in stage 0 of bf16 and fp16, its copy."""
        return self._copies.get(parameter, parameter)

    def weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole float32 weights, and buffers, one after the other."""
        parts, parameters = self._partitions, dict(model.named_parameters())
        for name, value in super().weights(model):
            yield name, value if parts is None or name not in parameters else parts.weight(parameters[name])

    def moments(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Moment]:
        """Whole tensors of the optimizer's state, one after the other."""
        if self._partitions is None:
            yield from super().moments(model, optimizer)
            return
        for name, parameter in model.named_parameters():
            for key, value in self._partitions.moments(parameter):
                yield name, key, value

    def load_moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: Moments, steps: int | None
    ) -> None:
        """Give the optimizer its state, each rank its part."""
        if self._partitions is None:
            super().load_moments(model, optimizer, moments, steps)
            return
        self._partitions.allocate(next(iter(moments.values())))
        for name, parameter in model.named_parameters():
            self._partitions.set_moments(parameter, moments[name])

    def whole(self, model: torch.nn.Module) -> torch.nn.Module:
        """A plain float32 copy of the model."""
        return self._whole.filled(self.weights(model), self.device)


class _EngineModel(torch.nn.Module):
    """The model before and after DeepSpeed has taken it over: its parameters under their names, calls to the engine."""

    def __init__(self, model: torch.nn.Module, strategy: DeepSpeedStrategy) -> None:
        super().__init__()
        self.model = model
        self._strategy = strategy

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the engine; autocast is left to it."""
        with torch.autocast(self._strategy.device.type, enabled=False):
            return self._strategy.engine(*arguments, **named)


class _Output(dict[str, Any]):
    """A model's output as a dict, in which DeepSpeed finds the tensors."""

    __getattr__ = dict.__getitem__

    @classmethod
    def of(cls, model: torch.nn.Module, arguments: Any, output: Any) -> Any:
        """Return that of one of our models, a dataclass; others have dicts."""
        if isinstance(output, dict):
            return output
        return cls((part.name, getattr(output, part.name)) for part in dataclasses.fields(output))


def _forget_steps(optimizer: torch.optim.Optimizer) -> None:
    """Undo the step with gradients of 0 by which some of DeepSpeed's optimizers have the state allocated.

    It counts for the bias correction, and decays the weights.
    """
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    if isinstance(optimizer, Lamb):
        optimizer.steps = 0


class _Partitions:
    """Stages 1 to 3: flat float32 vectors, cut over the ranks. All ranks must call `weight` and `moments` in step."""

    def __init__(self, wrapped: Any, optimizer: torch.optim.Optimizer) -> None:
        import deepspeed

        self._utils: Any = deepspeed.utils
        self._wrapped = wrapped
        self._optimizer = optimizer
        self._device = private.flat_vectors(wrapped)[0].device

    def weight(self, parameter: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self._utils.safe_get_full_fp32_param(parameter))

    def set_weight(self, parameter: torch.Tensor, whole: torch.Tensor) -> None:
        if hasattr(parameter, "ds_tensor"):
            self._utils.safe_set_local_fp32_param(parameter, self._part(parameter, whole))
        else:
            self._utils.safe_set_full_fp32_param(parameter, whole.to(self._device))

    def moments(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        states = [self._optimizer.state[v] for v in private.flat_vectors(self._wrapped) if v in self._optimizer.state]
        if not states:
            return
        private.link_optimizer_state(self._wrapped)
        for key, value in states[0].items():
            whole = value if value.ndim == 0 else self._utils.safe_get_full_optimizer_state(parameter, key)
            yield key, torch.as_tensor(whole).clone()

    def allocate(self, example: Mapping[str, torch.Tensor]) -> None:
        """Make the optimizer's state, all zeros, with the keys that the state of one parameter has."""
        for vector in private.flat_vectors(self._wrapped):
            self._optimizer.state[vector] = {
                key: value.to(vector.device, copy=True) if value.ndim == 0 else torch.zeros_like(vector)
                for key, value in example.items()
            }
        private.link_optimizer_state(self._wrapped)

    def set_moments(self, parameter: torch.Tensor, whole: Mapping[str, torch.Tensor]) -> None:
        for key, value in whole.items():
            if value.ndim and hasattr(parameter, "ds_tensor"):
                self._utils.safe_set_local_optimizer_state(parameter, self._part(parameter, value), key)
            elif value.ndim:
                self._utils.safe_set_full_optimizer_state(parameter, value.to(self._device), key)

    def _part(self, parameter: Any, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part in stage 3, which pads every parameter so that all ranks have as much."""
        size = parameter.ds_tensor.ds_numel
        padded = torch.zeros(size * dist.get_world_size(), dtype=torch.float32)
        padded[: whole.numel()] = whole.flatten()
        begin = dist.get_rank() * size
        return padded[begin : begin + size].to(self._device)
