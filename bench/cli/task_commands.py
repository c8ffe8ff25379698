"""`data`, `predict` and `eval` of a task: parse its options, show its result and write its scores."""

import dataclasses
import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.render.tables import Block, Facts, Plain, texts
from bench.cli.options import Printed, run_folder
from bench.cli.parser import parse
from bench.cli.progress import note, show_stages
from bench.cli.result import Result, when_writable
from bench.machine.devices import find_devices
from bench.sweep.options import AUTO, resolve_precision
from bert.tasks import TASKS, known_tasks, task_data
from bert.tasks.base import Ready
from bert.tasks.commands import Grid, Outcome, Shown, TaskCommand
from common.errors import UsageError
from common.registry import load
from records.training import TrainRun, is_train_run
from records.trial import Trial

if TYPE_CHECKING:
    from bert.predict import Opened

SCORES_FILE = "scores.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Computing:
    """Device and precision for a trained model."""

    device: str = "auto"
    """Device type; default auto: CUDA where a GPU is present, otherwise the CPU."""
    precision: str = AUTO
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    batch_size: int = 32
    """Rows per batch; for squad, windows."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.batch_size < 1:
            raise UsageError("option-value", f"--batch-size {self.batch_size} must be at least 1")


def commands(verb: str, tasks: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return "module:class" of a command for each task that has it, among `tasks` or all known tasks."""
    found = {}
    for task in known_tasks() if tasks is None else tasks:
        for words, (entry, _) in task_data(task).commands.items():
            called, _, name = words.partition(" ")
            if called == verb:
                found[name or task] = entry
    return found


def options_of_tasks(verb: str) -> dict[str, type]:
    """Return the options of the command of every built-in task, by its words."""
    return {f"{verb} {name}": TaskRun(verb, name, entry).options for name, entry in commands(verb, TASKS).items()}


class TaskRun:
    """A command of a task."""

    def __init__(self, verb: str, task: str, entry: str) -> None:
        """Load the command.

        Args:
            verb: data, predict or eval.
            task: a name in bert.tasks.
            entry: "module:class" of the command.
        """
        self._verb, self._task = verb, task
        self._command: TaskCommand = load({task: entry}, task, "task")(task)
        fields: list[Any] = [("own", self._command.options)]
        if self._command.computes:
            fields.append(("computing", Computing, dataclasses.field(default_factory=Computing)))
        text = (inspect.getdoc(type(self._command)) or "").replace("TASK", task)
        self.options = dataclasses.make_dataclass(
            "TaskOptions", fields, bases=(Printed,), namespace={"__module__": __name__}, frozen=True, kw_only=True
        )
        self.options.__doc__ = text

    def read_words(self, words: list[str], program: str) -> Any:
        """Parse the words after the task. Raises UsageError."""
        if self._verb == "data" and words and not words[0].startswith("-"):
            words = ["--input", *words]
        return parse(self.options, words, program)

    def run(self, options: Any) -> Result:
        """Run the command. Raises BertbenchError."""
        own = options.own
        defaults = {item.name: item.default for item in dataclasses.fields(own)}
        if self._verb == "predict" and defaults["out"] is not None:  # None: a file beside the data
            own = dataclasses.replace(own, out=run_folder(own.out))
        scores: Path | None = getattr(own, "out", None) if self._verb == "eval" else None
        if scores is not None:
            _check_scores_folder(scores, self._task)
        outcome = self._command.run(own, _Terminal(options.computing if self._command.computes else None))
        blocks = list(map(_block, outcome.shown))
        if outcome.following is not None:
            blocks.append(Plain(f"next: {shlex.join(['bertbench', *outcome.following])}"))
        written: Sequence[Path] = ()
        failure, document = None, outcome.document
        if scores is not None:
            written, failure = when_writable(lambda: _write_scores(outcome, scores))
        if self._verb == "eval" and "out" in defaults:
            document = {**document, "written": [str(path) for path in written]}
        return Result(document=document, blocks=blocks, written=written, notes=outcome.notes, failure=failure)


def _block(shown: Shown) -> Block:
    if isinstance(shown, str):
        return shown
    if isinstance(shown, Grid):
        return texts("table", shown.headings, shown.rows)
    return Facts([(name, str(value)) for name, value in shown])


def _write_scores(outcome: Outcome, out: Path) -> list[Path]:
    from bench.cli.score_pictures import draw_scores
    from common.atomic import write_json

    write_json(out / SCORES_FILE, outcome.document)
    return [out / SCORES_FILE, *draw_scores(outcome.document, outcome.drawn, out)]


def _check_scores_folder(out: Path, task: str) -> None:
    """Refuse to overwrite a file that is not scores of the same task."""
    path = out / SCORES_FILE
    if not path.is_file():
        return
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("task") != task:
        raise UsageError(
            "folder-occupied", f"{path} is not of `bertbench eval {task}` and would be overwritten: give another --out"
        )


@dataclass(frozen=True, slots=True)
class _Terminal:
    """The bert.tasks.commands.Host of a command line."""

    computing: Computing | None

    def note(self, text: str) -> None:
        note(text)

    @property
    def progress(self) -> Any:
        return show_stages()

    def checkpoint(self, path: Path) -> Path:
        if not is_train_run(path):
            return path
        run = TrainRun(path)
        return run.best_checkpoint() or run.checkpoints

    def trained_on(self, checkpoint: Path) -> tuple[str, str] | None:
        from bert.predict import settings_of

        found = settings_of(checkpoint) or _trial_of(checkpoint)
        return None if found is None else (found.task, found.data)

    def data_fingerprint(self, checkpoint: Path) -> str | None:
        from bert.predict import state_of

        state = state_of(checkpoint)
        if state is not None:
            return state.data.fingerprint
        trial = _trial_of(checkpoint)
        return None if trial is None else trial.data_fingerprint or None

    def ready(self, opened: "Opened") -> Ready:
        from bert.optim.precision import Precision
        from bert.parallel.single import SingleStrategy

        assert self.computing is not None
        devices = find_devices(self.computing.device)
        strategy = SingleStrategy()
        strategy.setup(devices.kind)
        precision = Precision(resolve_precision(self.computing.precision, devices), devices.kind)
        return Ready(opened.model.to(strategy.device), strategy.device, precision, self.computing.batch_size)


def _trial_of(checkpoint: Path) -> Trial | None:
    """Return the latest attempt of the training run that contains a checkpoint; None if there is no such run."""
    run = next((folder for folder in (checkpoint.parent, checkpoint.parent.parent) if is_train_run(folder)), None)
    attempts = [] if run is None else TrainRun(run).attempts()
    return attempts[-1].read_trial() if attempts else None
