"""Ways to compute a training step faster, each a switch. Imports no torch until one is set.

None changes what is computed but for rounding, and for the random numbers of dropout. Which are on where nothing is
said is what measured best on that class of device (docs/explanation/speed.md); one that has not been measured is off.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Lever:
    """One switch."""

    does: str
    """What it does, in words."""
    on: tuple[str, ...]
    """Device types on which it is on where nothing is said."""


LEVERS = {
    "unpad": Lever("the layers compute real tokens alone, one sequence behind the other", ("cpu",)),
    "pack": Lever("the layers compute rows that several sequences share, in few shapes; not with unpad", ()),
    "chunks": Lever("attention of a few sequences at a time, whose weights stay in the cache", ("cpu",)),
    "bf16-weights": Lever(
        "with bf16, copies of the weights made once per update, and gradients in bf16 where nothing else reads them",
        ("cpu",),
    ),
    "bf16-attention": Lever("with bf16, attention's products in bf16 too, where the CPU has instructions", ("cpu",)),
}


def resolve_levers(text: str, device_type: str) -> frozenset[str]:
    """Return the levers that a text names: names joined by "+", "none", or "auto" for those of the device type.

    Raises:
        UsageError: a name that does not exist, or two that exclude each other.
    """
    if text == AUTO:
        return frozenset(name for name, lever in LEVERS.items() if device_type in lever.on)
    names = [] if text == NONE else text.split("+")
    unknown = [name for name in names if name not in LEVERS]
    if unknown:
        raise UsageError(
            f"levers {text!r}: there is no {unknown[0]!r}; give auto, none, or some of {' '.join(LEVERS)} joined by +"
        )
    if {"unpad", "pack"} <= set(names):
        raise UsageError(
            f"levers {text!r}: unpad and pack are two ways to lay out one batch; leave out unpad for few shapes, "
            "or pack for real tokens alone"
        )
    return frozenset(names)


def levers_text(names: Iterable[str]) -> str:
    """Return the one text that records keep of levers: "chunks+unpad", or "none"."""
    return "+".join(sorted(names)) or NONE


def use_levers(model: "nn.Module", names: frozenset[str]) -> None:
    """Have every encoder in `model` compute with these levers; before it is wrapped, compiled or run."""
    from bert.attention import SelfAttention
    from bert.encoder import BertEncoder

    for part in model.modules():
        if isinstance(part, BertEncoder):
            part.unpads = "unpad" in names
            part.packs = "pack" in names
        elif isinstance(part, SelfAttention):
            part.in_chunks = "chunks" in names
            part.in_bf16 = "bf16-attention" in names


# Strategies that leave every parameter whole, and the same tensor.
_WHOLE_PARAMETERS = frozenset({"single", "ddp", "horovod"})


def use_weight_copies(
    model: "nn.Module", names: frozenset[str], *, precision: str, strategy: str, grad_accum_steps: int, optimizer: str
) -> None:
    """Give a wrapped model, before its first step, the copies that the lever "bf16-weights" asks for, if they fit.

    Args:
        model: on its device, wrapped by the strategy.
        names: levers that are on.
        precision: of the products; only bf16 has copies.
        strategy: its name; none that cuts parameters up has copies.
        grad_accum_steps: micro-steps per update; several add their gradients up in float32.
        optimizer: its name; AdamW alone takes gradients in bf16.
    """
    if "bf16-weights" not in names or precision != "bf16" or strategy not in _WHOLE_PARAMETERS:
        return
    from torch import nn

    from bert.copies import Linear, give_copies
    from bert.encoder import Embeddings

    weights = [part.weight for part in model.modules() if isinstance(part, Linear)]
    weights += [part.word.weight for part in model.modules() if isinstance(part, Embeddings)]
    alone = strategy == "single" and grad_accum_steps == 1 and optimizer == "adamw"
    give_copies((part for part in weights if isinstance(part, nn.Parameter) and part.requires_grad), gradients=alone)
