"""Compiles every kernel of bert.speed.kernels for GPUs that are not there, and prints what the compiler made, as JSON.

A program of its own: Triton's interpreter, which other tests use, must not have been asked for. Shapes are those of
BERT large with 30,528 words, types those of bf16.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bert.speed import kernels
from bert.speed.kernels import embedding, gelu, heads, loss, norm, quantize

ARCHITECTURES = (80, 90, 100)
FP8_FROM = 89  # no cast to E4M3 before
LOW, WIDE, NUMBERS = "*bf16", "*fp32", "*i64"
DROPOUT = {"dropped": 6554, "scale": 65536 / (65536 - 6554)}
HIDDEN, INNER, WORDS = 1024, 4096, 30528
# Kernel -> its function, constants, warps, and the types of its arguments.
Case = tuple[Any, dict[str, Any], int, list[str]]


def cases() -> dict[str, Case]:
    row = {"width": HIDDEN, "columns": kernels.columns_of(HIDDEN), **DROPOUT}
    warps = kernels.warps_of(row["columns"])
    tile = norm._ROWS
    wide = {"width": INNER, "columns": gelu._COLUMNS, "tile": gelu._ROWS}
    split = {"width": HIDDEN, "columns": heads._COLUMNS, "tile": heads._ROWS}
    columns = min(loss._MOST_COLUMNS, kernels.columns_of(WORDS))
    words = {"width": WORDS, "columns": columns, "ignored": loss._IGNORED}
    tables = [WIDE, WIDE, WIDE, NUMBERS, NUMBERS, NUMBERS, WIDE]
    return {
        "norm forward": (
            norm.dropout_layer_norm_forward, row, warps,
            [LOW, LOW, WIDE, WIDE, WIDE, NUMBERS, LOW, WIDE, WIDE, "i32", "fp32"],
        ),
        "norm backward": (
            norm.dropout_layer_norm_backward, {**row, "tile": tile}, kernels.warps_of(tile * row["columns"]),
            [LOW, LOW, WIDE, WIDE, NUMBERS, WIDE, WIDE, LOW, LOW, LOW, LOW, WIDE, "i32"],
        ),
        "gelu forward": (gelu.bias_gelu_forward, wide, gelu._WARPS, [LOW, WIDE, LOW, "i32"]),
        "gelu backward": (gelu.bias_gelu_backward, wide, gelu._WARPS, [LOW, WIDE, LOW, LOW, WIDE, "i32"]),
        "heads": (heads.copy_qkv_gradients, split, heads._WARPS, [LOW, LOW, LOW, LOW, WIDE, "i32"]),
        "loss forward": (loss.cross_entropy_forward, words, kernels.warps_of(columns), [LOW, NUMBERS, WIDE, WIDE]),
        "loss backward": (loss.cross_entropy_backward, words, kernels.warps_of(columns), [LOW, NUMBERS, WIDE, WIDE]),
        "embedding forward": (
            embedding.embedding_layer_norm_forward, row, warps, [*tables, WIDE, NUMBERS, LOW, WIDE, WIDE, "fp32"],
        ),
        "embedding backward": (
            embedding.embedding_layer_norm_backward, row, warps, [*tables, NUMBERS, WIDE, WIDE, LOW, WIDE, WIDE, "i32"],
        ),
        "cast": (
            quantize.quantize_both_ways, {"width": HIDDEN, "limit": 448.0, "multiple": 16, "tile": quantize._TILE},
            quantize._WARPS,
            [LOW, WIDE, "*fp8e4nv", "*fp8e4nv", WIDE, "i32", "i32"],
        ),
    }  # fmt: skip


def bare_cases() -> dict[str, Case]:
    """The same without dropout, biases and second gradients, in other types."""
    half, none = "*fp16", {"dropped": 0, "scale": 1.0}
    row = {"width": HIDDEN, "columns": kernels.columns_of(HIDDEN), **none, "key": None}
    warps, tile = kernels.warps_of(row["columns"]), norm._ROWS
    wide = {"width": INNER, "columns": gelu._COLUMNS, "tile": gelu._ROWS, "bias": None}
    tables = [WIDE, WIDE, NUMBERS, NUMBERS, WIDE]
    return {
        "norm forward": (
            norm.dropout_layer_norm_forward, row | {"bias": None}, warps,
            [WIDE, WIDE, WIDE, WIDE, WIDE, WIDE, WIDE, "i32", "fp32"],
        ),
        "norm backward": (
            norm.dropout_layer_norm_backward, {**row, "tile": tile, "bias": None, "other_grad": None},
            kernels.warps_of(tile * row["columns"]), [half, WIDE, WIDE, WIDE, WIDE, half, half, WIDE, WIDE, "i32"],
        ),
        "gelu forward": (gelu.bias_gelu_forward, wide, gelu._WARPS, [half, half, "i32"]),
        "gelu backward": (gelu.bias_gelu_backward, wide | {"sums": None}, gelu._WARPS, [half, half, half, "i32"]),
        "embedding forward": (
            embedding.embedding_layer_norm_forward, row | {"segments": None, "types": None}, warps,
            [*tables, WIDE, half, WIDE, WIDE, "fp32"],
        ),
        "embedding backward": (
            embedding.embedding_layer_norm_backward, row | {"segments": None, "types": None}, warps,
            [*tables, WIDE, WIDE, half, WIDE, WIDE, "i32"],
        ),
        "cast": (
            quantize.quantize_both_ways, {"width": HIDDEN, "limit": 57344.0, "multiple": 16, "tile": quantize._TILE},
            quantize._WARPS, [LOW, WIDE, "*fp8e5", "*fp8e5", WIDE, "i32", "i32"],
        ),
    }  # fmt: skip


def compiled(case: Case, architecture: int) -> dict[str, Any]:
    """Compile a kernel as its launch does, where every tensor begins at a multiple of 16 bytes."""
    function, constants, warps, types = case
    names = [name for name in function.arg_names if name not in constants]
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in function.arg_names}
    aligned = {(number,): [["tt.divisibility", 16]] for number, name in enumerate(names) if signature[name][0] == "*"}
    source = ASTSource(function, signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": warps})
    text = made.asm["ptx"]
    return {
        "name": function.__name__, "architecture": architecture, "shared_bytes": made.metadata.shared, "warps": warps,
        "loads": widths(text, "ld"), "stores": widths(text, "st"), **resources(made.asm["cubin"]),
    }  # fmt: skip


def widths(text: str, operation: str) -> list[int]:
    """Return the bits of every access to global memory in PTX."""
    found = re.findall(rf"\b{operation}\.global(?:\.\w+(?:::\w+)*)*?(?:\.v(\d))?\.b(\d+)", text)
    return [int(vector or 1) * int(bits) for vector, bits in found]


def resources(cubin: bytes) -> dict[str, int]:
    """Return registers of a thread, and bytes of its stack and local memory: where registers spill to."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    return {name: int(re.findall(rf"{word}:(\d+)", text)[0])
            for name, word in (("registers", "REG"), ("stack_bytes", "STACK"), ("local_bytes", "LOCAL"))}  # fmt: skip


if __name__ == "__main__":
    json.dump(
        {
            name: [compiled(case, one) for one in ARCHITECTURES if one >= FP8_FROM or name != "cast"]
            for name, case in cases().items()
        }
        | {f"{name}, bare": [compiled(case, 90)] for name, case in bare_cases().items()},
        sys.stdout,
    )
