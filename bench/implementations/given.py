"""The model that `--model` names, as AutoModelForMaskedLM builds it, in eager mode or through torch.compile."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from bench.implementations.base import Built
from bench.implementations.hugging_face import recompute, with_labels
from bench.implementations.model_folder import SAFETENSORS, first_line, load_config
from bench.implementations.module_flops import ForwardFlops, NotTracedError, forward_flops
from bench.implementations.ours import LEARNING_RATE
from bert.data.batch import Batch, BatchCounts
from bert.optim.registry import adamw
from bert.tasks.base import BatchStream
from bert.train.feed import Adapt
from common.errors import InputError, UsageError
from records.trial import Trial


class GivenModel:
    """The model of a trial with `model`. Raises InputError: its configuration cannot be read."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.config = load_config(trial.model, trial.trust_remote_code)
        self.flops: ForwardFlops | None = None
        self.flops_unknown = ""
        try:
            self.flops = forward_flops(self._on_meta(), trial.seq_len)
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
        """Build the model with its own dropout, and its masked-LM loss.

        Raises:
            InputError: transformers cannot build it, or its weights do not fit it.
            UsageError: activation checkpointing of a model that has none.
        """
        model = self._model()
        if self.trial.activation_checkpointing:
            try:
                recompute(model)
            except (ValueError, AttributeError, TypeError) as error:
                raise UsageError(
                    "unsupported-combination",
                    f"{type(model).__name__} has no activation checkpointing ({first_line(error)}): leave out "
                    "--activation-checkpointing",
                ) from error
        names = ["input_ids", "attention_mask", "labels"]
        # Our batches have two segments; an embedding of one, as RoBERTa's, has no row for the second.
        takes = "token_type_ids" in inspect.signature(model.forward).parameters
        if takes and int(getattr(self.config, "type_vocab_size", 0) or 0) > 1:
            names.append("token_type_ids")

        def compute(wrapped: torch.nn.Module, batch: Batch) -> torch.Tensor:
            loss: torch.Tensor = wrapped(**{name: batch.tensors[name] for name in names}).loss
            return loss

        if self.trial.implementation == "hf-compiled":
            model.compile()
        return Built(
            model=model,
            make_optimizer=lambda wrapped: adamw(wrapped, learning_rate=LEARNING_RATE),
            compute_loss=compute,
        )

    def _model(self) -> Any:
        from transformers import AutoModelForMaskedLM

        trial, trust = self.trial, {"trust_remote_code": self.trial.trust_remote_code}
        if trial.model_weights != SAFETENSORS:
            return self._made(lambda: AutoModelForMaskedLM.from_config(self.config, dtype=torch.float32, **trust))
        load = AutoModelForMaskedLM.from_pretrained
        kept = {"use_safetensors": True, "local_files_only": True, "dtype": torch.float32}
        return self._made(lambda: load(trial.model, config=self.config, **kept, **trust)).train()

    def _on_meta(self) -> Any:
        from transformers import AutoModelForMaskedLM

        config = load_config(self.trial.model, self.trial.trust_remote_code)
        trust = {"trust_remote_code": self.trial.trust_remote_code}

        def make() -> Any:
            with torch.device("meta"):
                return AutoModelForMaskedLM.from_config(config, attn_implementation="eager", **trust)

        return self._made(make)

    def _made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:  # a model can be wrong in anything
            raise InputError(
                "model-unsupported",
                f"transformers cannot build a masked-language model from {self.trial.model} ({first_line(error)}): "
                "give an encoder that AutoModelForMaskedLM has, and weights of its shape",
            ) from error
