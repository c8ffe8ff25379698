"""Numeric precision of training: autocast, TF32 and gradient scaling."""

from contextlib import AbstractContextManager, nullcontext

import torch

from common.errors import UsageError

_AUTOCAST_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, tf32 (CUDA only), bf16 (autocast) or fp16 (autocast with loss scaling).

    Raises:
        UsageError: the device cannot run this precision.
    """

    def __init__(self, name: str, device_type: str) -> None:
        if name == "tf32" and device_type != "cuda":
            raise UsageError(f"precision tf32 needs a CUDA device, this trial runs on {device_type}: use fp32 or bf16")
        if name not in ("fp32", "tf32", *_AUTOCAST_DTYPE):
            raise UsageError(f"unknown precision {name!r}: choose one of fp32, tf32, bf16, fp16")
        self.name = name
        self.device_type = device_type
        self.autocast_dtype = _AUTOCAST_DTYPE.get(name)
        self.scaler = torch.amp.GradScaler(device_type) if name == "fp16" else None
        if device_type == "cuda":
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")

    @property
    def matmul_dtype(self) -> torch.dtype:
        """Element type the matrix products run in."""
        return self.autocast_dtype or torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Around the forward pass."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast_dtype)
