"""AdamW and LAMB on a GPU: all parameters in one pass, with clipping, unscaling and the bf16 copies of weights.

PyTorch's fused AdamW moves as many bytes for the update itself, 28 per parameter. It leaves to other kernels what is
fused here: scaling gradients down to clip them (8 bytes), unscaling them in fp16 (8), casting bf16 gradients (6) and
copying weights (6). Here clipping reads the gradients once (4), and the update writes the copies (2). PyTorch launches
a kernel for every few dozen tensors; here the number of launches is constant.

Gradients are left as they are. State and checkpoints are those of the optimizers without fusion, and a run can continue
with either. Nothing waits for the device: learning rates are uploaded, and step counts, the norm and the overflow of
fp16 stay on it.

Measured on an H100: docs/results/2026-11-26-h100.md.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bert.optim.adamw import AdamW
from bert.optim.lamb import Lamb
from bert.speed.copies import LOW, copy_of
from bert.speed.fp8 import cast_weights
from bert.speed.kernels import optimizers as kernels

# What torch.nn.utils.clip_grad_norm_ adds to the norm.
_ROOM = 1e-6


class _Fused(torch.optim.Optimizer):
    """What both optimizers share: tables of their tensors, the squares of gradients, and what follows an update.

    torch.amp.GradScaler gives an optimizer with this mark its scale and overflow as `grad_scale` and `found_inf`;
    bert.optim.precision asks it for `overflow`.
    """

    _step_supports_amp_scaling = True
    keeps_addresses = True
    """Whether gradients that stay where they are save it work."""
    _rows: tuple[Tensor, Tensor] | None = None
    _places: Sequence[Any] = ()
    _numbers: Sequence[Sequence[float]] = ()
    _settings: Tensor | None = None
    _sums: Tensor | None = None
    _max_norm: float | None = None
    _casts: Sequence[Tensor] = ()

    def overflow(self) -> Tensor:
        """Return a float32 scalar on the device, 1 if a gradient is not finite and 0 otherwise."""
        table = self._table()
        if table is None:
            return torch.zeros((), device=self.param_groups[0]["params"][0].device)
        return self._squares(table)[:, 1].amax()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Release all gradients."""
        self._sums = self._max_norm = None
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._places = []  # the state has other addresses
        super().load_state_dict(state_dict)

    def _table(self) -> kernels.Table | None:
        """Return the table of all parameters that have a gradient; its rows are made again where addresses change."""
        groups = [[(p, p.grad) for p in group["params"] if p.grad is not None] for group in self.param_groups]
        places = [[(p.data_ptr(), grad.data_ptr(), grad.dtype) for p, grad in pairs] for pairs in groups]
        if places != self._places or self._casts:
            casts = list[Tensor]()
            self._rows = kernels.rows_of([[self._entry(*pair, casts) for pair in pairs] for pairs in groups])
            self._places, self._casts = places, casts
        if self._rows is None:
            return None
        rows, chunks = self._rows
        numbers = [kernels.settings_of(group) for group in self.param_groups]
        if self._settings is None or numbers != self._numbers:
            settings = kernels.sent(torch.tensor(numbers, dtype=torch.float64), rows.device)
            self._numbers, self._settings = numbers, settings
        return kernels.Table(rows, self._settings, chunks)

    def _entry(self, parameter: Tensor, gradient: Tensor, casts: list[Tensor]) -> kernels.Entry:
        state, copy = self._state_of(parameter), copy_of(parameter)  # type: ignore[attr-defined]
        low = gradient.dtype in (torch.float32, LOW)
        read = gradient.contiguous() if low else gradient.float().contiguous()
        if read is not gradient:
            casts.append(read)  # the table has its address alone
        return kernels.Entry(
            parameter, read, state["exp_avg"], state["exp_avg_sq"],
            None if copy is None else copy.values, state.get("step"),
        )  # fmt: skip

    def _squares(self, table: kernels.Table) -> Tensor:
        if self._sums is None:
            self._sums = kernels.sum_squares(table)
        return self._sums

    def _written(self) -> None:
        """Raise the versions of what the kernels have written, and note that the copies are those of the parameters."""
        written = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        copies = [(parameter, copy) for parameter in written if (copy := copy_of(parameter)) is not None]
        increment_version([*written, *(copy.values for _, copy in copies)])
        for parameter, copy in copies:
            copy.version = parameter._version
        cast_weights(self.param_groups)
        self._sums = None


class FusedAdamW(_Fused, AdamW):
    """PyTorch's AdamW (Loshchilov and Hutter 2019), for float32 and bf16 gradients.

    Its state is that of PyTorch's. `bert.speed.fuses_optimizer` says which parameters it can update.
    """

    clips = True

    def clip(self, max_norm: float) -> None:
        """Have the next step scale all gradients so that their global 2-norm, unscaled, is at most `max_norm`.

        Gradients that are not finite leave the step out.
        """
        self._max_norm = max_norm
        self.found_inf = self.overflow()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, unless `found_inf` is 1."""
        table = self._table()
        max_norm, self._max_norm = self._max_norm, None
        if table is not None:
            scale, found = getattr(self, "grad_scale", None), self.found_inf
            prepared = kernels.prepare(table, self._sums, max_norm=max_norm, room=_ROOM, scale=scale, found=found)
            kernels.update(table, prepared)
            self._written()


class FusedLamb(_Fused, Lamb):
    """NVIDIA's LAMB with the formulas, arguments and state of `bert.optim.lamb.Lamb`, for bf16 gradients too.

    Gradients that are not finite skip the update on the device, so the number of steps is counted there.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        table = self._table()
        if table is None:
            return
        scale, max_norm = getattr(self, "grad_scale", None), self.param_groups[0]["max_grad_norm"]
        if scale is None and max_norm is not None:
            self.found_inf = self.overflow()
        sums = None if max_norm is None else self._squares(table)
        count = self._begin(table.rows.device, self.found_inf)
        prepared = kernels.prepare(table, sums, max_norm=max_norm, scale=scale, found=self.found_inf, count=count)
        kernels.update(table, prepared, trusts=True)
        self._written()
