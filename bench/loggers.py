"""Loggers: TensorBoard, MLflow, Weights & Biases. Rank 0 hands them the scalars of a training."""

import contextlib
import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from common.errors import first_line
from common.registry import lookup
from common.tools import need
from records.training import TrainRun

VARIABLE = "BERTBENCH_LOG_TO"
"""Environment variable that names the loggers to the ranks."""
WANDB_STEP = "applied_steps"
"""Horizontal axis; wandb's own step refuses values of steps that are made again."""
# A request per step would delay the training.
_MLFLOW_VALUES, _MLFLOW_SECONDS = 500, 5.0
# wandb would wait for a lost server without end; what is not sent then stays in RUN/wandb for `wandb sync`.
_WANDB_SECONDS = 60.0


class _TensorBoard:
    """Writes event files to the run directory; TensorBoard shows those of several attempts as one run."""

    run_id = None

    def __init__(self, run: TrainRun, first_step: int, settings: Mapping[str, Any], run_id: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run.tensorboard), purge_step=first_step)
        self.flush = self._writer.flush

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def close(self, finished: bool) -> None:
        self._writer.close()


class _Mlflow:
    """Logs to the run that MLFLOW_RUN_ID names, such as AzureML's for each job, and leaves it open; or to its own.

    The latter is stored at MLFLOW_TRACKING_URI, by default in mlflow.db in the run directory.
    """

    def __init__(self, run: TrainRun, first_step: int, settings: Mapping[str, Any], run_id: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._waiting: list[Any] = []
        self._sent_at = time.monotonic()
        self._client: Any = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.path}/mlflow.db")
        given = os.environ.get("MLFLOW_RUN_ID")
        if not given and run_id:
            self._client.update_run(run_id, status="RUNNING")
        elif not given:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "bertbench"
            known = self._client.get_experiment_by_name(name)
            experiment = self._client.create_experiment(name) if known is None else known.experiment_id
            run_id = str(self._client.create_run(experiment, run_name=run.path.name).info.run_id)
            parameters = [Param(key, str(value)[:500]) for key, value in settings.items()]  # MLflow's limit
            self._client.log_batch(run_id, params=parameters)
        self.run_id = None if given else run_id
        self._run = given or run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._waiting += [Metric(name, value, now, step) for name, value in values.items()]
        if len(self._waiting) >= _MLFLOW_VALUES or time.monotonic() - self._sent_at > _MLFLOW_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting)
        self._waiting, self._sent_at = [], time.monotonic()

    def close(self, finished: bool) -> None:
        self.flush()
        if self.run_id is not None:
            self._client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")


class _Wandb:
    """Hands scalars to wandb, whose process sends them, or with WANDB_MODE=offline keeps them in the run directory."""

    def __init__(self, run: TrainRun, first_step: int, settings: Mapping[str, Any], run_id: str | None) -> None:
        import wandb

        # log.txt has the console; x_disable: of the command line and the user, and of sensors beside ours.
        private = {"disable_git": True, "save_code": False, "x_disable_meta": True, "x_disable_stats": True}
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "bertbench",
            dir=str(run.path),
            name=os.environ.get("WANDB_NAME") or run.path.name,
            id=os.environ.get("WANDB_RUN_ID") or run_id,
            resume="allow",
            config=dict(settings),
            settings=wandb.Settings(
                console="off", silent=True, finish_timeout=_WANDB_SECONDS, finish_timeout_raises=True, **private
            ),
        )
        self._run.define_metric(WANDB_STEP, hidden=True)
        self._run.define_metric("*", step_metric=WANDB_STEP)
        self.run_id = str(self._run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({WANDB_STEP: step, **values})

    def flush(self) -> None: ...

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 255)  # wandb shows 255 as killed


LOGGERS: dict[str, Any] = {"tensorboard": _TensorBoard, "mlflow": _Mlflow, "wandb": _Wandb}
"""Classes by the name of their package. `run_id` is that of the run that a resumed training continues."""


class Loggers:
    """The loggers of an attempt. One that fails is dropped with a warning."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._open: dict[str, Any] = {}

    def open(self, run: TrainRun, first_step: int, settings: Mapping[str, Any]) -> dict[str, str | None]:
        """Open the loggers that VARIABLE names; return by name the ids of their runs."""
        before = run.logger_runs()
        known = {name: value for name, value in settings.items() if value is not None}
        for name in os.environ.get(VARIABLE, "").split():
            with self._dropping(name):
                self._open[name] = LOGGERS[name](run, first_step, known, before.get(name))
        return {name: logger.run_id for name, logger in self._open.items()}

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Log the known, finite values by name."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        self._each("log", step, known)

    def flush(self) -> None:
        """Write or send all pending values."""
        self._each("flush")

    def close(self, finished: bool) -> None:
        """Close all loggers; `finished` says whether the training is complete."""
        self._each("close", finished)

    def _each(self, method: str, *given: Any) -> None:
        for name, logger in list(self._open.items()):
            with self._dropping(name):
                getattr(logger, method)(*given)

    @contextlib.contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # these packages and their plug-ins raise any class
            self._open.pop(name, None)
            self._warn(f"not logging to {name}: {type(error).__name__}: {first_line(error)}")


def chosen_loggers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the loggers of --log-to; by default TensorBoard if installed, MLflow if the environment names a run.

    Raises:
        UsageError: an unknown name.
        MissingToolError: a package is not installed.
    """
    if not names:
        run_given = os.environ.get("MLFLOW_RUN_ID") and os.environ.get("MLFLOW_TRACKING_URI")
        installed = importlib.util.find_spec("tensorboard") is not None
        return (*(["tensorboard"] if installed else []), *(["mlflow"] if run_given else []))
    if set(names) == {"none"}:
        return ()
    for name in names:
        lookup(LOGGERS, name, "logger")
        need(f"--log-to {name}", name, name)
    return tuple(dict.fromkeys(names))
