"""Peak memory of one rank that trains BERT with mixed precision, predicted from shapes. Imports no torch.

Model states (Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1 and figure 1): P parameters in float32, their
gradients and the two moments of Adam or LAMB are 4 P + 4 P + 8 P bytes. ZeRO's stage 1 divides the moments by the
number of ranks N, stage 2 the gradients too, stage 3 the parameters too.

Activations follow the counting of Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), done again for the layers of
bert.model.encoder, which keep other tensors than theirs. With B sequences of S tokens, H wide, feed-forward width F,
elements of e bytes (2 in bf16 and fp16, else 4) and dropout masks of m bytes, a layer keeps for the backward pass,
per token:
    e H            input of the QKV projection
    3 e H          query, key, value
    e H            input of the output projection
    m H + 4 H      dropout mask, input of the first LayerNorm
    e H            input of the feed-forward layer
    2 e F          before and after GELU
    m H + 4 H      dropout mask, input of the second LayerNorm

A fused attention keeps no weights; on CPUs attention keeps, per head, S x S weights of 4 bytes and, with dropout, 2
random bytes for each. Levers (bert.speed.registry) take less, and what is predicted is the most: where the layers
compute real tokens alone, padding costs nothing; copies of weights stand in place of casts, with gradients in bf16;
loops keep no random bytes of attention.
Recomputed layers (Chen et al. 2016, arXiv 1604.06174) keep their input, 4 H bytes per token, and the tensors above
exist for one layer at a time. Logits of M predicted positions over V words take (e + 8) M V bytes: themselves, their
log-softmax and its gradient.
"""

from dataclasses import dataclass, fields

from bert.model.config import ModelConfig, model_config
from bert.model.flops import layer_matmul_parameters
from bert.parallel.options import zero_stage
from bert.tasks import check_task_options, task_data
from common.train_spec import TrainSpec

_FLOAT = 4
_MOMENTS = 2
_ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
# What a process that trains needs besides: on a CPU interpreter and libraries (measured: torch 2.13, Linux x86-64), on
# a GPU the workspaces of the matrix products, which the allocator counts; the CUDA context it does not count.
_WORKSPACE_BYTES = {"cpu": 390 << 20, "cuda": 64 << 20}
# The first stage of ZeRO that divides each part of the model states.
_DIVIDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes of one rank by what they are for."""

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
    hidden, inner = config.hidden_size, config.intermediate_size
    rows = config.padded_vocab_size + config.max_positions + config.type_vocab_size
    layer_vectors = 3 * hidden + hidden + inner + hidden + 2 * 2 * hidden  # biases, and two LayerNorms
    body = rows * hidden + 2 * hidden + config.num_layers * (layer_matmul_parameters(config) + layer_vectors)
    return body + task_data(task).head_parameters(config, check_task_options(task, task_options))


def predict_memory(spec: TrainSpec, device: str) -> Memory:
    """Return what a rank of a training needs at its peak on `device` (cpu or cuda); the formulas stand above."""
    config, stage = model_config(spec), zero_stage(spec)
    parameters = parameter_count(config, spec.task, spec.task_options)
    states = {"parameters": parameters, "gradients": parameters, "optimizer": _MOMENTS * parameters}
    held = {
        name: _FLOAT * count // (spec.world_size if stage >= _DIVIDED_FROM[name] else 1)
        for name, count in states.items()
    }
    element = _ELEMENT_BYTES[spec.precision]
    tokens = spec.micro_batch_size * spec.seq_len
    layer = tokens * _layer_bytes_per_token(config, spec.seq_len, element, device)
    kept = config.num_layers * layer
    if spec.activation_checkpointing:
        kept = config.num_layers * tokens * _FLOAT * config.hidden_size + layer
    masked = task_data(spec.task).heads == "masked words"
    predicted = spec.micro_batch_size * spec.max_predictions if masked else 0
    logits = predicted * config.padded_vocab_size * (element + 8)
    embeddings = tokens * (_FLOAT + _mask_bytes(config.hidden_dropout, device)) * config.hidden_size
    casts = element * parameters if element < _FLOAT else 0
    passing = 2 * element * tokens * config.intermediate_size
    return Memory(**held, activations=kept + logits + embeddings, workspace=casts + passing + _WORKSPACE_BYTES[device])


def _layer_bytes_per_token(config: ModelConfig, seq_len: int, element: int, device: str) -> int:
    hidden, inner = config.hidden_size, config.intermediate_size
    mask = _mask_bytes(config.hidden_dropout, device)
    kept_by_weight = _FLOAT + _mask_bytes(config.attention_dropout, device) if device == "cpu" else 0
    weights = config.num_heads * seq_len * kept_by_weight
    return weights + 6 * element * hidden + 2 * element * inner + 2 * (mask + _FLOAT) * hidden


def _mask_bytes(dropout: float, device: str) -> int:
    """Bytes per element that dropout keeps: 16 random bits on a CPU (bert.speed.dropout), a bool on a GPU."""
    if dropout == 0:
        return 0
    return 2 if device == "cpu" else 1
