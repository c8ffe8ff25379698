"""Hugging Face models in their usual configuration: SDPA, autocast, fused AdamW, label -100 for ignored positions."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.implementations.base import Built
from bench.implementations.ours import LEARNING_RATE
from bert.checkpoints.model_config import hugging_face_fields
from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.optim.registry import adamw
from bert.tasks import known_tasks, task_data
from bert.tasks.base import Task
from bert.tasks.classification import ClassificationTask
from bert.train.feed import Adapt
from bert.train.loop import ComputeLoss
from bert.train.observer import Observer
from common.errors import MissingToolError, UsageError
from records.trial import Trial

IGNORED_LABEL = -100
# Tensors that every task reads from a batch.
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True, slots=True)
class TaskModel:
    """Hugging Face's model of a task."""

    make: Callable[[ModelConfig, Task], Any]
    """Builds the model from a configuration and a task."""
    targets: Mapping[str, str]
    """Targets of the loss: argument of the model -> tensor of a batch."""


def check_heads(implementation: str, task: str) -> None:
    """Refuse a task whose head only our implementation has. Raises UsageError."""
    if not task_data(task).heads:
        known = [name for name in known_tasks() if task_data(name).heads]
        raise UsageError(
            "unsupported-combination",
            f"implementation {implementation!r} does not support task {task!r}: use one of {', '.join(known)}",
        )


class HuggingFaceImplementation:
    """`transformers` in eager mode."""

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError without transformers, UsageError for tasks without a model."""
        if importlib.util.find_spec("transformers") is None:
            raise MissingToolError(
                "package-missing",
                f"implementation {trial.implementation!r} needs the package transformers: pip install 'bertbench[hf]'",
            )
        check_heads(trial.implementation, trial.task)
        if trial.preset == "distilbert" and task_data(trial.task).heads == "masked words":
            raise UsageError(
                "unsupported-combination",
                "Hugging Face has no DistilBERT with a next-sentence head for pretraining: use another preset",
            )

    def adapter(self, trial: Trial) -> Adapt:
        """Return what converts masked labels to labels at every position, as Hugging Face's loss needs them."""
        return with_labels

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Build the task's model with the shape and dropout of `config` and an unpadded vocabulary."""
        model = task_model(task, config, trial.activation_checkpointing)
        return Built(
            model=self._finish(model),
            make_optimizer=lambda wrapped: adamw(wrapped, learning_rate=LEARNING_RATE),
            compute_loss=model_loss(task.name, config),
        )

    def _finish(self, model: torch.nn.Module) -> torch.nn.Module:
        return model


class CompiledHuggingFaceImplementation(HuggingFaceImplementation):
    """`transformers` through torch.compile; the first step compiles and counts as warm-up."""

    def _finish(self, model: torch.nn.Module) -> torch.nn.Module:
        model.compile()
        return model


def task_model(task: Task, config: ModelConfig, activation_checkpointing: bool = False) -> Any:
    """Return Hugging Face's model of a task, with shape and dropout of `config` and an unpadded vocabulary."""
    model = MODELS[task_data(task.name).heads].make(config, task)
    if activation_checkpointing:
        recompute(model)
    return model


def recompute(model: Any) -> None:
    """Enable activation checkpointing of a model. Raises ValueError: it has none."""
    old = "gradient_checkpointing_enable"  # its name in earlier releases
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, old)
    enable({"use_reentrant": False})


def with_labels(batch: Batch) -> Batch:
    """Replace masked_positions and masked_labels [M], if any, by labels [B, S], -100 at unmasked positions."""
    if "masked_positions" not in batch.tensors:
        return batch
    tensors = dict(batch.tensors)
    labels = torch.full_like(tensors["input_ids"], IGNORED_LABEL)
    labels.view(-1)[tensors.pop("masked_positions")] = tensors.pop("masked_labels")
    return Batch({**tensors, "labels": labels}, batch.counts)


def model_loss(task: str, config: ModelConfig) -> ComputeLoss:
    """Return the function that computes the scalar loss of a batch with Hugging Face's model of a task."""
    inputs = {name: name for name in _INPUTS if config.type_vocab_size or name != "token_type_ids"}
    names = inputs | dict(MODELS[task_data(task).heads].targets)

    def compute(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = model(**{theirs: batch.tensors[ours] for theirs, ours in names.items()}).loss
        return loss

    return compute


def _pretraining_model(config: ModelConfig, task: Task) -> Any:
    from transformers.models.bert.modeling_bert import BertForPreTraining

    model: torch.nn.Module = BertForPreTraining(_config(config))
    return model


def _question_model(config: ModelConfig, task: Task) -> Any:
    model: torch.nn.Module
    if config.type_vocab_size == 0:
        from transformers.models.distilbert.modeling_distilbert import DistilBertForQuestionAnswering

        model = DistilBertForQuestionAnswering(_config(config, qa_dropout=0.0))
    else:
        from transformers.models.bert.modeling_bert import BertForQuestionAnswering

        model = BertForQuestionAnswering(_config(config))
    return model


def _classification_model(config: ModelConfig, task: Task) -> Any:
    """Return BertForSequenceClassification; DistilBERT's variant has a ReLU layer in place of our tanh pooler."""
    assert isinstance(task, ClassificationTask)
    classes = {
        "num_labels": task.labels,
        "problem_type": "regression" if task.regression else "single_label_classification",
    }
    model: torch.nn.Module
    if config.type_vocab_size == 0:
        from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

        dropout = {"seq_classif_dropout": config.hidden_dropout}
        model = DistilBertForSequenceClassification(_config(config, **dropout, **classes))
    else:
        from transformers.models.bert.modeling_bert import BertForSequenceClassification

        model = BertForSequenceClassification(_config(config, **classes))
    return model


def _config(config: ModelConfig, **further: Any) -> Any:
    """Return Hugging Face's configuration of the same shape; no segments make a DistilBERT."""
    fields = {**hugging_face_fields(config), "attn_implementation": "sdpa", **further}
    if config.type_vocab_size == 0:
        from transformers.models.distilbert.configuration_distilbert import DistilBertConfig

        return DistilBertConfig(**fields)
    from transformers.models.bert.configuration_bert import BertConfig

    return BertConfig(**fields)


MODELS = {
    "masked words": TaskModel(_pretraining_model, {"labels": "labels", "next_sentence_label": "next_sentence_labels"}),
    "answer spans": TaskModel(
        _question_model, {"start_positions": "start_positions", "end_positions": "end_positions"}
    ),
    "classes": TaskModel(_classification_model, {"labels": "labels"}),
}
"""By bert.tasks.base.Heads."""
