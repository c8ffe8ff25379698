"""The model that `--model` names, as the classes AutoModelFor... of transformers build it for a task."""

import copy
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench.implementations.base import Built
from bench.implementations.hugging_face import built, class_fields, with_labels
from bench.implementations.model_folder import RANDOM, load_config
from bench.implementations.module_flops import NotTracedError, TrainingFlops, training_flops
from bert.checkpoints.tensor_files import safetensors_errors
from bert.data.batch import Batch, BatchCounts
from bert.model.heads import ClassificationOutput
from bert.tasks import task_data
from bert.tasks.base import Task
from bert.tasks.classification import ClassificationTask
from common.atomic import storage_errors, sync_files
from common.errors import InputError, first_line
from common.train_spec import TrainSpec
from records.trial import Trial

_CLASSES = {"masked words": "AutoModelForMaskedLM", "classes": "AutoModelForSequenceClassification"}
"""By bert.tasks.base.Heads."""


def traced_model(spec: TrainSpec, task: Task, implementation: str) -> "GivenModel":
    """Return the model of a training with `model`, traced before steps are timed. Raises InputError, as GivenModel."""
    kind = GivenModel
    if implementation == "hf-unpadded":
        from bench.implementations.unpadded import UnpaddedModel

        kind = UnpaddedModel
    given = kind(spec, task)
    _ = given.traced
    return given


def build_given(given: "GivenModel", trial: Trial) -> Built:
    """Return the parts that measure a given model by the implementation of a trial. Raises as `GivenModel.module`."""
    return built(trial, given.module(), given.loss)


class GivenModel:
    """The model of a training with `model`. Raises InputError: its configuration cannot be read."""

    ATTENTION: ClassVar[str | None] = None
    """Attention of transformers; None for its own choice."""

    def __init__(self, spec: TrainSpec, task: Task) -> None:
        self.spec = spec
        self.task = task
        self.auto_class = _CLASSES[task_data(task.name).heads]
        self.config = load_config(spec.model, spec.trust_remote_code)
        if isinstance(task, ClassificationTask):
            self.config.update(class_fields(task))
        # Our batches have two segments; an embedding of one, as RoBERTa's, has no row for the second.
        self.two_segments = int(getattr(self.config, "type_vocab_size", 0) or 0) > 1
        self.inputs = ["input_ids", "attention_mask", *["token_type_ids"] * self.two_segments]
        self.not_loaded: tuple[str, ...] = ()
        """Weights that the folder lacks, after `module`: they begin with random values."""

    @property
    def parameters(self) -> int:
        """Number of parameters, shared ones once."""
        return sum(weight.numel() for weight in self._make("meta").parameters())

    @cached_property
    def traced(self) -> TrainingFlops | str:
        """What returns the FLOPs of a step, or why they are unknown."""
        try:
            model = self._make("meta", attn_implementation="eager")
            return training_flops(model, self.spec.seq_len, self.auto_class == "AutoModelForMaskedLM")
        except NotTracedError as error:
            return f"FLOPs unknown: {error}"

    def model_flops(self, counts: BatchCounts) -> float | None:
        """Return the FLOPs of the micro-batches of a step, None where they are unknown."""
        return None if isinstance(self.traced, str) else self.traced(counts, self.spec.grad_accum_steps)

    def record(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Return what a rank records of its model: class, attention, weights, and why columns are unknown."""
        model = self._make("meta") if model is None else model
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        described = {"class": type(model).__name__, "weights": self.spec.model_weights, "attention": attention}
        unknown = {"unknown": dict.fromkeys(("model_flops_per_second", "mfu"), self.traced)}
        return {"model": described, **(unknown if isinstance(self.traced, str) else {})}

    def adapt(self, batch: Batch) -> Batch:
        """Return a batch with labels at every position, and the model's own padding."""
        padding = getattr(self.config, "pad_token_id", None)
        tensors = dict(with_labels(batch).tensors)
        if padding:
            tensors["input_ids"] = tensors["input_ids"].masked_fill(tensors["attention_mask"] == 0, padding)
        return Batch(tensors, batch.counts)

    def module(self) -> Any:
        """Build the model with its own dropout. Raises InputError: transformers cannot, or its weights do not fit."""
        attention = {} if self.ATTENTION is None else {"attn_implementation": self.ATTENTION}
        model = self._make(weights=self.spec.model_weights, dtype=torch.float32, **attention)
        if self.spec.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of the task, a scalar, of a batch that `adapt` returned."""
        loss: torch.Tensor = self.output(model, batch, "labels").loss
        return loss

    def output(self, model: torch.nn.Module, batch: Batch, *further: str) -> Any:
        """Return what the module computes of a batch that `adapt` returned, with `further` tensors of it."""
        return model(**self.tensors(batch, *further))

    def tensors(self, batch: Batch, *further: str) -> dict[str, torch.Tensor]:
        """Return the inputs of the module and `further` tensors of a batch."""
        return {name: batch.tensors[name] for name in (*self.inputs, *further)}

    def scored(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return what evaluators call; it shares the weights of a module."""
        return _Scored(self, model)

    def write(self, model: Any, folder: Path) -> None:
        """Save configuration and weights as `save_pretrained` does. Raises StorageError."""
        with storage_errors(folder), safetensors_errors():
            model.save_pretrained(folder)
        sync_files(folder)

    def _make(self, device: str = "cpu", weights: str = RANDOM, **options: Any) -> Any:
        import transformers

        auto = getattr(transformers, self.auto_class)
        options |= {"trust_remote_code": self.spec.trust_remote_code}
        try:
            if weights == RANDOM:
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


class _Scored(torch.nn.Module):
    """Has what bert.tasks.evaluation and bert.tasks.pretrain ask for: `labels` and logits, or `predictions`."""

    def __init__(self, given: GivenModel, model: torch.nn.Module) -> None:
        super().__init__()
        self.given, self.model = given, model
        self.labels = given.task.labels if isinstance(given.task, ClassificationTask) else None

    def forward(self, batch: Batch) -> ClassificationOutput:
        return ClassificationOutput(None, self.given.output(self.model, self.given.adapt(batch)).logits)

    def predictions(self, batch: Batch) -> tuple[torch.Tensor, None]:
        """Return the logits of the predicted positions [M, V]; the model has no head for next sentences."""
        return self(batch).logits.flatten(0, 1)[batch.tensors["masked_positions"]], None
