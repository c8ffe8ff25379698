"""Models of transformers, of presets and of `--model`: SDPA, autocast, fused AdamW, label -100 at ignored places."""

import copy
import os
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError

from bench.implementations import TRAINER_STRATEGIES
from bench.implementations.base import Built, Implementation
from bench.implementations.model_folder import SAFETENSORS, load_config
from bench.implementations.module_flops import NotTracedError, TrainingFlops, training_flops
from bert.checkpoints.model_config import hugging_face_fields
from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig
from bert.model.heads import ClassificationOutput
from bert.observer import Observer
from bert.parallel import read_options
from bert.tasks import task_data
from bert.tasks.base import Task
from bert.tasks.classification import ClassificationTask
from bert.train.feed import Adapt
from common.atomic import storage_errors
from common.errors import InputError, UsageError, first_line
from common.tools import need
from common.train_spec import TrainSpec
from records.trial import Trial

_IGNORED_LABEL = -100
# By bert.tasks.base.Heads: class of transformers, and the targets of its loss, argument -> tensor of a batch.
_MODELS = {
    "masked words": ("AutoModelForPreTraining", {"labels": "labels", "next_sentence_label": "next_sentence_labels"}),
    "answer spans": ("AutoModelForQuestionAnswering", {name: name for name in ("start_positions", "end_positions")}),
    "classes": ("AutoModelForSequenceClassification", {"labels": "labels"}),
}


class HuggingFaceImplementation(Implementation):
    """`transformers` in eager mode, compiled, without padding, or with its own Trainer."""

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError without its packages, UsageError for trials that it cannot run."""
        name, words = trial.implementation, task_data(trial.task).heads == "masked words"
        need(f"implementation {name!r}", "hf", "transformers", *["accelerate"] * (name == "hf-trainer"))
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
        return built(trial, HuggingFaceModel(trial, task, preset_config(config)))


def built(trial: Trial, source: "HuggingFaceModel") -> Built:
    """Return a model of `transformers` as the implementation of the trial trains it."""
    loop, model = None, source.module()
    if trial.implementation == "hf-compiled":
        model.compile()  # the first step compiles and counts as warm-up
    elif trial.implementation == "hf-trainer":
        from bench.implementations.hf_trainer import train_with_trainer

        loop = partial(train_with_trainer, options=read_options(trial.strategy_options))
    return Built(model=model, compute_loss=source.loss, loop=loop)


def traced_model(spec: TrainSpec, task: Task, implementation: str) -> "GivenModel":
    """Return the model of a training with `model`, traced before steps are timed. Raises InputError, as GivenModel."""
    kind = GivenModel
    if implementation == "hf-unpadded":
        from bench.implementations.unpadded import UnpaddedModel

        kind = UnpaddedModel
    given = kind(spec, task)
    _ = given.traced
    return given


def preset_config(config: ModelConfig) -> Any:
    """Return Hugging Face's configuration with shape and dropout of `config` and an unpadded vocabulary.

    One without segments makes a DistilBERT, whose classifier has a ReLU layer in place of our tanh pooler.
    """
    import transformers

    fields = hugging_face_fields(config)
    if config.type_vocab_size:
        return transformers.BertConfig(**fields)
    return transformers.DistilBertConfig(**fields, qa_dropout=0.0, seq_classif_dropout=config.hidden_dropout)


def with_labels(batch: Batch) -> Batch:
    """Replace masked_positions and masked_labels [M], if any, by labels [B, S], -100 at unmasked positions."""
    if "masked_positions" not in batch.tensors:
        return batch
    tensors = dict(batch.tensors)
    labels = torch.full_like(tensors["input_ids"], _IGNORED_LABEL)
    labels.view(-1)[tensors.pop("masked_positions")] = tensors.pop("masked_labels")
    return Batch({**tensors, "labels": labels}, batch.counts)


class HuggingFaceModel:
    """The model of a training, as AutoModelFor... of transformers builds it from a configuration."""

    ATTENTION: ClassVar[dict[str, str]] = {"attn_implementation": "sdpa"}
    """Option of transformers; empty for its own choice."""

    def __init__(self, spec: TrainSpec, task: Task, config: Any) -> None:
        self.spec, self.task, self.config = spec, task, config
        self.auto_class, self.targets = _MODELS[task_data(task.name).heads]
        if isinstance(task, ClassificationTask):
            kind = "regression" if task.regression else "single_label_classification"
            config.update({"num_labels": task.labels, "problem_type": kind})
        # Our batches have two segments; an embedding of one, as RoBERTa's, has no row for the second.
        self.two_segments = int(getattr(config, "type_vocab_size", 0) or 0) > 1
        self.inputs = ["input_ids", "attention_mask", *["token_type_ids"] * self.two_segments]
        self.not_loaded: tuple[str, ...] = ()
        """Weights that a folder lacks, after `module`: they begin with random values."""

    def adapt(self, batch: Batch) -> Batch:
        """Return a batch with labels at every position, and the model's own padding."""
        tensors = dict(with_labels(batch).tensors)
        if padding := getattr(self.config, "pad_token_id", None):
            tensors["input_ids"] = tensors["input_ids"].masked_fill(tensors["attention_mask"] == 0, padding)
        return Batch(tensors, batch.counts)

    def module(self) -> Any:
        """Build the model with its own dropout. Raises InputError: transformers cannot, or its weights do not fit."""
        model = self._make("cpu", self.spec.model_weights == SAFETENSORS, dtype=torch.float32, **self.ATTENTION)
        if self.spec.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of the task, a scalar, of a batch that `adapt` returned."""
        targets = {argument: batch.tensors[name] for argument, name in self.targets.items()}
        loss: torch.Tensor = self.output(model, batch, **targets).loss
        return loss

    def output(self, model: torch.nn.Module, batch: Batch, **further: Any) -> Any:
        """Return what the module computes of a batch that `adapt` returned; `further` are other arguments."""
        return model(**{name: batch.tensors[name] for name in self.inputs}, **further)

    def scored(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return what evaluators call; it shares the weights of a module."""
        return _Scored(self, model)

    def write(self, model: Any, folder: Path) -> None:
        """Save configuration and weights as `save_pretrained` does. Raises StorageError."""
        with storage_errors(folder):
            try:
                model.save_pretrained(folder)
            except SafetensorError as error:
                raise OSError(str(error)) from error
            for path in folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def _make(self, device: str = "cpu", load: bool = False, **options: Any) -> Any:
        import transformers

        auto = getattr(transformers, self.auto_class)
        options |= {"trust_remote_code": self.spec.trust_remote_code}
        try:
            if not load:
                with torch.device(device):
                    return auto.from_config(copy.deepcopy(self.config), **options)
            options |= {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
            model, loading = auto.from_pretrained(self.spec.model, config=self.config, **options)
        except Exception as error:  # a model can be wrong in anything
            raise InputError(
                "model-unsupported",
                f"transformers cannot build a model for task {self.task.name} from {self.spec.model} "
                f"({first_line(error)}): give an encoder that {self.auto_class} has, and its weights as safetensors",
            ) from error
        self.not_loaded = tuple(sorted(loading["missing_keys"]))
        return model.train()


class GivenModel(HuggingFaceModel):
    """The model that `--model` names. Raises InputError: its configuration cannot be read."""

    ATTENTION: ClassVar[dict[str, str]] = {}

    def __init__(self, spec: TrainSpec, task: Task) -> None:
        super().__init__(spec, task, load_config(spec.model, spec.trust_remote_code))
        self.predicts_words = task_data(task.name).heads == "masked words"
        if self.predicts_words:
            self.auto_class, self.targets = "AutoModelForMaskedLM", {"labels": "labels"}

    @cached_property
    def on_meta(self) -> Any:
        """The model without values."""
        return self._make("meta", False, **self.ATTENTION)

    @cached_property
    def traced(self) -> TrainingFlops | str:
        """What returns the FLOPs of a step, or why they are unknown."""
        problem = ""
        for device in ("meta", "cpu"):  # some models read values, which a meta tensor does not have
            try:
                model = self._make(device, attn_implementation="eager")
                return training_flops(model, self.spec.seq_len, self.predicts_words)
            except NotTracedError as error:
                problem = str(error)
        return f"FLOPs unknown: {problem}"

    def model_flops(self, counts: BatchCounts) -> float | None:
        """Return the FLOPs of the micro-batches of a step, None where they are unknown."""
        return None if isinstance(self.traced, str) else self.traced(counts, self.spec.grad_accum_steps)

    def record(self) -> dict[str, Any]:
        """Return what a rank records of its model: class, attention, weights, and why columns are unknown."""
        attention = getattr(self.on_meta.config, "_attn_implementation", None)
        model = {"class": type(self.on_meta).__name__, "weights": self.spec.model_weights, "attention": attention}
        unknown = {"unknown": dict.fromkeys(("model_flops_per_second", "mfu"), self.traced)}
        return {"model": model, **(unknown if isinstance(self.traced, str) else {})}


class _Scored(torch.nn.Module):
    """Has what bert.tasks.evaluation and bert.tasks.pretrain ask for: `labels` and logits, or `predictions`."""

    def __init__(self, source: HuggingFaceModel, model: torch.nn.Module) -> None:
        super().__init__()
        self.source, self.model = source, model
        self.labels = source.task.labels if isinstance(source.task, ClassificationTask) else None

    def forward(self, batch: Batch) -> ClassificationOutput:
        return ClassificationOutput(None, self.source.output(self.model, self.source.adapt(batch)).logits)

    def predictions(self, batch: Batch) -> tuple[torch.Tensor, None]:
        """Return the logits of the predicted positions [M, V]; the model has no head for next sentences."""
        return self(batch).logits.flatten(0, 1)[batch.tensors["masked_positions"]], None
