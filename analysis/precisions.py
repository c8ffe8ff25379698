"""The types that matrix products run in, as the names of their kernels or the types of their inputs tell."""

import re
from functools import lru_cache

PRECISIONS = ("", "mxfp4", "nvfp4", "fp4", "mxfp8", "fp8", "int4", "int8", "bf16", "fp16", "tf32", "fp64", "fp32")
"""What `precision` returns; "" where a name does not tell."""

_MOST_READ = 4096

# cuBLAS' nvjet kernels begin with letters for the types: q FP8 (with a scale per block: mxfp8), t bf16, h fp16.
_NVJET = re.compile(r"^nvjet_(?:sm\d+_)?([a-z]+)_")
_NVJET_TYPES = {"q": "fp8", "t": "bf16", "h": "fp16"}
# Tensile's begin with the layout of the product, then letters for the types: Cijk_Alik_Bljk_BBS_BH_..., .._F8BS_...
_TENSILE = re.compile(r"^(?:custom_)?cijk_[a-z]+_[a-z]+_(f4|f8|b8|i8|[bhsd])([a-z0-9]*)_(m?x_)?")
_TENSILE_TYPES = {
    "f4": "mxfp4", "f8": "fp8", "b8": "fp8", "i8": "int8", "b": "bf16", "h": "fp16", "s": "fp32", "d": "fp64",
}  # fmt: skip
# The narrowest type decides, so it comes first: of a product of bf16 with weights in MXFP4 the weights' type.
_NAMED = tuple(
    (label, re.compile(pattern))
    for label, pattern in (
        ("mxfp4", r"mx_?fp4|mx_float4|mxe2m1|ue8m0xe2m1"),
        ("nvfp4", r"nv_?fp4|nv_float4|ue4m3xe2m1"),
        ("fp4", r"e2m1|(?<![a-z])fp4|float4_e"),
        ("mxfp8", r"mx_?fp8|mx_float8|mxe[45]m[32]|ue8m0xe[45]m[32]"),
        ("fp8", r"e4m3|e5m2|(?<![a-z])fp8|float8"),
        ("int4", r"(?<![a-z])u?int4(?!\d)|w4a16"),
        ("int8", r"(?:^|_)i\d{3,6}gemm|imma|igemm|(?<![a-z])u?int8(?!\d)|s8s8|signed char"),
        ("bf16", r"bf16|bfloat16"),
        ("fp16", r"(?<![a-z])f(?:p|loat)?16|\d{2}f16|(?:^|_)h\d*gemm|__half|(?<![a-z])half(?![a-z])"),
        ("tf32", r"tf32|tfloat32|tensorop_s\d+gemm|xf32"),
        ("fp64", r"(?:^|_)d\d*gemm|(?<![a-z])double(?![a-z])|f64f64"),
        ("fp32", r"(?:^|_)sgemm|f32f32|(?<![a-z])fp32|(?<![a-z_])float(?![a-z0-9_])|simt_s"),
    )
)


@lru_cache(maxsize=65536)
def precision(name: str) -> str:
    """Return which of PRECISIONS a matrix product ran in; "" where that is not told.

    Args:
        name: a kernel's name, or the types of a product's inputs as PyTorch names them ("c10::BFloat16").
    """
    text = name[:_MOST_READ].lower()
    if found := _NVJET.match(text):
        label = _NVJET_TYPES.get(found[1][0], "")
        return "mxfp8" if label == "fp8" and "ue8m0" in text else label
    if found := _TENSILE.match(text):
        return "tf32" if found[3] and found[1] == "s" else _TENSILE_TYPES[found[1]]
    return next((label for label, pattern in _NAMED if pattern.search(text)), "")
