"""Numeric precision of training: autocast, TF32 and gradient scaling."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from common.errors import InputError, UsageError

AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


class _Scaler(torch.amp.GradScaler):
    """PyTorch's scaler, which asks optimizers that look for overflows themselves (bert.optim.fused).

    It would otherwise read and write all gradients to find them.
    """

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        overflow = getattr(optimizer, "overflow", None)
        if overflow is None:
            return super()._check_inf_per_device(optimizer)
        found = overflow()
        per_device: dict[Any, torch.Tensor] = {found.device: found}
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = per_device
        return per_device


class Precision:
    """fp32, tf32 (CUDA only), bf16 (autocast) or fp16 (autocast with loss scaling).

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
            raise UsageError("option-choice", f"unknown precision {name!r}: choose one of fp32, tf32, bf16, fp16")
        self.name = name
        self.device_type = device_type
        self.autocast_dtype = AUTOCAST_DTYPE.get(name)
        self.scaler: torch.amp.GradScaler | None = None
        if name == "fp16":
            self.scaler = _Scaler(device_type)
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

    def step(self, optimizer: torch.optim.Optimizer, wait: bool = True) -> bool | None:
        """Step the optimizer, unless the scaled gradients overflowed. Return whether the update was applied.

        Optimizers that see to overflows in their own kernel (fused AdamW) leave the answer on the GPU: to read it
        the host waits for the GPU, or without `wait` the answer is None. Others have made the scaler wait anyway.
        """
        if self.scaler is None:
            optimizer.step()
            return True
        stepped: list[torch.Tensor | None] = []

        def note(stepper: torch.optim.Optimizer, *arguments: Any) -> None:
            stepped.append(getattr(stepper, "found_inf", None))

        hook = optimizer.register_step_post_hook(note)
        try:
            self.scaler.step(optimizer)
        finally:
            hook.remove()
        self.scaler.update()
        if not stepped:
            return False
        found_overflow = stepped[0]
        if found_overflow is None:
            return True
        if found_overflow.device.type != "cpu" and not wait:
            return None
        return not bool(found_overflow.item())

    def state_dict(self) -> dict[str, Any]:
        """Scale and its history as plain numbers; empty if nothing is scaled. Reading it waits for a GPU."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved scale; one of another precision is ignored. Raises InputError for a damaged one."""
        if self.scaler is None or not state:
            return
        scale = state.get("scale")
        missing = sorted(set(self.scaler.state_dict()) - set(state))
        if missing or not isinstance(scale, int | float) or not 0 < scale < math.inf:
            problem = f"{', '.join(missing)} missing" if missing else f"scale={scale!r}"
            raise InputError(
                "file-damaged",
                f"the saved loss-scaler state is invalid ({problem}): use another checkpoint",
            )
        self.scaler.load_state_dict(state)
