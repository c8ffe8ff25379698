"""The model that `--model` names, as the classes AutoModelFor... of transformers build it for a task."""

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from bench.implementations.base import Built
from bench.implementations.hugging_face import recompute, with_labels
from bench.implementations.model_folder import SAFETENSORS, first_line, load_config
from bench.implementations.module_flops import ForwardFlops, NotTracedError, forward_flops
from bench.implementations.module_memory import step_bytes
from bench.implementations.ours import LEARNING_RATE
from bert.data.batch import Batch, BatchCounts
from bert.model.memory import WORKSPACE_BYTES, Memory
from bert.optim.precision import AUTOCAST_DTYPE
from bert.optim.registry import adamw
from bert.parallel.options import read_options
from bert.tasks import make_task, task_data
from bert.tasks.base import BatchStream, Task
from bert.tasks.classification import ClassificationTask
from bert.train.feed import Adapt
from common.errors import InputError, UsageError
from records.trial import Trial

_CLASSES = {"masked words": "AutoModelForMaskedLM", "classes": "AutoModelForSequenceClassification"}
"""By bert.tasks.base.Heads."""
# What the package takes on a CPU besides (measured: transformers 5, Linux x86-64).
_TRANSFORMERS_BYTES = {"cpu": 112 << 20, "cuda": 0}
_ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")


@lru_cache
def given_memory(trial: Trial) -> Memory:
    """Return the peak memory of a rank of a trial with `model`. Raises InputError, UsageError: it cannot be built."""
    return GivenModel(trial, make_task(trial.task, trial.task_options)).memory()


class GivenModel:
    """The model of a trial with `model`. Raises InputError: its configuration cannot be read."""

    def __init__(self, trial: Trial, task: Task) -> None:
        self.trial = trial
        self.task = task
        self.auto_class = _CLASSES[task_data(task.name).heads]
        self.config = self._config()
        self.flops: ForwardFlops | None = None
        self.flops_unknown = ""
        try:
            self.flops = forward_flops(
                self._on_meta(attention="eager"), trial.seq_len, self.auto_class == "AutoModelForMaskedLM"
            )
        except NotTracedError as error:
            self.flops_unknown = f"FLOPs unknown: {error}"

    def model_flops(self, counts: BatchCounts) -> float | None:
        """Return the FLOPs of the micro-batches of a step, None where they are unknown."""
        return None if self.flops is None else self.flops.training(counts, self.trial.grad_accum_steps)

    def record(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return what a rank records of it: class, attention, weights, and why columns are unknown."""
        reasons = dict.fromkeys(("model_flops_per_second", "mfu"), self.flops_unknown) if self.flops_unknown else {}
        attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
        described = {"class": type(model).__name__, "weights": self.trial.model_weights, "attention": attention}
        return {"model": described, **({"unknown": reasons} if reasons else {})}

    def adapter(self, trial: Trial, streams: Callable[[], BatchStream]) -> Adapt:
        """Return what makes labels at every position, and the model's own padding."""
        padding = getattr(self.config, "pad_token_id", None)

        def adapt(batch: Batch) -> Batch:
            labelled = with_labels(batch)
            if not padding:
                return labelled
            tensors = dict(labelled.tensors)
            tensors["input_ids"] = tensors["input_ids"].masked_fill(tensors["attention_mask"] == 0, padding)
            return Batch(tensors, labelled.counts)

        return adapt

    def build(self) -> Built:
        """Build the model with its own dropout, and the loss of its task.

        Raises:
            InputError: transformers cannot build it, or its weights do not fit it.
            UsageError: activation checkpointing of a model that has none.
        """
        model = self._model()
        self._recompute(model)
        names = self._arguments(model)

        def compute(wrapped: torch.nn.Module, batch: Batch) -> torch.Tensor:
            loss: torch.Tensor = wrapped(**{name: batch.tensors[name] for name in names}).loss
            return loss

        loop = None
        if self.trial.implementation == "hf-trainer":
            from bench.implementations.hf_trainer import train_with_trainer

            loop = partial(train_with_trainer, options=read_options(self.trial.strategy_options))
        elif self.trial.implementation == "hf-compiled":
            model.compile()
        return Built(
            model=model,
            make_optimizer=lambda wrapped: adamw(wrapped, learning_rate=LEARNING_RATE),
            compute_loss=compute,
            loop=loop,
        )

    def memory(self) -> Memory:
        """Return the peak memory of a rank, from a step of the module on fake tensors.

        Attention on a GPU keeps no weights, which is what attention without dropout does on a CPU.
        """
        trial = self.trial
        changes: dict[str, float] = {}
        if trial.device == "cuda":
            changes = {name: 0.0 for name in _ATTENTION_DROPOUTS if getattr(self.config, name, None)}
        model = self._on_meta(**changes)
        self._recompute(model)
        shape: tuple[int, ...] = (trial.micro_batch_size, trial.seq_len)
        shapes = dict.fromkeys(self._arguments(model), shape)
        value: dict[str, torch.dtype] = {}
        if isinstance(self.task, ClassificationTask):
            shapes["labels"] = shape[:1]
            value = {"labels": torch.float32} if self.task.regression else {}

        def inputs() -> dict[str, torch.Tensor]:
            return {name: torch.zeros(of, dtype=value.get(name, torch.int64)) for name, of in shapes.items()}

        weights, most = step_bytes(model, inputs, AUTOCAST_DTYPE.get(trial.precision), trial.grad_accum_steps)
        return Memory(
            parameters=weights, gradients=weights, optimizer=2 * weights, activations=most - weights,
            workspace=WORKSPACE_BYTES[trial.device] + _TRANSFORMERS_BYTES[trial.device],
        )  # fmt: skip

    def _arguments(self, model: Any) -> list[str]:
        """Tensors of a batch that the model takes, labels among them."""
        names = ["input_ids", "attention_mask", "labels"]
        # Our batches have two segments; an embedding of one, as RoBERTa's, has no row for the second.
        takes = "token_type_ids" in inspect.signature(model.forward).parameters
        return [*names, *["token_type_ids"] * (takes and int(getattr(self.config, "type_vocab_size", 0) or 0) > 1)]

    def _recompute(self, model: Any) -> None:
        if not self.trial.activation_checkpointing:
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
        config = load_config(self.trial.model, self.trial.trust_remote_code)
        if isinstance(self.task, ClassificationTask):
            config.num_labels = self.task.labels
            config.problem_type = "regression" if self.task.regression else "single_label_classification"
        return config

    def _model(self) -> Any:
        trial, auto = self.trial, self._auto()
        trust = {"trust_remote_code": trial.trust_remote_code}
        if trial.model_weights != SAFETENSORS:
            return self._made(lambda: auto.from_config(self.config, dtype=torch.float32, **trust))
        kept = {"use_safetensors": True, "local_files_only": True, "dtype": torch.float32}
        return self._made(lambda: auto.from_pretrained(trial.model, config=self.config, **kept, **trust)).train()

    def _on_meta(self, **own: Any) -> Any:
        """Make the model on the meta device; `own` are fields of its configuration."""
        config = self._config()
        attention = {"attn_implementation": own.pop("attention")} if "attention" in own else {}
        for name, value in own.items():
            setattr(config, name, value)

        def make() -> Any:
            with torch.device("meta"):
                trust = self.trial.trust_remote_code
                return self._auto().from_config(config, trust_remote_code=trust, **attention)

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
                f"transformers cannot build a model for task {self.task.name} from {self.trial.model} "
                f"({first_line(error)}): give an encoder that {self.auto_class} has, and weights of its shape",
            ) from error
