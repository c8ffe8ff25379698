"""LAMB (You et al. 2020, arXiv:1904.00962) as in NVIDIA's BERT, with several tensors per kernel."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from bert.private import update_by_adam
from bert.speed.fp8 import cast_weights


class Lamb(torch.optim.Optimizer):
    """NVIDIA's LAMB: clipping by the global norm, Adam's direction, one step length per decayed tensor.

    With g the gradients of all parameters that have one, step number t = 1, 2, ...:

        c = max(1, ||g||_global / max_grad_norm)
        m = beta1 m + (1 - beta1) g / c            m^ = m / (1 - beta1^t)
        v = beta2 v + (1 - beta2) (g / c)^2        v^ = v / (1 - beta2^t)
        u = m^ / (sqrt(v^) + eps) + weight_decay p
        p = p - lr r u,   r = ||p|| / ||u|| where weight_decay != 0 and both norms are nonzero, else 1

    (DeepLearningExamples/PyTorch/LanguageModeling/BERT/lamb_amp_opt). It clips by itself: clipping the gradients
    before is clipping twice. The step counts of the optimizer, not of a parameter, are what the bias correction goes
    by; a step that a GradScaler leaves out does not count. A step whose gradients' norm is not finite changes nothing
    and does not count; `found_inf` is 1 after it, else 0. Nothing is read back to the host.

    The state takes 8 bytes per float32 parameter. A step takes besides as much scratch as the largest decayed tensor
    (in BERT the word embeddings: 0.4 bytes per parameter of large, 0.9 of base) and gives it back. It leaves the
    gradients divided by c.

    The update u comes out of PyTorch's fused Adam kernel: started from `weight_decay p` with a learning rate of -1
    it leaves exactly `weight_decay p + m^ / (sqrt(v^) + eps)`, reading each of p, g, m and v once.

    Parameters that ranks hold in parts (DTensors cut along dimensions, of one mesh) are updated part by part; their
    norms are those of the whole tensors, one all-reduce for the gradients and one for each scratch of updates.

    Parameters are contiguous float32 or float64 tensors of one device and one type.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        super().__init__(params, {**options, "step": 0})

    _count: Tensor | None = None
    found_inf: Tensor | None = None

    @property
    def steps(self) -> int:
        """Steps made so far; reading it waits for the device."""
        if self._count is not None:
            self.steps = int(self._count)
        return int(self.param_groups[0]["step"])

    @steps.setter
    def steps(self, steps: int) -> None:
        self._count = None
        for group in self.param_groups:
            group["step"] = steps

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the step count as a number."""
        self.steps = self.steps
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._count = None
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        gradients = [_part(p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            return
        ranks = _ranks([p for group in self.param_groups for p in group["params"]])
        max_norm = self.param_groups[0]["max_grad_norm"]
        clipping = None
        if max_norm is not None:
            norm: Tensor = torch.linalg.vector_norm(_norms(gradients, ranks))
            clipping = (norm / max_norm).clamp(min=1.0).float()
            self.found_inf = (~torch.isfinite(norm)).float()
        step = self._begin(gradients[0].device, self.found_inf)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if group["weight_decay"] == 0:
                parts = [_part(parameter) for parameter in parameters]
                self._adam(parts, parameters, group, group["lr"], step, clipping)
            elif parameters:
                self._decayed(parameters, group, step, clipping, ranks)
        cast_weights(self.param_groups)

    def _begin(self, device: torch.device, left_out: Tensor | None) -> Tensor:
        """Count a step on the device, unless it is left out; return its number, from 1."""
        # float32 counts steps exactly up to 16.7 million.
        before = self._count
        if before is None:
            before = torch.full((), float(self.steps), dtype=torch.float32, device=device)
        number = before + 1.0
        self._count = number if left_out is None else number - left_out
        return number

    def _decayed(
        self, parameters: list[Tensor], group: dict[str, Any], step: Tensor, clipping: Tensor | None, ranks: Any
    ) -> None:
        """Update a group with weight decay, as many tensors at a time as the largest one has room for."""
        for some in _buckets(parameters):
            parts = [_part(parameter) for parameter in some]
            updates = list(torch._foreach_mul(parts, group["weight_decay"]))
            self._adam(updates, some, group, -1.0, step, clipping)
            parameter_norms, update_norms = _norms([*parts, *updates], ranks).chunk(2)
            usable = (parameter_norms > 0) & (update_norms > 0)
            trust = torch.where(usable, parameter_norms / update_norms, torch.ones_like(parameter_norms))
            trust = trust if self.found_inf is None else trust * (1.0 - self.found_inf)
            torch._foreach_addcmul_(parts, updates, list(trust.unbind()), value=-group["lr"])

    def _adam(
        self,
        targets: list[Tensor],
        parameters: list[Tensor],
        group: dict[str, Any],
        learning_rate: float,
        step: Tensor,
        clipping: Tensor | None,
    ) -> None:
        """Move the moments of `parameters` on and subtract learning_rate m^ / (sqrt(v^) + eps) from `targets`."""
        states = [self._state_of(parameter) for parameter in parameters]
        update_by_adam(
            targets,
            [_part(parameter.grad).contiguous() for parameter in parameters if parameter.grad is not None],
            [_part(state["exp_avg"]) for state in states],
            [_part(state["exp_avg_sq"]) for state in states],
            [step] * len(targets),
            lr=learning_rate,
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=0.0,
            divisor=clipping,
            left_out=self.found_inf,
        )

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: all of a plain one."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _ranks(parameters: list[Tensor]) -> Any:
    """The process group whose ranks hold the parameters in parts; None if they are whole."""
    mesh = getattr(parameters[0], "device_mesh", None)
    return None if mesh is None else mesh.get_group()


def _norms(tensors: list[Tensor], ranks: Any) -> Tensor:
    """2-norm of each tensor, as one vector on the device; of whole tensors where `ranks` hold parts of them."""
    if tensors[0].device.type == "cpu":
        # There PyTorch adds the squares of a whole tensor up in one float32, which is 0.1 % off for the word
        # embeddings; row by row it is as fast and right to 1e-6.
        norms = torch.stack([torch.linalg.vector_norm(torch.linalg.vector_norm(t, dim=-1)) for t in tensors])
    else:
        norms = torch.stack(torch._foreach_norm(tensors))
    if ranks is None:
        return norms
    squares = norms.square()
    torch.distributed.all_reduce(squares, group=ranks)
    return squares.sqrt()


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Cut the list into runs of as many elements as the largest tensor has at most.

    Sizes are those of whole tensors: ranks whose parts differ in size must cut the list at the same places.
    """
    room = max(tensor.numel() for tensor in tensors)
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > room:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    yield bucket
