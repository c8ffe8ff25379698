"""AdamW (Loshchilov and Hutter 2019) that also handles bf16 gradients and bf16 copies of weights, part by part."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from bert.private import update_by_adam
from bert.speed.copies import LOW, copy_of, has_low_gradients
from bert.speed.fp8 import cast_weights

# Elements of a parameter that are worked on together on a CPU: with moments and scratch 4 MiB, which stay in a cache.
_AT_ONCE = 1 << 18


class AdamW(torch.optim.AdamW):
    """PyTorch's fused AdamW, on CPUs and GPUs, for bf16 gradients too.

    A parameter whose gradient is bf16 (bert.speed.copies) is updated in parts: the gradient of a part is cast to
    float32, PyTorch's kernel updates the part, and its copy is made, before the next one is touched. State and result
    are those of PyTorch's optimizer, given the same gradients in float32.
    """

    found_inf: Tensor | None = None
    _divisor: Tensor | None = None
    _scratch: Tensor | None = None

    def __init__(self, params: ParamsT, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    @property
    def clips(self) -> bool:
        """Whether it must clip by itself (`clip`): some of its parameters leave their gradients in bf16."""
        return any(has_low_gradients(parameter) for group in self.param_groups for parameter in group["params"])

    def clip(self, max_norm: float) -> None:
        """Have the next step scale all gradients so that their global 2-norm is at most `max_norm`.

        A norm that is not finite leaves the step out.
        """
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            # Row by row: on a CPU PyTorch adds the squares of a whole tensor up in one float32, 0.1 % off.
            rows = [torch.linalg.vector_norm(each, dim=-1, dtype=torch.float32) for each in gradients]
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in rows]))
            # Divided by, this is the factor of clip_grad_norm_.
            self._divisor = ((norm + 1e-6) / max_norm).clamp(min=1.0)
            self.found_inf = (~torch.isfinite(norm)).float()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, unless `found_inf` is 1."""
        divisor, self._divisor = self._divisor, None
        low: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.dtype == LOW != parameter.dtype:
                    self._update(parameter, parameter.grad, group, divisor)
                    low.append((parameter, parameter.grad))
                    parameter.grad = None
        others = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if divisor is not None and others:
            torch._foreach_div_(others, divisor)
        super().step()
        self._forget_copies()
        cast_weights(self.param_groups)
        for parameter, gradient in low:
            parameter.grad = gradient

    def _forget_copies(self) -> None:
        """Have copies of what was updated whole made again: the fused kernel leaves versions as they are."""
        for group in self.param_groups:
            for parameter in group["params"]:
                copy = copy_of(parameter)
                if copy is not None and parameter.grad is not None:
                    copy.version = -1

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], divisor: Tensor | None) -> None:
        state = self._state_of(parameter)
        state["step"] += 1
        at_once = _AT_ONCE if parameter.device.type == "cpu" else parameter.numel()
        if self._scratch is None or self._scratch.numel() < at_once:
            self._scratch = torch.empty(at_once, dtype=torch.float32, device=parameter.device)
        copy = copy_of(parameter)
        tensors = [parameter, gradient, state["exp_avg"], state["exp_avg_sq"]]
        tensors += [] if copy is None else [copy.values]
        for part, low, *moments in zip(*(each.view(-1).split(at_once) for each in tensors), strict=True):
            wide = self._scratch[: part.numel()].copy_(low)
            update_by_adam(
                [part], [wide], [moments[0]], [moments[1]], [state["step"]], lr=group["lr"], betas=group["betas"],
                eps=group["eps"], weight_decay=group["weight_decay"], divisor=divisor, left_out=self.found_inf,
            )  # fmt: skip
            if copy is not None:
                moments[2].copy_(part)
        if self.found_inf is not None:
            state["step"] -= self.found_inf
        if copy is not None:
            copy.version = parameter._version
