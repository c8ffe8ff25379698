"""A whole model beside one whose weights the ranks hold in parts."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bert.train.observer import Observer


class WholeModel:
    """A copy of a model that takes no memory until it is filled with weights; nothing observes it."""

    def __init__(self, model: torch.nn.Module, observer: Observer) -> None:
        """Copy `model`, which is whole still; `observer` is the one it was built with."""
        # Observers hold open files: they are not copied with the model.
        shared = {id(observer): Observer(), **{id(p): _on_no_device(p) for p in model.parameters()}}
        self._blank = copy.deepcopy(model, shared)

    @contextmanager
    def filled(self, weights: Iterator[tuple[str, torch.Tensor]], device: torch.device) -> Iterator[torch.nn.Module]:
        """Yield the model with these weights (a whole state dict) on `device`; they are let go of afterwards."""
        self._blank.load_state_dict({name: value.detach().to(device) for name, value in weights}, assign=True)
        try:
            yield self._blank.to(device)
        finally:
            for module in self._blank.modules():
                for name, parameter in module.named_parameters(recurse=False):
                    setattr(module, name, _on_no_device(parameter))


def _on_no_device(parameter: torch.Tensor) -> torch.nn.Parameter:
    empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    return torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
