"""Hugging Face's models, trained by Hugging Face's Trainer."""

from functools import partial

from bench.implementations import TRAINER_STRATEGIES
from bench.implementations.base import Built
from bench.implementations.hugging_face import HuggingFaceImplementation
from bench.implementations.trainer_loop import check_packages, train_with_trainer
from bert.model.config import ModelConfig
from bert.parallel.options import read_options
from bert.tasks.base import Task
from bert.train.observer import Observer
from common.errors import UsageError
from records.trial import Trial


class TrainerImplementation(HuggingFaceImplementation):
    """`transformers.Trainer` around `transformers`' models, our batches and optimizer."""

    def check(self, trial: Trial) -> None:
        """Raises MissingToolError without transformers or accelerate, UsageError for what it cannot run."""
        check_packages(trial.implementation)
        if trial.strategy not in TRAINER_STRATEGIES:
            raise UsageError(
                "unsupported-combination",
                f"implementation {trial.implementation!r} runs strategies {' and '.join(TRAINER_STRATEGIES)}, not "
                f"{trial.strategy!r}",
            )
        super().check(trial)

    def build(self, trial: Trial, task: Task, config: ModelConfig, observer: Observer) -> Built:
        """As Hugging Face's model, with Trainer's loop."""
        built = super().build(trial, task, config, observer)
        return Built(
            model=built.model,
            make_optimizer=built.make_optimizer,
            compute_loss=built.compute_loss,
            loop=partial(train_with_trainer, options=read_options(trial.strategy_options)),
        )
