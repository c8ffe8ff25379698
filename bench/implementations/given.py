"""The model that `--model` names, as the classes AutoModelFor... of transformers build it for a task."""

import inspect
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch

from bench.implementations.base import Built
from bench.implementations.hugging_face import recompute, with_labels
from bench.implementations.model_folder import SAFETENSORS, load_config
from bench.implementations.module_flops import ForwardFlops, NotTracedError, forward_flops
from bench.implementations.ours import LEARNING_RATE
from bert.data.batch import Batch, BatchCounts
from bert.optim.registry import adamw
from bert.parallel.options import read_options
from bert.tasks import task_data
from bert.tasks.base import Task
from bert.tasks.classification import ClassificationTask
from common.errors import InputError, UsageError, first_line
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
    _ = given.flops
    return given


def build_given(given: "GivenModel", trial: Trial) -> Built:
    """Return the parts that measure a given model by the implementation of a trial. Raises as `GivenModel.module`."""
    model = given.module()
    loop = None
    if trial.implementation == "hf-trainer":
        from bench.implementations.hf_trainer import train_with_trainer

        loop = partial(train_with_trainer, options=read_options(trial.strategy_options))
    elif trial.implementation == "hf-compiled":
        model.compile()
    return Built(
        model=model,
        make_optimizer=lambda wrapped: adamw(wrapped, learning_rate=LEARNING_RATE),
        compute_loss=given.loss,
        loop=loop,
    )


class GivenModel:
    """The model of a training with `model`. Raises InputError: its configuration cannot be read."""

    def __init__(self, spec: TrainSpec, task: Task) -> None:
        self.spec = spec
        self.task = task
        self.auto_class = _CLASSES[task_data(task.name).heads]
        self.config = self._config()
        self.not_loaded: tuple[str, ...] = ()
        """Weights that the folder lacks, after `module`: they begin with random values."""
        self._names: list[str] = []

    @property
    def flops(self) -> ForwardFlops | None:
        """FLOPs of its forward pass, None where they are unknown."""
        return self._traced[0]

    @property
    def parameters(self) -> int:
        """Number of parameters, shared ones once."""
        return sum(weight.numel() for weight in self._shape.parameters())

    @cached_property
    def _shape(self) -> Any:
        return self._on_meta()

    @cached_property
    def _traced(self) -> tuple[ForwardFlops | None, str]:
        try:
            model = self._on_meta(attn_implementation="eager")
            return forward_flops(model, self.spec.seq_len, self.auto_class == "AutoModelForMaskedLM"), ""
        except NotTracedError as error:
            return None, f"FLOPs unknown: {error}"

    def model_flops(self, counts: BatchCounts) -> float | None:
        """Return the FLOPs of the micro-batches of a step, None where they are unknown."""
        return None if self.flops is None else self.flops.training(counts, self.spec.grad_accum_steps)

    def record(self, model: torch.nn.Module | None = None) -> dict[str, Any]:
        """Return what a rank records of its model: class, attention, weights, and why columns are unknown."""
        model = self._shape if model is None else model
        unknown = self._traced[1]
        reasons = dict.fromkeys(("model_flops_per_second", "mfu"), unknown) if unknown else {}
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        described = {"class": type(model).__name__, "weights": self.spec.model_weights, "attention": attention}
        return {"model": described, **({"unknown": reasons} if reasons else {})}

    def adapt(self, batch: Batch) -> Batch:
        """Return a batch with labels at every position, and the model's own padding."""
        padding = getattr(self.config, "pad_token_id", None)
        labelled = with_labels(batch)
        if not padding:
            return labelled
        tensors = dict(labelled.tensors)
        tensors["input_ids"] = tensors["input_ids"].masked_fill(tensors["attention_mask"] == 0, padding)
        return Batch(tensors, labelled.counts)

    def module(self) -> Any:
        """Build the model with its own dropout.

        Raises:
            InputError: transformers cannot build it, or its weights do not fit it.
            UsageError: activation checkpointing of a model that has none.
        """
        model = self._model()
        self._recompute(model)
        self._names = self._arguments(model)
        return model

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of the task, a scalar, of a batch that `adapt` returned."""
        loss: torch.Tensor = self.output(model, batch, "labels").loss
        return loss

    def output(self, model: torch.nn.Module, batch: Batch, *further: str) -> Any:
        """Return what the module computes of a batch that `adapt` returned; `further` are tensors of it to hand on."""
        return model(**{name: batch.tensors[name] for name in (*self._names, *further)})

    def _attention(self) -> str | None:
        return None

    def _arguments(self, model: Any) -> list[str]:
        takes = "token_type_ids" in inspect.signature(model.forward).parameters
        return ["input_ids", "attention_mask", *["token_type_ids"] * (takes and self._two_segments)]

    @property
    def _two_segments(self) -> bool:
        """Our batches have two segments; an embedding of one, as RoBERTa's, has no row for the second."""
        return int(getattr(self.config, "type_vocab_size", 0) or 0) > 1

    def _recompute(self, model: Any) -> None:
        if not self.spec.activation_checkpointing:
            return
        try:
            recompute(model)
        except (ValueError, AttributeError, TypeError) as error:
            raise UsageError(
                "unsupported-combination",
                f"{type(model).__name__} has no activation checkpointing ({first_line(error)}): leave out "
                "--activation-checkpointing",
            ) from error

    def _config(self) -> Any:
        config = load_config(self.spec.model, self.spec.trust_remote_code)
        if isinstance(self.task, ClassificationTask):
            config.num_labels = self.task.labels
            config.problem_type = "regression" if self.task.regression else "single_label_classification"
        return config

    def _model(self) -> Any:
        spec, auto = self.spec, self._auto()
        trust = {"trust_remote_code": spec.trust_remote_code}
        attention = self._attention()
        own = {} if attention is None else {"attn_implementation": attention}
        if spec.model_weights != SAFETENSORS:
            return self._made(lambda: auto.from_config(self.config, dtype=torch.float32, **trust, **own))
        kept = {"use_safetensors": True, "local_files_only": True, "dtype": torch.float32, **own}
        model, loading = self._made(
            lambda: auto.from_pretrained(spec.model, config=self.config, output_loading_info=True, **kept, **trust)
        )
        self.not_loaded = tuple(sorted(loading["missing_keys"]))
        return model.train()

    def _on_meta(self, **own: Any) -> Any:

        def make() -> Any:
            with torch.device("meta"):
                trust = self.spec.trust_remote_code
                return self._auto().from_config(self._config(), trust_remote_code=trust, **own)

        return self._made(make)

    def _auto(self) -> Any:
        import transformers

        return getattr(transformers, self.auto_class)

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:  # a model can be wrong in anything
            raise InputError(
                "model-unsupported",
                f"transformers cannot build a model for task {self.task.name} from {self.spec.model} "
                f"({first_line(error)}): give an encoder that {self.auto_class} has, and weights of its shape",
            ) from error
