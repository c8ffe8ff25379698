"""LAMB written down parameter by parameter, straight from its formulas: what the fast one has to equal."""

import math

import torch


class PlainLamb:
    """Updates `values` (copies of the parameters) with the gradients it is handed."""

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
        self.steps = 0

    def step(self, gradients: list[torch.Tensor | None], learning_rate: float) -> None:
        """One update; None is a parameter without a gradient."""
        self.steps += 1
        beta1, beta2 = self.betas
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients if gradient is not None))
        clip = 1.0 if self.max_grad_norm is None else max(1.0, norm / self.max_grad_norm)
        for value, gradient, first, second, weight_decay in zip(
            self.values, gradients, self.first, self.second, self.weight_decays, strict=True
        ):
            if gradient is None:
                continue
            clipped = gradient / clip
            first.mul_(beta1).add_((1 - beta1) * clipped)
            second.mul_(beta2).add_((1 - beta2) * clipped**2)
            first_corrected = first / (1 - beta1**self.steps)
            second_corrected = second / (1 - beta2**self.steps)
            update = first_corrected / (second_corrected.sqrt() + self.eps) + weight_decay * value
            ratio = 1.0
            if weight_decay != 0:
                value_norm, update_norm = float(value.norm()), float(update.norm())
                if value_norm > 0 and update_norm > 0:
                    ratio = value_norm / update_norm
            value.sub_(learning_rate * ratio * update)
