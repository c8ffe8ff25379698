"""The table of devices: peaks and links by what the driver calls a GPU."""

import pytest

from analysis.metrics.kernels.devices import device_of, devices


@pytest.mark.parametrize(
    ("name", "kind", "tera", "gb_s", "link"),
    [
        ("NVIDIA B200", "tensor_bf16", 2250, 8000, 900),
        ("NVIDIA GB300", "fp32", None, None, 900),
        ("NVIDIA H200", "tensor_bf16", 989.4, 4800, 450),
        ("NVIDIA H100 80GB HBM3", "tensor_fp16", 989.4, 3350, 450),
        ("NVIDIA H20", "tensor_bf16", None, None, 450),
        ("NVIDIA GH200 144G HBM3e", "fp32", 67, 4900, 450),
        ("NVIDIA A100-SXM4-80GB", "tensor_fp16", 312, 2039, 300),
        ("NVIDIA A800-SXM4-80GB", "tensor_bf16", None, None, 200),
        ("Tesla V100-SXM2-16GB", "tensor_fp16", 125, 900, 150),
        ("Tesla V100-SXM2-16GB", "tensor_bf16", None, 900, 150),
        ("Tesla T4", "tensor_fp16", 65, 320, 16),
        ("NVIDIA GeForce RTX 4090", "tensor_bf16", 165.2, 1008, 32),
        ("AMD Instinct MI300X", "tensor_bf16", 1307.4, 5300, 448),
    ],
)
def test_peaks_by_name(name: str, kind: str, tera: float | None, gb_s: float | None, link: float | None) -> None:
    device = device_of(name)
    assert device is not None
    assert device.flops.get(kind) == (None if tera is None else tera * 1e12)
    assert device.bytes_per_second == (None if gb_s is None else gb_s * 1e9)
    assert device.link_gb_s == link


def test_rows_are_dense_and_have_a_source() -> None:
    assert len(devices()) >= 30
    for device in devices().values():
        rates = device.flops
        assert device.source.startswith("https://")
        assert not rates or ("fp32" in rates and device.bytes_per_second)
        # Each halving of the width at most doubles the rate, rounding of the sheets apart.
        assert rates.get("tensor_fp8", 0) <= 2.03 * rates.get("tensor_fp16", 0) or "tensor_fp8" not in rates
