"""Weights and optimizer state that DeepSpeed keeps in pieces, as whole tensors of the model's parameters.

Stage 0 in fp32 keeps them as they are, in half precision as one float32 copy per parameter. ZeRO keeps one flat
float32 vector per parameter group and rank; stage 3 one for each part of a group.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist


class PartitionedState(Protocol):
    """What a rank keeps of weights and optimizer state. All ranks have to call `weight` and `moments` in step."""

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
        """State is set whole, nothing has to be there before."""

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
        """Have DeepSpeed find the state of each parameter in the vectors'."""
        link = getattr(self._wrapped, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            # DeepSpeed does it once, behind the first group's first step: the other groups have no state yet.
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
