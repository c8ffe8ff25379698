"""Peak memory of one rank that trains BERT with mixed precision, predicted from shapes. Imports no torch.

Model states (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1 and figure 1): P parameters in float32, their
gradients and the two moments of Adam or LAMB are 4 P + 4 P + 8 P bytes. ZeRO's stage 1 divides the moments by the
number of ranks N, stage 2 the gradients too, stage 3 the parameters too.

Activations follow the counting of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), done again for the step that
bert.model.step describes, whose layers keep other tensors than theirs: each GEMM its input, attention queries, keys and
values, GELU its input, and each LayerNorm its input and the dropout mask before it. With elements of e bytes (2 in bf16
and fp16, else 4) and dropout masks of m bytes that is 6 e H + 2 e F + 2 (m + 4) H bytes per token and layer.

A fused attention keeps no weights; on CPUs attention keeps, per head, S x S weights of 4 bytes, and in 16 bits each
norm also what it adds up, 2 H bytes. This is the fast step (bert.speed) at its most, every position a real
token: copies of weights replace casts, with gradients in bf16; Triton kernels keep no masks and no float32 activations.
Without a compiler for its loops the fast step keeps up to 16 % more on a CPU. The plain step keeps what PyTorch does:
without dropout on a CPU 11 % more in fp32, 22 % in bf16.

Recomputed layers (Chen et al. 2016, arXiv 1604.06174) keep their input, 4 H bytes per token, and the tensors above
exist for one layer at a time. Logits of M predicted positions over V words take (e + 8) M V bytes: themselves, their
log-softmax and its gradient.
"""

from dataclasses import dataclass, fields

from bert.model.config import ModelConfig, model_config
from bert.model.step import FLOAT_BYTES, Step
from bert.parallel import zero_stage
from bert.tasks import make_task
from common.train_spec import TrainSpec

_MOMENTS = 2
_ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
# What a process that trains needs besides: on a CPU interpreter and libraries (measured: torch 2.13, Linux x86-64), on
# a GPU the workspaces of the GEMMs, which the allocator counts; the CUDA context it does not count.
WORKSPACE_BYTES = {"cpu": 390 << 20, "cuda": 64 << 20}
# The first stage of ZeRO that divides each part of the model states.
_DIVIDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of one rank in bytes, by purpose."""

    parameters: int
    """Weights in float32."""
    gradients: int
    """Of the weights, in float32."""
    optimizer: int
    """First and second moments."""
    activations: int
    """What the forward pass keeps for the backward pass."""
    workspace: int
    """Weights cast to 16 bits, gradients of activations, and what the process needs besides."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def parameter_count(config: ModelConfig, task: str, task_options: str = "") -> int:
    """Return the parameters of a task's model with its options, the vocabulary's padding included."""
    return make_task(task, task_options).step(config).parameters


def predict_memory(spec: TrainSpec, device: str) -> Memory:
    """Return what a rank of a training needs at its peak on `device` (cpu or cuda); see the module for the formulas."""
    config, stage = model_config(spec), zero_stage(spec)
    step = make_task(spec.task, spec.task_options).step(config)
    states = {"parameters": step.parameters, "gradients": step.parameters, "optimizer": _MOMENTS * step.parameters}
    held = {
        name: FLOAT_BYTES * count // (spec.world_size if stage >= _DIVIDED_FROM[name] else 1)
        for name, count in states.items()
    }
    element, mask = _ELEMENT_BYTES[spec.precision], _mask_bytes(config.hidden_dropout, device)
    sequences = spec.micro_batch_size
    tokens = sequences * spec.seq_len
    layer = _layer_bytes(step, tokens, spec.seq_len, element, device)
    kept = config.num_layers * layer
    if spec.activation_checkpointing:
        kept = config.num_layers * tokens * FLOAT_BYTES * config.hidden_size + layer
    kept += step.embeddings.kept(tokens, element, mask)
    rows = {"tokens": tokens, "sequences": sequences, "predictions": sequences * spec.max_predictions}
    kept += sum(part.times * part.kept(rows[part.over], element, mask) for part in step.head_passes)
    casts = element * step.parameters if element < FLOAT_BYTES else 0
    passing = 2 * element * tokens * config.intermediate_size
    return Memory(**held, activations=kept, workspace=casts + passing + WORKSPACE_BYTES[device])


def _layer_bytes(step: Step, tokens: int, seq_len: int, element: int, device: str) -> int:
    """What one layer keeps: inputs of its GEMMs, of attention and of its passes, and attention's weights on a CPU."""
    config, mask = step.config, _mask_bytes(step.config.hidden_dropout, device)
    on_cpu = FLOAT_BYTES * config.num_heads * seq_len
    on_cpu += 2 * element * config.hidden_size if element < FLOAT_BYTES else 0
    inputs = sum(gemm.inner for gemm in step.layers) + 3 * config.hidden_size
    passes = sum(part.times * part.kept(tokens, element, mask) for part in step.layer_passes) // config.num_layers
    return tokens * ((on_cpu if device == "cpu" else 0) + element * inputs) + passes


def _mask_bytes(dropout: float, device: str) -> int:
    """Bytes per element that dropout keeps: 16 random bits on a CPU (bert.speed.elementwise), a bool on a GPU."""
    if dropout == 0:
        return 0
    return 2 if device == "cpu" else 1
