"""Hugging Face's models, as their users run them: SDPA, autocast, fused AdamW, labels of -100 elsewhere."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from analysis.records import Trial
from bench.implementations.base import Built
from bench.implementations.ours import LEARNING_RATE
from bert.batch import Batch
from bert.config import ModelConfig
from bert.observer import Observer
from bert.optim import adamw
from bert.tasks.base import Task
from common.errors import MissingToolError, UsageError

IGNORED_LABEL = -100
# What is taken from a batch for each task: theirs -> ours. All three inputs, then what the loss is held against.
_INPUTS = {name: name for name in ("input_ids", "attention_mask", "token_type_ids")}
_ARGUMENTS = {
    "pretrain": {**_INPUTS, "labels": "labels", "next_sentence_label": "next_sentence_labels"},
    "squad": {**_INPUTS, "start_positions": "start_positions", "end_positions": "end_positions"},
}


class HuggingFaceImplementation:
    """`transformers` in eager mode."""

    def check(self, trial: Trial) -> None:
        """Raises MissingToolError without transformers, UsageError for what it has no model of."""
        if importlib.util.find_spec("transformers") is None:
            raise MissingToolError(
                f"implementation {trial.implementation!r} needs the package transformers: pip install 'bertbench[hf]'"
            )
        if trial.task not in _ARGUMENTS:
            raise UsageError(
                f"implementation {trial.implementation!r} runs tasks {' and '.join(_ARGUMENTS)}, not {trial.task!r}"
            )
        if trial.preset == "distilbert" and trial.task == "pretrain":
            raise UsageError(
                "Hugging Face has no DistilBERT with a next-sentence head to pretrain: compare another preset"
            )

    def adapt(self, batch: Batch) -> Batch:
        """Labels at every position where words are predicted, as Hugging Face's loss wants them."""
        return with_labels(batch) if "masked_positions" in batch.tensors else batch

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Make the task's model with the shape and dropout of `config` and its own, unpadded vocabulary."""
        make = {"pretrain": _pretraining_model, "squad": _question_model}[trial.task]
        return Built(
            model=self._finish(make(config)),
            make_optimizer=lambda wrapped: adamw(wrapped, learning_rate=LEARNING_RATE),
            compute_loss=model_loss(trial.task, segments=config.type_vocab_size > 0),
        )

    def _finish(self, model: torch.nn.Module) -> torch.nn.Module:
        return model


class CompiledHuggingFaceImplementation(HuggingFaceImplementation):
    """`transformers` through torch.compile; the first step compiles and counts as warm-up."""

    def _finish(self, model: torch.nn.Module) -> torch.nn.Module:
        model.compile()
        return model


def with_labels(batch: Batch) -> Batch:
    """Replace masked_positions and masked_labels [M] by labels [B, S], -100 where nothing is predicted."""
    tensors = dict(batch.tensors)
    labels = torch.full_like(tensors["input_ids"], IGNORED_LABEL)
    labels.view(-1)[tensors.pop("masked_positions")] = tensors.pop("masked_labels")
    return Batch({**tensors, "labels": labels}, batch.counts)


def model_loss(task: str, *, segments: bool = True) -> Callable[[torch.nn.Module, Batch], torch.Tensor]:
    """Return how a model of Hugging Face's is called with a batch of a task; it returns the loss, a scalar."""
    names = {theirs: ours for theirs, ours in _ARGUMENTS[task].items() if segments or ours != "token_type_ids"}

    def compute(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = model(**{theirs: batch.tensors[ours] for theirs, ours in names.items()}).loss
        return loss

    return compute


def _pretraining_model(config: ModelConfig) -> torch.nn.Module:
    from transformers.models.bert.modeling_bert import BertForPreTraining

    model: torch.nn.Module = BertForPreTraining(_bert_config(config))
    return model


def _question_model(config: ModelConfig) -> torch.nn.Module:
    model: torch.nn.Module
    if config.type_vocab_size == 0:
        from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
        from transformers.models.distilbert.modeling_distilbert import DistilBertForQuestionAnswering

        model = DistilBertForQuestionAnswering(
            DistilBertConfig(
                vocab_size=config.vocab_size,
                dim=config.hidden_size,
                n_layers=config.num_layers,
                n_heads=config.num_heads,
                hidden_dim=config.intermediate_size,
                dropout=config.hidden_dropout,
                attention_dropout=config.attention_dropout,
                qa_dropout=0.0,
                max_position_embeddings=config.max_positions,
                attn_implementation="sdpa",
            )
        )
    else:
        from transformers.models.bert.modeling_bert import BertForQuestionAnswering

        model = BertForQuestionAnswering(_bert_config(config))
    return model


def _bert_config(config: ModelConfig) -> Any:
    from transformers.models.bert.configuration_bert import BertConfig

    return BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        hidden_dropout_prob=config.hidden_dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_positions,
        attn_implementation="sdpa",
    )
