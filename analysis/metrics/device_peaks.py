"""Highest rates of GPUs, dense, by the name that the driver gives them, as NVIDIA publishes them.

Values are for matrices without sparsity and for sums in fp32; those with sparsity, which data sheets print larger, are
twice as high and wrong here. Sources, all NVIDIA's: H200, H100, A100, V100, P100 from their data sheets and the white
papers "NVIDIA H100 Tensor Core GPU Architecture", "NVIDIA A100 Tensor Core GPU Architecture", "NVIDIA Tesla V100 GPU
Architecture" and "NVIDIA Tesla P100"; the memory of the H100 PCIe from 5120 bit at 1593 MHz (its product brief
PB-11133-001 says "greater than 2,000 GB/s"); L4, L40S and A10 from their data sheets; T4 from its product brief;
GeForce from the white papers "NVIDIA Turing GPU Architecture" (reference card, sums in fp32), "NVIDIA Ampere GA102 GPU
Architecture" and "NVIDIA Ada GPU Architecture".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """Highest rates of one GPU."""

    name: str
    """What people call it."""
    flops: Mapping[str, float]
    """FLOP/s by type: fp32, fp64, fp16 outside the tensor cores, tensor_<type of the inputs> inside; absent: unknown.
    """
    bytes_per_second: float
    """To and from its memory."""


def _peaks(name: str, gb_per_second: float, **tera: float) -> DevicePeaks:
    return DevicePeaks(name, {kind: value * 1e12 for kind, value in tera.items()}, gb_per_second * 1e9)


_HOPPER = {"fp64": 33.5, "fp32": 66.9, "fp16": 133.8, "tensor_fp64": 66.9, "tensor_tf32": 494.7, "tensor_fp16": 989.4,
           "tensor_bf16": 989.4, "tensor_fp8": 1978.9}  # fmt: skip
_AMPERE = {"fp64": 9.7, "fp32": 19.5, "fp16": 78.0, "tensor_fp64": 19.5, "tensor_tf32": 156.0, "tensor_fp16": 312.0,
           "tensor_bf16": 312.0}  # fmt: skip

# Looked for in the whole name; the name must fit to its end, so that a variant nobody listed is unknown.
_TABLE: tuple[tuple[str, DevicePeaks], ...] = (
    (r"H200", _peaks("H200 SXM", 4800, **_HOPPER)),
    (r"H100 80GB HBM3", _peaks("H100 SXM", 3350, **_HOPPER)),
    (r"H100 PCIe", _peaks("H100 PCIe", 2039, fp64=25.6, fp32=51.2, fp16=102.4, tensor_fp64=51.2, tensor_tf32=378.0,
                          tensor_fp16=756.0, tensor_bf16=756.0, tensor_fp8=1513.0)),
    (r"A100-SXM4-80GB", _peaks("A100 SXM 80 GB", 2039, **_AMPERE)),
    (r"A100-SXM4-40GB", _peaks("A100 SXM 40 GB", 1555, **_AMPERE)),
    (r"A100 80GB PCIe", _peaks("A100 PCIe 80 GB", 1935, **_AMPERE)),
    (r"A100-PCIE-40GB", _peaks("A100 PCIe 40 GB", 1555, **_AMPERE)),
    (r"V100-SXM2-(?:16|32)GB", _peaks("V100 SXM2", 900, fp64=7.8, fp32=15.7, fp16=31.4, tensor_fp16=125.0)),
    (r"V100-PCIE-(?:16|32)GB", _peaks("V100 PCIe", 900, fp64=7.0, fp32=14.0, fp16=28.0, tensor_fp16=112.0)),
    (r"P100-SXM2-16GB", _peaks("P100 SXM2", 732, fp64=5.3, fp32=10.6, fp16=21.2)),
    (r"P100-PCIE-16GB", _peaks("P100 PCIe 16 GB", 732, fp64=4.7, fp32=9.3, fp16=18.7)),
    (r"P100-PCIE-12GB", _peaks("P100 PCIe 12 GB", 549, fp64=4.7, fp32=9.3, fp16=18.7)),
    (r"L40S", _peaks("L40S", 864, fp32=91.6, tensor_tf32=183.0, tensor_fp16=362.05, tensor_bf16=362.05,
                     tensor_fp8=733.0)),
    (r"L4", _peaks("L4", 300, fp32=30.3, tensor_tf32=60.0, tensor_fp16=121.0, tensor_bf16=121.0, tensor_fp8=242.5)),
    (r"A10", _peaks("A10", 600, fp32=31.2, tensor_tf32=62.5, tensor_fp16=125.0, tensor_bf16=125.0)),
    (r"T4", _peaks("T4", 320, fp32=8.1, tensor_fp16=65.0)),
    (r"GeForce RTX 4090", _peaks("GeForce RTX 4090", 1008, fp32=82.6, fp16=82.6, tensor_tf32=82.6, tensor_fp16=165.2,
                                 tensor_bf16=165.2)),
    (r"GeForce RTX 3090", _peaks("GeForce RTX 3090", 936, fp32=35.6, fp16=35.6, tensor_tf32=35.6, tensor_fp16=71.0,
                                 tensor_bf16=71.0)),
    (r"GeForce RTX 2080 Ti", _peaks("GeForce RTX 2080 Ti", 616, fp32=13.4, fp16=26.9, tensor_fp16=53.8)),
)  # fmt: skip


def device_peaks(device_name: str | None) -> DevicePeaks | None:
    """Return the published peaks of a GPU; None for one that is not in the table, a slice of a GPU (MIG) included.

    Args:
        device_name: what the driver calls it, such as "NVIDIA A100-SXM4-80GB".
    """
    if device_name is None:
        return None
    name = re.sub(r"^(?:NVIDIA|Tesla|\s)+", "", device_name.strip(), flags=re.IGNORECASE)
    for pattern, peaks in _TABLE:
        if re.fullmatch(pattern, name, flags=re.IGNORECASE):
            return peaks
    return None
