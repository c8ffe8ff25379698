"""Numeric precision of training: autocast, TF32 and gradient scaling."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from bert.private import Scaler
from common.errors import UsageError

AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""Type of the GEMMs; in fp8 that of those that are not of layers (bert.speed.copy_weights)."""


class Precision:
    """fp32, tf32 (CUDA only), bf16 (autocast), fp16 (autocast with loss scaling) or fp8 (bf16, layers' GEMMs in FP8).

    fp16 multiplies the loss by a scale, at first 65,536, which halves after an overflow (whose update is left out) and
    doubles after 2,000 updates in a row without one (Micikevicius et al. 2018).

    Raises:
        UsageError: the device cannot run this precision.
    """

    def __init__(self, name: str, device_type: str) -> None:
        if name == "tf32" and device_type != "cuda":
            raise UsageError(
                "device-unsupported",
                f"precision tf32 needs a CUDA device, but this trial runs on {device_type}: use fp32 or bf16",
            )
        if name not in ("fp32", "tf32", *AUTOCAST_DTYPE):
            raise UsageError("option-choice", f"unknown precision {name!r}: choose one of fp32, tf32, bf16, fp16, fp8")
        self.name = name
        self.device_type = device_type
        self.autocast_dtype = AUTOCAST_DTYPE.get(name)
        self.scaler: torch.amp.GradScaler | None = None
        if name == "fp16":
            self.scaler = Scaler(device_type)
        if device_type == "cuda":
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")

    @property
    def matmul_dtype(self) -> torch.dtype:
        """Element type of the GEMMs."""
        return self.autocast_dtype or torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Around the forward pass."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast_dtype)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to differentiate."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients back to their own size, before they are clipped. Once per step."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def guard(self, optimizer: torch.optim.Optimizer, norm: torch.Tensor) -> None:
        """Have the next step change nothing if the gradients' norm is not finite; the scaler sees to it itself."""
        if self.scaler is None:
            optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]

    def step(self, optimizer: torch.optim.Optimizer, wait: bool = True) -> bool | torch.Tensor:
        """Step the optimizer, unless gradients are not finite. Return whether the update was applied.

        In fp16 the scaler looks at the gradients, otherwise what clips them. Where the answer is on a GPU it is a
        scalar there, 1 if the update was left out; in fp16 with `wait` the host waits for it.
        """
        if self.scaler is None:
            optimizer.step()
            applied = outcome(optimizer, wait=False)
            vars(optimizer).pop("found_inf", None)
            return applied
        stepped: list[bool | torch.Tensor] = []

        def note(stepper: torch.optim.Optimizer, *arguments: Any) -> None:
            asked = getattr(stepper, "_step_supports_amp_scaling", False)  # the scaler waits for the others itself
            stepped.append(outcome(stepper, wait) if asked else True)

        hook = optimizer.register_step_post_hook(note)
        try:
            self.scaler.step(optimizer)
        finally:
            hook.remove()
        self.scaler.update()
        return stepped[0] if stepped else False

    def state_dict(self) -> dict[str, Any]:
        """Scale and its history as plain numbers; empty if nothing is scaled. Reading it waits for a GPU."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved scale; one of another precision is ignored."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)


def outcome(optimizer: torch.optim.Optimizer, wait: bool) -> bool | torch.Tensor:
    """Return whether an optimizer has applied its last step, as Precision.step does."""
    left_out = getattr(optimizer, "found_inf", None)
    if left_out is None:
        return True
    return not bool(left_out) if wait or left_out.device.type == "cpu" else left_out
