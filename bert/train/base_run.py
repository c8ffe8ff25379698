"""What every training run has, whoever's model and loop it trains: parts that do not know them, and what it tells."""

from collections.abc import Callable
from pathlib import Path

from bert.model.config import model_config
from bert.optim.precision import Precision
from bert.parallel.base import Strategy
from bert.tasks import make_task
from bert.tasks.base import DataIdentity, Task
from bert.train.agreement import together
from bert.train.best import Evaluations
from bert.train.events import Best, Event, Report, RunOutcome, Warned
from bert.train.loop import Progress as UpdateCounts
from bert.train.losses import LossLog
from bert.train.parts import data_spec
from bert.train.settings import TrainSettings
from bert.train.state import vocabulary_text


class BaseRun:
    """Subclasses make model, optimizer and `log`, and train; every rank has one."""

    log: LossLog

    def __init__(
        self,
        settings: TrainSettings,
        folder: Path,
        strategy: Strategy,
        should_stop: Callable[[], bool],
        report: Report,
    ) -> None:
        """Look at the data and open what is evaluated on; arguments as bert.train.run.run_training has them."""
        self.settings = settings
        self.folder = folder
        self.strategy = strategy
        self.should_stop = should_stop
        self._report = report
        self.task: Task = make_task(settings.task, settings.task_options)
        self.config = model_config(settings)
        self.precision = Precision(settings.precision, strategy.device.type)
        self.counts = UpdateCounts()
        self.spec = data_spec(settings, strategy)
        self.data: DataIdentity = together(strategy, lambda: self.task.identify(self.spec))
        self.vocabulary = together(strategy, lambda: vocabulary_text(self.data))
        self.evaluations = Evaluations(settings, self.task, strategy, self.warn)
        self.evaluations.open(self.spec, self.data)
        self.checkpoint: Path | None = None

    @property
    def done(self) -> bool:
        """Whether all updates were made."""
        return self.counts.applied_steps >= self.settings.steps

    def outcome(self, resumed_from: Path | None, best: Best | None) -> RunOutcome:
        """Return how the run ended."""
        return RunOutcome(
            finished=self.done,
            applied_steps=self.counts.applied_steps,
            skipped_steps=self.counts.skipped_steps,
            samples_seen=self.log.samples_seen,
            resumed_from=resumed_from,
            checkpoint=self.checkpoint,
            evaluation=self.evaluations.latest,
            best=best,
        )

    def read_losses(self) -> None:
        """Tell of the steps that were made since this was called last."""
        for event in self.log.read(self.strategy, self.precision):
            self.report(event)

    def report(self, event: Event) -> None:
        """Tell of an event, on the first rank."""
        if self.strategy.rank == 0:
            self._report(event)

    def warn(self, message: str) -> None:
        """Tell of what needs no answer, on the first rank."""
        self.report(Warned(message=message))
