"""Weights & Biases: one run for each training, sent to the server or, with WANDB_MODE=offline, kept in the run folder.

Only when asked for. WANDB_PROJECT, WANDB_ENTITY, WANDB_BASE_URL and the other variables of wandb apply. An attempt that
resumes the training continues the same run.
"""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from bench.loggers.base import LostError, Target
from common.errors import first_line

_PROJECT, _RUN = "WANDB_PROJECT", "WANDB_RUN_ID"
_DEFAULT_PROJECT = "bertbench"
STEP = "applied_steps"
"""Name of the horizontal axis. wandb's own step refuses values of steps that are made again."""
# Exit codes by which wandb shows a run as finished and as killed.
_FINISHED, _KILLED = 0, 255
# wandb waits for a lost server without end; the records of the training must not wait for it.
_CLOSE_SECONDS = 60.0


class Wandb:
    """Hands scalars to wandb, whose own process sends or writes them."""

    package: ClassVar[str] = "wandb"
    remedy: ClassVar[str] = "pip install 'bertbench[wandb]'"

    def __init__(self, target: Target) -> None:
        self._run: Any
        self._call("open the run", lambda: self._open(target))
        self.run_id = str(self._run.id)

    def _open(self, target: Target) -> None:
        import wandb

        own = {
            "console": "off",  # log.txt has it
            "silent": True,
            "disable_git": True,
            "save_code": False,
            # It records the command line and the user, and it samples sensors beside ours.
            "x_disable_meta": True,
            "x_disable_stats": True,
        }
        self._run = wandb.init(
            project=os.environ.get(_PROJECT) or _DEFAULT_PROJECT,
            dir=str(target.run.path),
            name=os.environ.get("WANDB_NAME") or target.run.path.name,
            id=os.environ.get(_RUN) or target.run_ids.get("wandb"),
            resume=None if os.environ.get("WANDB_MODE", "").lower() in ("offline", "dryrun", "disabled") else "allow",
            config={name: value for name, value in target.settings.items() if value is not None},
            settings=wandb.Settings(**own),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    @staticmethod
    def wanted() -> bool:
        """Return False: it sends values to a server, so it must be asked for."""
        return False

    @staticmethod
    def load() -> None:
        """Import wandb. Raises ImportError."""
        import wandb

        wandb.init  # noqa: B018  # a folder named wandb, which wandb itself makes, imports as an empty package

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Hand over the values of a step by name. Raises LostError."""
        self._call("log", lambda: self._run.log({STEP: step, **values}))

    def flush(self) -> None:
        """Do nothing: wandb's process sends or writes values as they come."""

    def close(self, finished: bool) -> None:
        """End the run. Raises LostError: wandb failed, or was not done in a minute."""
        failures: list[Exception] = []

        def finish() -> None:
            try:
                self._run.finish(exit_code=_FINISHED if finished else _KILLED)
            except Exception as error:  # raised below, where it is caught
                failures.append(error)

        thread = threading.Thread(target=finish, daemon=True, name="wandb")
        thread.start()
        thread.join(_CLOSE_SECONDS)
        if thread.is_alive():
            raise LostError(
                f"values were not sent within {_CLOSE_SECONDS:.0f} s: send them by `wandb sync` of the folder wandb in "
                "the run directory"
            )
        for error in failures:
            raise _lost("end the run", error)

    def _call(self, what: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:  # wandb raises classes of its own and of others; the training continues
            raise _lost(what, error) from error


def _lost(what: str, error: Exception) -> LostError:
    return LostError(f"cannot {what} ({type(error).__name__}: {first_line(error)})")
