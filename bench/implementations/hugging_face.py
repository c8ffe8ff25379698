"""Hugging Face models in their usual configuration: SDPA, autocast, fused AdamW, label -100 for ignored positions."""

from functools import partial
from typing import Any

import torch

from bench.implementations import TRAINER_STRATEGIES, check_packages
from bench.implementations.base import Built, Implementation
from bert.checkpoints.model_config import hugging_face_fields
from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.parallel.options import read_options
from bert.tasks import task_data
from bert.tasks.base import Task
from bert.tasks.classification import ClassificationTask
from bert.train.feed import Adapt
from bert.train.loop import ComputeLoss
from bert.train.observer import Observer
from common.errors import UsageError
from records.trial import Trial

_IGNORED_LABEL = -100
# By bert.tasks.base.Heads: end of the class's name, and the targets of its loss, argument -> tensor of a batch.
_MODELS = {
    "masked words": ("ForPreTraining", {"labels": "labels", "next_sentence_label": "next_sentence_labels"}),
    "answer spans": ("ForQuestionAnswering", {name: name for name in ("start_positions", "end_positions")}),
    "classes": ("ForSequenceClassification", {"labels": "labels"}),
}


class HuggingFaceImplementation(Implementation):
    """`transformers` in eager mode, compiled, without padding, or with its own Trainer."""

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError without its packages, UsageError for trials that it cannot run."""
        name, words = trial.implementation, task_data(trial.task).heads == "masked words"
        check_packages(f"implementation {name!r}", "transformers", *["accelerate"] * (name == "hf-trainer"))
        super().check(trial)
        problem = ""
        if words and trial.preset == "distilbert":
            problem = "has no DistilBERT with a next-sentence head for pretraining: use another preset"
        elif name == "hf-trainer" and trial.strategy not in TRAINER_STRATEGIES:
            problem = f"does not support strategy {trial.strategy!r}: use {' or '.join(TRAINER_STRATEGIES)}"
        elif name == "hf-unpadded" and not (words and trial.model):
            problem = f"trains only masked words of a --model, not task {trial.task}: use --implementations hf"
        if problem:
            raise UsageError("unsupported-combination", f"implementation {name!r} {problem}")

    def adapter(self, trial: Trial) -> Adapt:
        """Return what converts masked labels to labels at every position, as Hugging Face's loss needs them."""
        return with_labels

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """Build the task's model and its loss."""
        model = task_model(task, config, trial.activation_checkpointing)
        return built(trial, model, model_loss(task.name, config))


def built(trial: Trial, model: Any, compute_loss: ComputeLoss) -> Built:
    """Return a model of `transformers` as the implementation of the trial trains it."""
    loop = None
    if trial.implementation == "hf-compiled":
        model.compile()  # the first step compiles and counts as warm-up
    elif trial.implementation == "hf-trainer":
        from bench.implementations.hf_trainer import train_with_trainer

        loop = partial(train_with_trainer, options=read_options(trial.strategy_options))
    return Built(model=model, compute_loss=compute_loss, loop=loop)


def task_model(task: Task, config: ModelConfig, activation_checkpointing: bool = False) -> Any:
    """Return Hugging Face's model of a task, with shape and dropout of `config` and an unpadded vocabulary.

    A configuration without segments makes a DistilBERT, whose classifier has a ReLU layer in place of our tanh pooler.
    """
    import transformers

    family = "Bert" if config.type_vocab_size else "DistilBert"
    fields = {**hugging_face_fields(config), "attn_implementation": "sdpa"}
    if family == "DistilBert":
        fields |= {"qa_dropout": 0.0, "seq_classif_dropout": config.hidden_dropout}
    if isinstance(task, ClassificationTask):
        fields |= class_fields(task)
    name, _ = _MODELS[task_data(task.name).heads]
    model = getattr(transformers, family + name)(getattr(transformers, f"{family}Config")(**fields))
    if activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def class_fields(task: ClassificationTask) -> dict[str, Any]:
    """Return the fields of a configuration for the classes or values of a task."""
    kind = "regression" if task.regression else "single_label_classification"
    return {"num_labels": task.labels, "problem_type": kind}


def with_labels(batch: Batch) -> Batch:
    """Replace masked_positions and masked_labels [M], if any, by labels [B, S], -100 at unmasked positions."""
    if "masked_positions" not in batch.tensors:
        return batch
    tensors = dict(batch.tensors)
    labels = torch.full_like(tensors["input_ids"], _IGNORED_LABEL)
    labels.view(-1)[tensors.pop("masked_positions")] = tensors.pop("masked_labels")
    return Batch({**tensors, "labels": labels}, batch.counts)


def model_loss(task: str, config: ModelConfig) -> ComputeLoss:
    """Return the function that computes the scalar loss of a batch with Hugging Face's model of a task."""
    inputs = ["input_ids", "attention_mask", *["token_type_ids"] * bool(config.type_vocab_size)]
    names = {name: name for name in inputs} | _MODELS[task_data(task).heads][1]

    def compute(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = model(**{theirs: batch.tensors[ours] for theirs, ours in names.items()}).loss
        return loss

    return compute
