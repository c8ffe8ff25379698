"""Optimizations of a training step, each a switch. Imports no torch until one is applied.

None changes the result except for rounding and the random numbers of dropout. The defaults are
those that measured best on that class of device (docs/explanation/speed.md).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bert.speed.native import compiled, cpp_missing, has_avx512_bf16, is_wanted, triton_missing
from common.errors import MissingToolError, UsageError
from common.train_spec import TrainSpec

if TYPE_CHECKING:
    from torch import nn

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Lever:
    """One switch."""

    does: str
    """What it does, in words."""
    on: tuple[str, ...]
    """Device types on which it is on by default."""
    compiled: bool = False
    """Whether it needs a C compiler on a CPU, and Triton on a GPU."""
    device: str = ""
    """The only device type on which it has an effect; "" for every one."""
    precision: str = ""
    """The only precision in which it has an effect; "" for every one."""
    strategies: tuple[str, ...] = ()
    """The only strategies with which it has an effect; () for all."""
    several: bool = False
    """Whether it is for several ranks: a single one leaves it out."""
    capability: tuple[int, int] = (0, 0)
    """Compute capability that a GPU needs; bert.speed.kernels.usable asks for that of the kernels, too."""
    copies: bool = False
    """Whether it copies the weights for the GEMMs (bert.speed.copies)."""


# Strategies that leave every parameter whole and the same tensor, and the optimizer as it is.
_WHOLE_PARAMETERS = ("ddp", "single")

LEVERS = {
    "unpad": Lever("compute real tokens only: sequences are concatenated without padding", ("cpu", "cuda")),
    "chunks": Lever(
        "compute attention for a few sequences at a time, so that its weights stay in cache", ("cpu",), device="cpu"
    ),
    "bf16-weights": Lever(
        "with bf16: copy the weights once per update, and keep gradients in bf16 where only the update reads them",
        ("cpu", "cuda"),
        precision="bf16",
        strategies=_WHOLE_PARAMETERS,
        copies=True,
    ),
    "fused-elementwise": Lever(
        "fuse dropout, residual and norm; on a CPU also attention's softmax and dropout, and GELU's backward pass; on "
        "a GPU also bias and GELU with the bias gradient, the embeddings, and the loss of masked words",
        ("cpu", "cuda"),
        compiled=True,
        capability=(8, 0),
    ),
    "fused-optimizer": Lever(
        "with single and ddp on a GPU: update all parameters in one pass, with clipping, unscaling and the bf16 copies",
        ("cuda",),
        compiled=True,
        device="cuda",
        strategies=_WHOLE_PARAMETERS,
        capability=(8, 0),
    ),
    "bf16-attention": Lever(
        "with bf16: run attention's GEMMs in bf16 too, if the CPU has the instructions",
        ("cpu",),
        device="cpu",
        precision="bf16",
    ),
    "fp8": Lever(
        "with bf16: run the GEMMs of linear layers in FP8",
        (),
        precision="bf16",
        strategies=_WHOLE_PARAMETERS,
        capability=(8, 9),
        copies=True,
    ),
    "compile": Lever(
        "torch.compile every layer, which fuses the operations between GEMMs; with unpad only on a GPU in 16-bit types",
        (),
    ),
    "balance": Lever(
        "with several ranks and unpad: divide a global batch by the work of its sequences, so that no rank "
        "waits for another",
        ("cpu", "cuda"),
        several=True,
    ),
    "bf16-gradients": Lever("ddp: all-reduce gradients in bf16", (), strategies=("ddp",), several=True),
}


def resolve_levers(text: str, device_type: str) -> frozenset[str]:
    """Return the optimizations that a text names: names joined by "+", "none", or "auto" for those of the device type.

    What must be compiled is compiled here, if it has not been before; what cannot be is left out of "auto".

    Raises:
        UsageError: a name that does not exist, or two that exclude each other.
        MissingToolError: one that must be compiled, and cannot be.
    """
    if text == AUTO:
        found = frozenset(name for name in default_levers(device_type) if _missing(name, device_type) is None)
        # On a GPU an optimizer that is not fused moves more for bf16 gradients and copies than the casts they replace.
        return found if device_type != "cuda" or "fused-optimizer" in found else found - {"bf16-weights"}
    check_levers(text)
    names = [] if text == NONE else text.split("+")
    if device_type == "cpu" and {"unpad", "compile"} <= set(names):
        raise UsageError(
            "option-conflict",
            f"--levers {text!r}: on a CPU, unpad and compile are incompatible, as the compiler does not support "
            "attention without padding: leave one out",
        )
    for name in names:
        missing = _missing(name, device_type)
        if missing is not None:
            raise MissingToolError(
                missing.code, f"optimization {name!r} is unavailable: {missing}; or leave it out of --levers"
            )
    return frozenset(names)


def check_levers(text: str) -> None:
    """Refuse optimizations that no device supports.

    Raises:
        UsageError: a name that does not exist, or two that exclude each other everywhere.
    """
    names = [] if text in (AUTO, NONE) else text.split("+")
    unknown = [name for name in names if name not in LEVERS]
    if unknown:
        raise UsageError(
            "option-choice",
            f"--levers {text!r}: unknown {unknown[0]!r}; give auto, none, or some of {' '.join(LEVERS)} joined by +",
        )
    if {"fp8", "compile"} <= set(names):
        raise UsageError(
            "option-conflict",
            f"--levers {text!r}: fp8 and compile are incompatible, as compiled layers cast themselves: leave one out",
        )


def default_levers(device_type: str) -> frozenset[str]:
    """Return the default optimizations of a device type if nothing is missing."""
    return frozenset(name for name, lever in LEVERS.items() if device_type in lever.on)


def _missing(name: str, device_type: str) -> MissingToolError | None:
    """Return what an optimization needs that is not installed, and how to get it; None if it can be used."""
    if (LEVERS[name].compiled or name == "compile") and device_type == "cuda":
        return triton_missing()
    if name == "compile":
        return cpp_missing()
    if LEVERS[name].compiled and device_type == "cpu" and is_wanted():
        try:
            compiled()
        except MissingToolError as error:
            return error
    return None


def balances(names: frozenset[str]) -> bool:
    """Whether ranks divide a global batch by the work of its sequences.

    Padded rows do not: the longest sequence of a global batch sets the time of its rank, the slowest, in any division.
    """
    return {"balance", "unpad"} <= names


def levers_text(names: Iterable[str]) -> str:
    """Return the canonical text of optimizations in records: "chunks+unpad", or "none"."""
    return "+".join(sorted(names)) or NONE


def recorded_levers(text: str, device_type: str) -> str:
    """Return the canonical text of optimizations in records; "" for all defaults of the device type.

    Raises:
        UsageError: a name that does not exist.
        MissingToolError: one that must be compiled, and cannot be.
    """
    names = resolve_levers(text, device_type)
    return "" if names == default_levers(device_type) else levers_text(names)


@dataclass(frozen=True)
class Setup:
    """What decides whether an optimization has an effect."""

    device: str
    """Device type."""
    precision: str
    strategy: str = "single"

    @classmethod
    def of(cls, spec: TrainSpec, device_type: str) -> "Setup":
        """Return that of a trial or a training."""
        return cls(device_type, spec.precision, spec.strategy)


def without_effect(names: Iterable[str], setup: Setup) -> dict[str, str]:
    """Return the optimizations that would change nothing, with the reason: what is needed, and what was given."""
    names = frozenset(names)
    found = {name: _no_effect(name, names, setup) for name in sorted(names)}
    return {name: reason for name, reason in found.items() if reason is not None}


def effective(names: frozenset[str], setup: Setup) -> tuple[frozenset[str], dict[str, str]]:
    """Return the optimizations that have an effect, and why each other one has none."""
    left_out = without_effect(names, setup)
    return names - left_out.keys(), left_out


def _no_effect(name: str, names: frozenset[str], setup: Setup) -> str | None:
    lever = LEVERS[name]
    if lever.device == "cpu" and setup.device != "cpu":
        return f"needs a CPU, not {setup.device}"
    if lever.device == "cuda" and setup.device == "cpu":
        return "needs a GPU, not a CPU"
    if name == "balance" and not balances(names):
        return "needs unpad, not padded batches"
    if name == "balance" and setup.strategy == "single":
        return "needs several ranks, not strategy single"
    if lever.precision not in ("", setup.precision):
        return f"needs {lever.precision}, not {setup.precision}"
    if lever.strategies and setup.strategy not in lever.strategies:
        return f"needs strategy {' or '.join(lever.strategies)}, not {setup.strategy}"
    if lever.copies and "compile" in names:
        return "needs layers that are not compiled, as compile casts by itself"
    return _no_instructions(name, setup.device)


def _no_instructions(name: str, device_type: str) -> str | None:
    if name == "bf16-attention" and not has_avx512_bf16():
        return "needs a CPU with AVX512-BF16"
    least = LEVERS[name].capability
    if any(least) and device_type == "cuda":
        import torch

        if torch.cuda.is_available() and torch.cuda.get_device_capability() < least:
            needed, found = (".".join(map(str, one)) for one in (least, torch.cuda.get_device_capability()))
            return f"needs compute capability {needed}, not {found}"
    return None


def check_effect(text: str, setup: Setup) -> None:
    """Refuse optimizations that are named and have no effect; those of "auto", also by their names, may have none.

    One process leaves out what is for several: a sweep over numbers of devices names one set for all.

    Raises:
        UsageError: one that has no effect here.
    """
    names = frozenset() if text in ("", AUTO, NONE) else frozenset(text.split("+"))
    alone = setup.strategy == "single"
    reasons = without_effect(names, setup)
    idle = {name: reason for name, reason in reasons.items() if not (alone and LEVERS[name].several)}
    # What "auto" found without an optimization that cannot be compiled is recorded by names.
    if idle and names != resolve_levers(AUTO, setup.device):
        raise UsageError(
            "unsupported-combination",
            f"--levers {text!r}: {left_out_text(idle)}: leave out what has no effect, or give what it needs",
        )


def check_precision(text: str, precision: str) -> None:
    """Refuse given optimizations that do not work in a precision.

    Raises:
        UsageError: attention without padding that is compiled, in 32 bits.
    """
    names = frozenset(text.split("+"))
    if {"unpad", "compile"} <= names and precision not in ("bf16", "fp16"):
        raise UsageError(
            "unsupported-combination",
            f"--levers {text!r} in {precision}: attention without padding compiles only in 16-bit types; give bf16 "
            "or fp16 as the precision, or leave out unpad",
        )


def left_out_text(reasons: Mapping[str, str]) -> str:
    """Return "a has no effect: needs x; b ..." of what `without_effect` returned."""
    return "; ".join(f"{name} has no effect: {reason}" for name, reason in reasons.items())


def use_levers(model: "nn.Module", names: frozenset[str]) -> None:
    """Have every encoder in `model` compute with these optimizations; before it is wrapped, compiled or run."""
    from bert.model.attention import SelfAttention
    from bert.model.encoder import BertEncoder, Embeddings, Layer
    from bert.model.heads import MaskedWordHead

    for part in model.modules():
        if isinstance(part, BertEncoder):
            part.unpads = "unpad" in names
            part.compiles = "compile" in names
            if part.compiles:
                for layer in part.layers:
                    layer.compile()
        elif isinstance(part, Layer | Embeddings | MaskedWordHead):
            part.fused = "fused-elementwise" in names
        elif isinstance(part, SelfAttention):
            part.in_chunks = "chunks" in names
            part.in_bf16 = "bf16-attention" in names
            part.fused = "fused-elementwise" in names


def use_weight_copies(
    model: "nn.Module", names: frozenset[str], *, precision: str, strategy: str, grad_accum_steps: int, optimizer: str
) -> None:
    """Give a wrapped model, before its first step, the copies that "bf16-weights" and "fp8" ask for, if they fit.

    Args:
        model: on its device, wrapped by the strategy.
        names: optimizations that are on.
        precision: of the GEMMs; only bf16 has copies.
        strategy: its name; none that cuts parameters up or wraps the optimizer has copies.
        grad_accum_steps: micro-steps per update; several add their gradients up in float32.
        optimizer: its name; only AdamW and fused optimizers read gradients in bf16.
    """
    device_type = next(model.parameters()).device.type
    names, _ = effective(names, Setup(device_type, precision, strategy))
    if not any(LEVERS[name].copies for name in names):
        return
    from torch import nn

    from bert.model.encoder import Embeddings, Layer
    from bert.speed.copies import Copy, Linear, give_copies
    from bert.speed.fp8 import Fp8Copy, fits
    from bert.speed.scales import Scales

    layers = [part for part in model.modules() if isinstance(part, Layer)]
    inner = {part.weight for layer in layers for part in layer.modules() if isinstance(part, Linear)}
    weights = [part.weight for part in model.modules() if isinstance(part, Linear)]
    weights += [part.word.weight for part in model.modules() if isinstance(part, Embeddings)]
    reads_low = optimizer == "adamw" or fuses_optimizer(model, names, strategy)
    alone = strategy == "single" and grad_accum_steps == 1 and reads_low
    scales = Scales()
    for weight in weights:
        low = "fp8" in names and weight in inner and fits(weight)
        wanted = low or "bf16-weights" in names
        if wanted and isinstance(weight, nn.Parameter) and weight.requires_grad:
            give_copies([weight], gradients=alone, kind=partial(Fp8Copy, scales=scales) if low else Copy)


def fuses_optimizer(model: "nn.Module", names: frozenset[str], strategy: str) -> bool:
    """Whether the kernels of bert.optim.fused update a wrapped model: "fused-optimizer" is on, and they can.

    They need whole parameters, contiguous and in float32, on one GPU that runs the kernels.

    Args:
        model: on its device, wrapped by the strategy.
        names: optimizations that are on.
        strategy: its name.
    """
    if "fused-optimizer" not in names or strategy not in _WHOLE_PARAMETERS:
        return False
    import torch

    from bert.speed.kernels import usable

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return (
        len({parameter.device for parameter in parameters}) == 1
        and all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters)
        and usable(parameters[0])
    )
