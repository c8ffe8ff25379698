"""Model FLOPs of a training step: what the mathematics needs, whatever the implementation does.

A product of [m, k] and [k, n] takes 2 m k n floating-point operations. Training makes three for each one of the forward
pass (itself, the gradient of its input, the gradient of its weight), so a weight matrix costs 6 FLOPs per parameter and
row it is applied to (Kaplan et al. 2020, arXiv 2001.08361, section 2.1; Chowdhery et al. 2022, arXiv 2204.02311,
appendix B). Padding tokens, the vocabulary's padding rows and recomputation count nothing; nor do biases, LayerNorm,
GELU, softmax, dropout, look-ups and the optimizer.
"""

from typing import TYPE_CHECKING

from bert.model.config import ModelConfig

if TYPE_CHECKING:
    from bert.data.batch import BatchCounts

_FLOPS_PER_PARAMETER = 6


def layer_matmul_parameters(config: ModelConfig) -> int:
    """Parameters of one layer's weight matrices, which every real token passes: Q, K, V, output, two feed-forward."""
    hidden = config.hidden_size
    return 4 * hidden * hidden + 2 * hidden * config.intermediate_size


def prediction_head_parameters(config: ModelConfig) -> int:
    """Parameters of the masked-word head's matrices, which every predicted position passes: transform and decoder."""
    return config.hidden_size * config.hidden_size + config.hidden_size * config.vocab_size


def sentence_head_parameters(config: ModelConfig) -> int:
    """Parameters of the pooler and the next-sentence classifier, which every sequence passes once."""
    return config.hidden_size * config.hidden_size + 2 * config.hidden_size


def span_head_parameters(config: ModelConfig) -> int:
    """Parameters of the span head's matrix, which every real token passes."""
    return 2 * config.hidden_size


def model_flops(config: ModelConfig, counts: "BatchCounts") -> float:
    """FLOPs of one forward and backward pass of pretraining over a batch with these counts.

    The sum of
        6 x layers x layer_matmul_parameters x real tokens,
        12 x layers x hidden x sum of squared lengths: scores Q K^T and weights x V take 2 n^2 H each for a sequence of
            n tokens, times 3 for forward and backward,
        6 x prediction_head_parameters x predicted positions,
        6 x sentence_head_parameters x sequences.
    """
    per_prediction = prediction_head_parameters(config) * counts.predicted_positions
    per_sequence = sentence_head_parameters(config) * counts.samples
    return float(_encoder_flops(config, counts) + _FLOPS_PER_PARAMETER * (per_prediction + per_sequence))


def span_flops(config: ModelConfig, counts: "BatchCounts") -> float:
    """FLOPs of one forward and backward pass of question answering over a batch with these counts.

    The first two terms of `model_flops`, and 6 x span_head_parameters x real tokens; there is no pooler.
    """
    head = _FLOPS_PER_PARAMETER * span_head_parameters(config) * counts.real_tokens
    return float(_encoder_flops(config, counts) + head)


def classification_flops(config: ModelConfig, labels: int, counts: "BatchCounts") -> float:
    """FLOPs of one forward and backward pass of classification over a batch with these counts.

    The first two terms of `model_flops`, and 6 x (hidden^2 + labels x hidden) x sequences: pooler and classifier.
    """
    return sequence_head_flops(config, config.hidden_size * config.hidden_size + labels * config.hidden_size, counts)


def sequence_head_flops(config: ModelConfig, multiplied: int, counts: "BatchCounts") -> float:
    """FLOPs of one forward and backward pass with a head that multiplies so many numbers once for each sequence.

    The first two terms of `model_flops`, and 6 x multiplied x sequences.
    """
    return float(_encoder_flops(config, counts) + _FLOPS_PER_PARAMETER * multiplied * counts.samples)


def _encoder_flops(config: ModelConfig, counts: "BatchCounts") -> int:
    per_token = config.num_layers * layer_matmul_parameters(config) * counts.real_tokens
    attention = 12 * config.num_layers * config.hidden_size * counts.squared_lengths
    return _FLOPS_PER_PARAMETER * per_token + attention
