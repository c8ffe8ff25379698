"""Compiles every kernel of bert.speed.kernels for GPUs that are not there, and prints what the compiler made, as JSON.

A program of its own: Triton's interpreter, which other tests use, must not have been asked for. Forward and backward
passes run on tensors of the device "meta", and each kernel is compiled as its launch asks for it, but never run.
Shapes are those of BERT large with 30,528 words.
"""

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from bert.optim.fused import FusedAdamW, FusedLamb
from bert.speed import kernels
from bert.speed.copies import give_copies
from bert.speed.fp8 import GRADIENT, Cast, Fp8Copy, OutputGradient
from bert.speed.kernels import attention, gelu, norm, optimizers, quantize, vocabulary

ARCHITECTURES = (80, 90, 100)
FP8_FROM = 89  # no cast to E4M3 before
HIDDEN, INNER, WORDS, ROWS = 1024, 4096, 30528, 77
DEVICE = "meta"
FORMS = {"bf16": torch.bfloat16, "fp16, bare": torch.float16, "fp32, bare": torch.float32}


class Driver:
    """That of a GPU that is not there: what Triton asks one for before it compiles."""

    architecture = ARCHITECTURES[0]

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_stream(self, device: int) -> int:
        return 0


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=DEVICE, requires_grad=dtype.is_floating_point)


def layer(rows: int, dtype: torch.dtype, bare: bool) -> None:
    """Run what a layer launches; bare is without dropout, biases and second gradients."""
    x, residual, weight, shift, bias = (
        *(numbers(rows, HIDDEN, dtype=dtype) for _ in range(2)),
        *(numbers(HIDDEN) for _ in range(3)),
    )
    results = norm.residual_norm(x, residual, weight, shift, 1e-12, *((0.0, None) if bare else (0.1, bias)))
    sum(one.sum() for one in results[: 1 if bare else 2]).backward()
    gelu.gelu(numbers(rows, INNER, dtype=dtype), None if bare else numbers(INNER))[0].sum().backward()


def attend(rows: int, dtype: torch.dtype, bare: bool, width: int = 64) -> None:
    """Run what attention over concatenated sequences launches."""
    qkv, bias = numbers(rows, 3, HIDDEN // width, width, dtype=dtype), None if bare else numbers(3 * HIDDEN)
    attention.attention(qkv, numbers(rows, 3, dtype=torch.int32), 0.0 if bare else 0.1, bias).sum().backward()


def ends(rows: int, dtype: torch.dtype, bare: bool) -> None:
    """Run what embeddings, the loss and FP8 launch."""
    ids = numbers(rows, dtype=torch.int64)
    tables = numbers(WORDS, HIDDEN), numbers(512, HIDDEN), None if bare else numbers(2, HIDDEN)
    tokens = ids, ids, None if bare else ids
    plain = torch.nn.LayerNorm(HIDDEN, device=DEVICE)
    vocabulary.embed(tables, tokens, plain, 0.0 if bare else 0.1, dtype, 0).sum().backward()
    vocabulary.mean_cross_entropy(numbers(rows, WORDS, dtype=dtype) * 1, ids).backward()
    if Driver.architecture >= FP8_FROM and dtype == torch.bfloat16:
        values, scalars = numbers(rows, HIDDEN, dtype=dtype).detach(), numbers(3).detach()
        for number, form in enumerate((torch.float8_e4m3fn, torch.float8_e5m2)):  # whichever way scalars are aligned
            quantize.cast_both_ways(values, Cast(form, scalars[number], scalars[number + 1]))
        in_fp8(rows, dtype, scalars)


def in_fp8(rows: int, dtype: torch.dtype, scalars: Tensor) -> None:
    """Run what a norm and GELU between two linear layers in FP8 launch."""
    x, residual, inner = (numbers(rows, width, dtype=dtype) for width in (HIDDEN, HIDDEN, INNER))
    weight, shift, bias, inner_bias = (numbers(width) for width in (HIDDEN, HIDDEN, HIDDEN, INNER))
    into, before = Cast(torch.float8_e4m3fn, scalars[0], scalars[1]), Fp8Copy(numbers(16, 16).detach())
    before.scales.cast(before.layer, GRADIENT, measure=lambda: scalars[2])
    output = OutputGradient(before)
    wide, narrow, _ = norm.residual_norm(x, residual, weight, shift, 1e-12, 0.1, bias, into, output)
    torch.autograd.grad([wide.sum(), narrow.sum()], x)
    torch.autograd.grad(gelu.gelu(inner, inner_bias, into, output)[0].sum(), inner)


def updates(tensors: int, clips: bool) -> None:
    """Run what optimizers launch: with clipping and copies, or with a scale of fp16."""
    parameters = [torch.nn.Parameter(numbers(HIDDEN, 3)) for _ in range(tensors)]
    if clips:
        give_copies(parameters, gradients=False)
        if Driver.architecture >= FP8_FROM:
            into = Cast(torch.float8_e4m3fn, numbers().detach(), numbers().detach())
            quantize.casts_together([(numbers(HIDDEN, 48, dtype=torch.bfloat16).detach(), into)] * tensors)()
    for parameter in parameters:
        parameter.grad = numbers(HIDDEN, 3).detach()
    for optimizer in (
        FusedAdamW(parameters, 0.1, (0.9, 0.999), 1e-6, 0.01),
        FusedLamb(parameters, 0.1, max_grad_norm=1.0 if clips else None),
    ):
        if clips and isinstance(optimizer, FusedAdamW):
            optimizer.clip(1.0)
        if not clips:
            optimizer.grad_scale, optimizer.found_inf = numbers(), numbers()  # type: ignore[union-attr]
        optimizer.step()


def launched() -> list[dict[str, Any]]:
    """Return every launch: its kernel, form, architecture and code."""
    found = list[dict[str, Any]]()

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, **constants: Any) -> None:
        code = kernel.warmup(*arguments, grid=grid, num_warps=warps, **constants)
        given = {name for name, one in zip(kernel.arg_names, arguments, strict=False) if one is not None}
        name = kernel.__name__ + (" to FP8" if {"low", "form"} & (given | constants.keys()) else "")
        if kernel is optimizers.optimizer_update:
            name += " for moments" if "sums" in given else " by ratios" if "ratios" in given else " of AdamW"
        found.append({
            "kernel": name, "form": form, "architecture": Driver.architecture, "code": code.hash,
            "warps": warps, "shared_bytes": code.metadata.shared, "loads": widths(code.asm["ptx"], "ld"),
            "stores": widths(code.asm["ptx"], "st"),
            **resources(code.asm["cubin"], re.search("cvt.*e[45]m[32]|mma", code.asm["ptx"]) is not None),
        })  # fmt: skip

    attention.processor = lambda device: kernels.Processor(Driver.architecture // 10, 132)  # type: ignore[attr-defined]
    for module in (norm, gelu, attention, vocabulary, quantize, optimizers):
        module.launch = launch  # type: ignore[attr-defined]
    kernels.DEVICES.add("meta")
    driver.set_active(Driver())
    for Driver.architecture in ARCHITECTURES:
        for form, dtype in FORMS.items():
            if form == "bf16" or Driver.architecture == 90:
                layer(ROWS, dtype, form != "bf16")
                ends(ROWS, dtype, form != "bf16")
                updates(ROWS, form == "bf16")
                if dtype != torch.float32:
                    attend(ROWS, dtype, form != "bf16")
    Driver.architecture, form = 90, "heads of 128"
    attend(ROWS, torch.bfloat16, False, 128)
    form = "bf16"
    for rows in (1, 64):  # numbers that are divided by 16 or are 1 must not have code of their own
        layer(rows, torch.bfloat16, False)
        ends(rows, torch.bfloat16, False)
        updates(rows, True)
        attend(rows, torch.bfloat16, False)
    return found


def widths(text: str, operation: str) -> list[int]:
    """Return the bits of every access to global memory in PTX; loads include copies to shared memory."""
    found = re.findall(rf"\b{operation}\.global(?:\.\w+(?:::\w+)*)*?(?:\.v(\d))?\.b(\d+)", text)
    copied = r"\bcp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)"
    copies = re.findall(copied, text) if operation == "ld" else []
    return [int(vector or 1) * int(bits) for vector, bits in found] + [8 * int(size, 0) for size in copies]


def undefined_reads(code: str) -> int:
    """Count the instructions of a disassembled kernel without a stack that read the register of the stack's pointer.

    The assembler of CUDA 12.8 and 12.9 can take bytes of a cast to FP8 from it; the compiler knows of no such use.
    """
    return len(re.findall(r"\*/\s+(?:@\S+ )?[A-Z0-9_.]+ [^;]*, R1\b(?!\d)", code))


def tile_instructions(code: str) -> int:
    """Return the instructions of the shortest loop with tensor-core operations in a disassembled kernel, or 0."""
    begins, operations, found = dict[str, int](), list[str](), list[int]()
    for label, operation in re.findall(r"^(\.L_x_\d+):|/\*[0-9a-f]+\*/\s+([^;]*);", code, re.MULTILINE):
        if label:
            begins[label] = len(operations)
            continue
        operations.append(operation)
        target = re.search(r"BRA.*\((\.L_x_\d+)\)", operation)
        loop = operations[begins[target[1]] :] if target and target[1] in begins else []
        if any("MMA" in one for one in loop):
            found.append(len(loop))
    return min(found, default=0)


@functools.cache
def resources(cubin: bytes, reads: bool) -> dict[str, int]:
    """Return registers of a thread, bytes of its stack and local memory, where registers spill to, and if its code is
    read its undefined reads and the instructions of a tile.
    """
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"

    def said(tool: str, option: str) -> str:
        return subprocess.run([tools / tool, option, file.name], check=True, capture_output=True, text=True).stdout

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text, code = said("cuobjdump", "-res-usage"), said("nvdisasm", "-c") if reads else ""
    sizes = {name: int(re.findall(rf"{word}:(\d+)", text)[0])
             for name, word in (("registers", "REG"), ("stack_bytes", "STACK"), ("local_bytes", "LOCAL"))}  # fmt: skip
    return {
        **sizes,
        "undefined_reads": 0 if sizes["stack_bytes"] else undefined_reads(code),
        "tile_instructions": tile_instructions(code),
    }


if __name__ == "__main__":
    json.dump(launched(), sys.stdout)
