"""How a step is computed: `fast`, what is fastest on the device, or `plain`, padded batches by PyTorch's functions.

Both give the same result except for rounding and the random numbers of dropout. Precision is another choice: FP8 works
in both. Imports no torch until a step is applied. Measurements: docs/explanation/speed.md.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from bert.speed.native import loops_missing, triton_missing
from common.errors import MissingToolError
from common.train_spec import TrainSpec

if TYPE_CHECKING:
    from torch import nn

STEPS = FAST, PLAIN = ("fast", "plain")
# Strategies that leave every parameter whole and the same tensor, and the optimizer as it is.
WHOLE_PARAMETERS = ("ddp", "single")


def lacking(step: str, device_type: str) -> MissingToolError | None:
    """Return what is not installed without which a fast step is slower; None if nothing is.

    On a CPU its loops are compiled here, if they have not been before.
    """
    if step == PLAIN:
        return None
    return triton_missing() if device_type == "cuda" else loops_missing()


def apply(model: "nn.Module", step: str) -> None:
    """Have every encoder in `model`, not wrapped or run yet, and its heads compute a step so."""
    if step == PLAIN:
        return
    from bert.speed.layers import FAST_CLASSES

    for part in model.modules():
        part.__class__ = FAST_CLASSES.get(type(part), type(part))


def copy_weights(
    model: "nn.Module", spec: TrainSpec, optimizer: str = "adamw", fp8_fast_gradients: bool = False
) -> None:
    """Give a wrapped model, before its first step, copies of its weights in the type of the GEMMs, where they fit.

    Strategies that cut parameters up or wrap the optimizer have none. In bf16 a plain step has none, and on a GPU
    without the kernels of bert.optim.fused they would move more than the casts that they replace. FP8 is made of them.

    Args:
        model: on its device, wrapped by the strategy.
        spec: several micro-steps per update add their gradients up in float32.
        optimizer: its name; only AdamW and the kernels read gradients in bf16.
        fp8_fast_gradients: as bert.train.settings.TrainSettings has it.
    """
    fused = fuses_optimizer(model, spec)
    low = spec.precision == "fp8"
    narrow = spec.step == FAST and (fused or next(model.parameters()).device.type != "cuda")
    if spec.strategy not in WHOLE_PARAMETERS or spec.precision not in ("bf16", "fp8") or not (low or narrow):
        return
    from torch import nn

    from bert.model.encoder import BertEncoder, Embeddings, Layer
    from bert.model.heads import MaskedWordHead
    from bert.speed.copies import Copy, Linear, give_copies
    from bert.speed.fp8 import MULTIPLE, Fp8Copy, Scales

    inner = _inside(model, Layer, nn.Linear)
    words = [embeddings.word for embeddings in _inside(model, nn.Module, Embeddings)]
    alone = spec.strategy == "single" and spec.grad_accum_steps == 1 and (optimizer == "adamw" or fused)
    scales = Scales(fp8_fast_gradients)
    for part in dict.fromkeys([*inner, *_inside(model, BertEncoder | MaskedWordHead, nn.Linear), *words]):
        in_fp8 = low and part in inner and not any(size % MULTIPLE for size in part.weight.shape)
        if (in_fp8 or narrow) and part.weight.requires_grad:
            give_copies([part.weight], gradients=alone, kind=partial(Fp8Copy, scales=scales) if in_fp8 else Copy)
            if type(part) is nn.Linear:
                part.__class__ = Linear


def _inside(model: "nn.Module", outer: Any, kind: type) -> list[Any]:
    """Return the modules of a kind inside of those of another kind."""
    parts = (part for each in model.modules() if isinstance(each, outer) for part in each.modules())
    return [part for part in dict.fromkeys(parts) if isinstance(part, kind)]


def fuses_optimizer(model: "nn.Module", spec: TrainSpec) -> bool:
    """Whether the kernels of bert.optim.fused update a wrapped model on its device.

    They need whole parameters, contiguous and in float32, on one GPU that runs the kernels.
    """
    if spec.step != FAST or spec.strategy not in WHOLE_PARAMETERS:
        return False
    import torch

    from bert.speed.kernels import usable

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return (
        len({parameter.device for parameter in parameters}) == 1
        and all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters)
        and usable(parameters[0])
    )
