"""Hugging Face's BertForPreTraining, as its users run it: SDPA, autocast, fused AdamW, labels of -100 elsewhere."""

import importlib.util

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


class HuggingFaceImplementation:
    """`transformers` in eager mode."""

    def check(self, trial: Trial) -> None:
        """Raises MissingToolError without transformers, UsageError for what it has no model of."""
        if importlib.util.find_spec("transformers") is None:
            raise MissingToolError(
                f"implementation {trial.implementation!r} needs the package transformers: pip install 'bertbench[hf]'"
            )
        if trial.task != "pretrain":
            raise UsageError(f"implementation {trial.implementation!r} runs task pretrain, not {trial.task!r}")
        if trial.preset == "distilbert":
            raise UsageError(
                "Hugging Face has no DistilBERT with a next-sentence head to pretrain: compare another preset"
            )

    def adapt(self, batch: Batch) -> Batch:
        """Labels at every position, as Hugging Face's loss wants them."""
        return with_labels(batch)

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Make BertForPreTraining with the shape and dropout of `config` and its own, unpadded vocabulary."""
        from transformers.models.bert.configuration_bert import BertConfig
        from transformers.models.bert.modeling_bert import BertForPreTraining

        model = BertForPreTraining(
            BertConfig(
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
        )
        return Built(
            model=self._finish(model),
            make_optimizer=lambda wrapped: adamw(wrapped, learning_rate=LEARNING_RATE),
            compute_loss=pretraining_loss,
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


def pretraining_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Sum of Hugging Face's MLM and next-sentence losses, a scalar."""
    tensors = batch.tensors
    loss: torch.Tensor = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        token_type_ids=tensors["token_type_ids"],
        labels=tensors["labels"],
        next_sentence_label=tensors["next_sentence_labels"],
    ).loss
    return loss
