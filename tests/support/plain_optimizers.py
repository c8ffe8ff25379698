"""AdamW and LAMB written down tensor by tensor, straight from their formulas: what the fast ones have to equal."""

import math

import torch


class PlainAdamW:
    """Updates `values` (copies of the parameters) with the gradients it is handed.

    Loshchilov and Hutter 2019, algorithm 2, after clip_grad_norm_ to `max_grad_norm`.
    """

    room = 1e-6
    """What clip_grad_norm_ adds to the norm."""

    def __init__(
        self,
        values: list[torch.Tensor],
        weight_decays: list[float],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        self.values = values
        self.weight_decays = weight_decays
        self.betas = betas
        self.eps = eps
        self.max_grad_norm = max_grad_norm
        self.first = [torch.zeros_like(value) for value in values]
        self.second = [torch.zeros_like(value) for value in values]
        self.counts = [0] * len(values)

    def step(self, gradients: list[torch.Tensor | None], learning_rate: float) -> None:
        """One update; None is a parameter without a gradient."""
        beta1, beta2 = self.betas
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients if gradient is not None))
        clip = 1.0 if self.max_grad_norm is None else max(1.0, (norm + self.room) / self.max_grad_norm)
        self.count([gradient is not None for gradient in gradients])
        for value, gradient, first, second, count, weight_decay in zip(
            self.values, gradients, self.first, self.second, self.counts, self.weight_decays, strict=True
        ):
            if gradient is None:
                continue
            clipped = gradient / clip
            first.mul_(beta1).add_((1 - beta1) * clipped)
            second.mul_(beta2).add_((1 - beta2) * clipped**2)
            first_corrected = first / (1 - beta1**count)
            second_corrected = second / (1 - beta2**count)
            update = first_corrected / (second_corrected.sqrt() + self.eps) + weight_decay * value
            value.sub_(learning_rate * self.ratio(value, update, weight_decay) * update)

    def count(self, used: list[bool]) -> None:
        """Count the update of each parameter."""
        self.counts = [count + each for count, each in zip(self.counts, used, strict=True)]

    def ratio(self, value: torch.Tensor, update: torch.Tensor, weight_decay: float) -> float:
        """Return what the learning rate is multiplied by."""
        return 1.0


class PlainLamb(PlainAdamW):
    """You et al. 2020 as in NVIDIA's BERT."""

    room = 0.0

    def count(self, used: list[bool]) -> None:
        """Count the update of all parameters."""
        self.counts = [count + 1 for count in self.counts]

    def ratio(self, value: torch.Tensor, update: torch.Tensor, weight_decay: float) -> float:
        """Return the trust ratio."""
        value_norm, update_norm = float(value.norm()), float(update.norm())
        return value_norm / update_norm if weight_decay and value_norm > 0 and update_norm > 0 else 1.0
