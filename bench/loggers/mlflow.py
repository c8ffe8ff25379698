"""MLflow: log to an existing run, such as AzureML's for each job and trial, or to a new one.

A new run is stored at MLFLOW_TRACKING_URI, by default in mlflow.db in the run directory. An attempt that resumes the
training continues the same run.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from bench.loggers.base import LostError, Target
from common.errors import first_line

_URI, _RUN, _EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"
# Values are sent in batches; a request per step would delay the training.
_MOST_WAITING = 500
_WAIT_SECONDS = 5.0
# Limits of MLflow.
_MOST_PARAMETERS, _LONGEST_PARAMETER = 100, 500


class Mlflow:
    """Sends scalars to one run, in batches."""

    package: ClassVar[str] = "mlflow"
    remedy: ClassVar[str] = "pip install mlflow, or mlflow-skinny for a server (on Azure also azureml-mlflow)"

    def __init__(self, target: Target) -> None:
        self._waiting: list[Any] = []
        self._sent_at = time.monotonic()
        self._own = not os.environ.get(_RUN)
        self.run_id: str | None = None
        self._call("open the run", lambda: self._open(target))

    def _open(self, target: Target) -> None:
        from mlflow import MlflowClient

        uri = os.environ.get(_URI) or f"sqlite:///{target.run.path}/mlflow.db"
        self._client: Any = MlflowClient(uri)
        if self._own:
            self.run_id = self._own_run(target)
        self._run = self.run_id or os.environ[_RUN]

    def _own_run(self, target: Target) -> str:
        before = target.run_ids.get("mlflow")
        if before is not None:
            with contextlib.suppress(Exception):  # another server than before does not have it
                self._client.update_run(before, status="RUNNING")
                return before
        from mlflow.entities import Param

        name = os.environ.get(_EXPERIMENT) or "bertbench"
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
        made = self._client.create_run(experiment, run_name=target.run.path.name).info.run_id
        parameters = [
            Param(key, str(value)[:_LONGEST_PARAMETER]) for key, value in target.settings.items() if value is not None
        ]
        self._client.log_batch(made, params=parameters[:_MOST_PARAMETERS])
        return str(made)

    @staticmethod
    def wanted() -> bool:
        """Return whether the environment names an existing run."""
        return bool(os.environ.get(_RUN) and os.environ.get(_URI))

    @staticmethod
    def load() -> None:
        """Import the MLflow client. Raises ImportError."""
        from mlflow import MlflowClient  # noqa: F401

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step by name. Raises LostError."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._waiting += [Metric(name, value, now, step) for name, value in values.items()]
        if len(self._waiting) >= _MOST_WAITING or time.monotonic() - self._sent_at > _WAIT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send all pending values. Raises LostError."""
        while self._waiting:
            part, self._waiting = self._waiting[:_MOST_WAITING], self._waiting[_MOST_WAITING:]
            self._call("send", lambda part=part: self._client.log_batch(self._run, metrics=part))
        self._sent_at = time.monotonic()

    def close(self, finished: bool) -> None:
        """Send all pending values, and end a run that this logger created. Raises LostError."""
        self.flush()
        if self._own:
            status = "FINISHED" if finished else "KILLED"
            self._call("end the run", lambda: self._client.set_terminated(self._run, status))

    def _call(self, what: str, act: Any) -> None:
        try:
            act()
        except Exception as error:  # plug-ins raise any class; the training continues
            raise LostError(f"cannot {what} ({type(error).__name__}: {first_line(error)})") from error
