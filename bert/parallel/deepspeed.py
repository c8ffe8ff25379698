"""DeepSpeed's engine with ZeRO stages 0 to 3 (Rajbhandari et al. 2020), where the package is installed.

Under bf16 and fp16 the model's parameters are of that type and DeepSpeed keeps float32 copies to update. Where only
those copies are exact, `weights` gives them: a checkpoint holds float32 weights, whichever strategy wrote it.

Stage 0 in fp32 keeps parameters and state as they are, in half precision as one float32 copy per parameter. ZeRO keeps
one flat float32 vector per parameter group and rank; stage 3 one for each part of a group.
"""

import dataclasses
import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from bert.optim.precision import Precision
from bert.parallel.base import NO_OPTIONS, NO_PLAN, Moments, Options, StepPlan
from bert.parallel.deepspeed_config import Resolved, resolve
from bert.parallel.process_group import ProcessGroupStrategy, WholeModel
from bert.train.observer import Observer
from common.errors import MissingToolError, UsageError


class DeepSpeedStrategy(ProcessGroupStrategy):
    """One process per device. Options: zero_stage, and config, DeepSpeed's own configuration."""

    def __init__(self, options: Options = NO_OPTIONS) -> None:
        super().__init__(options)
        self._resolved: Resolved | None = None
        self._plan = NO_PLAN
        self._model: _EngineModel | None = None
        self._whole: WholeModel | None = None
        self._state: PartitionedState | None = None
        self._engine: Any = None

    def setup(self, device_type: str) -> None:
        """Join the process group. Raises MissingToolError without deepspeed."""
        if importlib.util.find_spec("deepspeed") is None:
            raise MissingToolError(
                "package-missing",
                "strategy deepspeed needs the package deepspeed, which is not installed: pip install "
                "'bertbench[deepspeed]'; without a GPU: DS_ACCELERATOR=cpu pip install deepspeed",
            )
        os.environ["DS_ACCELERATOR"] = device_type
        super().setup(device_type)
        import deepspeed

        deepspeed.utils.logger.setLevel(logging.WARNING)
        if device_type == "cpu":
            # Its all-reduce in shared memory is compiled by the first run, for minutes, while the other ranks wait on a
            # lock file that outlives a killed run. Over gloo it reduces as every strategy does on CPUs.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("nccl" if device_type == "cuda" else "gloo", auto_mpi_discovery=False)

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Check the configuration; the model is taken over together with its optimizer, by `prepare`."""
        self._plan = plan
        train = dataclasses.replace(plan.train, world_size=self.world_size)
        plan = dataclasses.replace(plan, train=train)
        self._resolved = resolve(self.options.get("config") or {}, plan, self.options.get("zero_stage"))
        _check_precision(plan.train.precision)
        self._whole = WholeModel(model, observer)
        self._model = _EngineModel(model.to(self.device))
        return self._model

    def prepare(self, optimizer: torch.optim.Optimizer, precision: Precision) -> None:
        """Have DeepSpeed take over model and optimizer, whose options that only the file gives are set."""
        import deepspeed

        assert self._resolved is not None and self._model is not None
        for group in optimizer.param_groups:
            decays = group["weight_decay"] != 0
            own = {name: value for name, value in self._resolved.optimizer.items() if name != "weight_decay" or decays}
            group.update(own)
        model = self._model.model
        before = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
        self._engine, *_ = deepspeed.initialize(
            model=_Outputs(model), optimizer=optimizer, config=dict(self._resolved.config), dist_init_required=False
        )
        self._model.attach(self._engine)
        self._state = open_state(self._engine, optimizer, self._resolved.zero_stage)
        _forget_steps(optimizer)
        # The copies were made of rounded parameters.
        for name, parameter in model.named_parameters():
            self._state.set_weight(parameter, before.pop(name))
        if precision.scaler is not None and self._scaling is not None:
            precision.scaler.load_state_dict({**precision.scaler.state_dict(), "scale": self._scaling.cur_scale})

    @property
    def _scaling(self) -> Any:
        """Where DeepSpeed keeps the loss scale: ZeRO's optimizers and the others do not agree."""
        wrapped = self._engine.optimizer
        return getattr(wrapped, "loss_scaler", None) or getattr(wrapped, "loss_scale_config", None)

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        """Mark the last micro-step. Stages 0 and 1 reduce gradients then, 2 and 3 in every micro-step."""
        self._engine.set_gradient_accumulation_boundary(is_boundary=last)
        return nullcontext()

    def backward(self, loss: torch.Tensor, precision: Precision) -> None:
        """Accumulate gradients; DeepSpeed scales the loss itself, from the scale that `precision` has."""
        if precision.scaler is not None:
            self._take_scale(precision)
        self._engine.backward(loss, scale_wrt_gas=False)

    def clip(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, precision: Precision
    ) -> None:
        """DeepSpeed clips in `step`, to the norm of the plan. Raises UsageError if another is asked for."""
        if max_norm != self._plan.max_grad_norm:
            raise UsageError(
                "option-conflict",
                f"max_grad_norm={max_norm} differs from the {self._plan.max_grad_norm} that DeepSpeed was set up with: "
                "give the norm in the step plan",
            )

    def step(self, optimizer: torch.optim.Optimizer, precision: Precision, wait: bool = True) -> bool | None:
        """Apply and clear the gradients; return whether they were applied."""
        self._engine.step()
        applied = bool(self._engine.was_step_applied())
        if precision.scaler is not None:
            self._give_scale(precision)
        return applied

    def _take_scale(self, precision: Precision) -> None:
        """Continue with the scale of `precision`, which may have come from a checkpoint."""
        assert precision.scaler is not None
        state, scaling = precision.scaler.state_dict(), self._scaling
        scaling.cur_scale = float(state["scale"])
        scaling.last_overflow_iter = scaling.cur_iter - int(state["_growth_tracker"]) - 1

    def _give_scale(self, precision: Precision) -> None:
        assert precision.scaler is not None
        scaling = self._scaling
        good = scaling.cur_iter - scaling.last_overflow_iter - 1
        good = (good - 1) % scaling.scale_window + 1 if good > 0 else 0
        state = precision.scaler.state_dict()
        precision.scaler.load_state_dict({**state, "scale": float(scaling.cur_scale), "_growth_tracker": good})

    def held(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """This rank's parts of the parameters, in the type they are multiplied in."""
        parts = [getattr(parameter, "ds_tensor", parameter).detach() for parameter in model.parameters()]
        return [part.float() for part in parts if part.numel()]

    def weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole float32 weights, and buffers, one after the other."""
        assert self._state is not None
        parameters = dict(model.named_parameters())
        for name, value in model.state_dict().items():
            parameter = parameters.get(name)
            yield name, value if parameter is None else self._state.weight(parameter)

    def moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Whole tensors of the optimizer's state, one after the other."""
        assert self._state is not None
        for name, parameter in model.named_parameters():
            for key, value in self._state.moments(parameter):
                yield name, key, value

    def load_moments(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: Moments, steps: int | None
    ) -> None:
        """Give the optimizer its state, each rank its part."""
        assert self._state is not None
        self._state.allocate(next(iter(moments.values())))
        for name, parameter in model.named_parameters():
            self._state.set_moments(parameter, moments[name])
        if steps is not None:
            for group in optimizer.param_groups:
                group["step"] = steps

    def whole(self, model: torch.nn.Module) -> AbstractContextManager[torch.nn.Module]:
        """A plain float32 copy of the model."""
        assert self._whole is not None
        return self._whole.filled(self.weights(model), self.device)


class _EngineModel(torch.nn.Module):
    """The model before and after DeepSpeed has taken it over: its parameters under their names, calls to the engine."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self._attached: list[Any] = []  # in a list: the engine has the model as a part, and must not become one of it

    def attach(self, engine: Any) -> None:
        """Have calls go to `engine` from here on."""
        self._attached = [engine]

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the engine; autocast is left to it."""
        (engine,) = self._attached
        with torch.autocast(engine.device.type if hasattr(engine.device, "type") else "cpu", enabled=False):
            output = engine(*arguments, **named)
        kind = engine.module.kind
        return output if kind is None else kind(**output)


class _Outputs(torch.nn.Module):
    """Calls a model and returns its output as a dict, in which DeepSpeed finds the tensors."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.kind: Any = None

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Return the model's output, a dataclass as its fields by name."""
        output = self.model(*arguments, **named)
        if not is_dataclass(output) or isinstance(output, dict):
            return output
        self.kind = type(output)
        return {part.name: getattr(output, part.name) for part in fields(output)}


def _forget_steps(optimizer: torch.optim.Optimizer) -> None:
    """Undo the step with gradients of 0 by which some of DeepSpeed's optimizers have the state allocated.

    It counts for the bias correction, and decays the weights.
    """
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    for group in optimizer.param_groups:
        if "step" in group:
            group["step"] = 0


def _check_precision(name: str) -> None:
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    supported = {"fp16": accelerator.is_fp16_supported, "bf16": accelerator.is_bf16_supported}.get(name)
    if supported is not None and not supported():
        raise UsageError(
            "device-unsupported",
            f"DeepSpeed does not support {name} on this device: use another precision, or strategy fsdp",
        )


class PartitionedState(Protocol):
    """What a rank keeps of weights and optimizer state. All ranks must call `weight` and `moments` in step."""

    def weight(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The whole float32 weight of a parameter of the model."""

    def set_weight(self, parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
        """Keep this rank's part of a weight."""

    def moments(self, parameter: torch.nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
        """The optimizer's state of a parameter by key, whole."""

    def allocate(self, example: Mapping[str, torch.Tensor]) -> None:
        """Make the optimizer's state, all zeros, with the keys that the state of one parameter has."""

    def set_moments(self, parameter: torch.nn.Parameter, whole: Mapping[str, torch.Tensor]) -> None:
        """Keep this rank's part of the state of a parameter; it has been allocated."""


def open_state(engine: Any, optimizer: torch.optim.Optimizer, zero_stage: int) -> PartitionedState:
    """Return the state of an engine whose optimizer is, inside, `optimizer`."""
    if zero_stage == 3:
        return _Stage3(engine.optimizer, optimizer)
    if zero_stage > 0:
        return _Flat(engine.optimizer, optimizer)
    return _Copies(engine.optimizer, optimizer)


class _Copies:
    """Stage 0: a tensor of its own for every parameter, the parameter itself or its float32 copy."""

    def __init__(self, wrapped: Any, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        pairs = zip(getattr(wrapped, "fp16_groups", []), getattr(wrapped, "fp32_groups", []), strict=True)
        self._copies: dict[torch.Tensor, torch.Tensor] = {
            own: copy for group in pairs for own, copy in zip(*group, strict=True)
        }

    def _kept(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return self._copies.get(parameter, parameter)

    def weight(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return self._kept(parameter).detach()

    def set_weight(self, parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
        self._kept(parameter).data.copy_(whole)

    def moments(self, parameter: torch.nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._optimizer.state.get(self._kept(parameter), {}).items()

    def allocate(self, example: Mapping[str, torch.Tensor]) -> None:
        """State is set whole, nothing must be there before."""

    def set_moments(self, parameter: torch.nn.Parameter, whole: Mapping[str, torch.Tensor]) -> None:
        kept = self._kept(parameter)
        self._optimizer.state[kept] = {key: value.to(kept.device, copy=True) for key, value in whole.items()}


class _Flat:
    """Stages 1 and 2: one flat vector per parameter group, cut over the ranks."""

    def __init__(self, wrapped: Any, optimizer: torch.optim.Optimizer) -> None:
        self._wrapped = wrapped
        self._optimizer = optimizer

    def _vectors(self) -> list[torch.Tensor]:
        # DeepSpeed's optimizer for bf16 weights and fp32 gradients has another name for them.
        names = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition", "fp32_partitioned_groups_flat")
        (vectors,) = [getattr(self._wrapped, name) for name in names if hasattr(self._wrapped, name)]
        return list(vectors)

    def _states(self) -> list[dict[str, torch.Tensor]]:
        return [self._optimizer.state[vector] for vector in self._vectors() if vector in self._optimizer.state]

    def weight(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        from deepspeed.utils import safe_get_full_fp32_param

        return torch.as_tensor(safe_get_full_fp32_param(parameter))

    def set_weight(self, parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        safe_set_full_fp32_param(parameter, whole.to(self._device))

    @property
    def _device(self) -> torch.device:
        return self._vectors()[0].device

    def moments(self, parameter: torch.nn.Parameter) -> Iterator[tuple[str, torch.Tensor]]:
        from deepspeed.utils import safe_get_full_optimizer_state

        states = self._states()
        if not states:
            return
        self._link()
        for key, value in states[0].items():
            whole = value if value.ndim == 0 else safe_get_full_optimizer_state(parameter, key)
            yield key, torch.as_tensor(whole).clone()

    def allocate(self, example: Mapping[str, torch.Tensor]) -> None:
        for vector in self._vectors():
            self._optimizer.state[vector] = {
                key: value.to(vector.device, copy=True) if value.ndim == 0 else torch.zeros_like(vector)
                for key, value in example.items()
            }
        self._link()

    def _link(self) -> None:
        link = getattr(self._wrapped, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            # DeepSpeed does it once, after the first group's first step: the other groups have no state yet.
            self._wrapped._hp_optimizer_states_linked = False
            link()

    def set_moments(self, parameter: torch.nn.Parameter, whole: Mapping[str, torch.Tensor]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        for key, value in whole.items():
            if value.ndim:
                safe_set_full_optimizer_state(parameter, value.to(self._device), key)


class _Stage3(_Flat):
    """Stage 3: each parameter is cut over the ranks, padded so that all have as much."""

    def set_weight(self, parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
        from deepspeed.utils import safe_set_local_fp32_param

        safe_set_local_fp32_param(parameter, self._part(parameter, whole))

    def set_moments(self, parameter: torch.nn.Parameter, whole: Mapping[str, torch.Tensor]) -> None:
        from deepspeed.utils import safe_set_local_optimizer_state

        for key, value in whole.items():
            if value.ndim:
                safe_set_local_optimizer_state(parameter, self._part(parameter, value), key)

    def _part(self, parameter: Any, whole: torch.Tensor) -> torch.Tensor:
        size = parameter.ds_tensor.ds_numel
        padded = torch.zeros(size * dist.get_world_size(), dtype=torch.float32)
        padded[: whole.numel()] = whole.flatten()
        begin = dist.get_rank() * size
        return padded[begin : begin + size].to(self._device)
