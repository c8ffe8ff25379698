"""`bertbench tune TASK`: search for better hyperparameters with Optuna."""

import dataclasses
import math
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bench.cli.options import Printed, check_task, run_folder
from bench.cli.parser import parse_known
from bench.cli.result import Result
from bench.cli.train import parse_trainings
from bench.launch.world import joined_world
from bench.machine.devices import Devices, find_devices
from bench.plan.options import of_our_tasks
from bench.plan.training import Plan, TrainOptions, option_kinds
from bench.plan.variants import PlannedVariant, Values, plan_variant
from bench.run.processes import StopRequest
from bench.tune.document import FILE, document
from bench.tune.space import SearchSpace, make_space, word
from bench.tune.study import PRUNERS, SAMPLERS, Question, Search, Study, storage_path
from bench.tune.worker import Job, Objective, make_objective, work
from common.errors import UsageError
from common.flags import Groups, OneOf, Positional, flag, request_of
from common.registry import lookup
from records.training import is_train_run

_DEFAULT_TRIALS = 20
# Default number of evaluations of a trial; pruning needs several.
_EVALUATIONS = 5
_BEST, _ALL = "best", "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneOptions(Printed):
    """Search for the training options with the best score. Each trial is a training run; a trial that falls behind is
    stopped early. The same command resumes the study. Several processes or a job array can share it.

    It also takes the options of `bertbench train TASK`, which apply to all trials.

    Examples:
        bertbench tune glue --task mrpc --data runs/glue-data --search learning_rate=log:1e-5:1e-4 --trials 10
        bertbench tune squad --search learning_rate=2e-5,3e-5,5e-5 epochs=2:4:1
    """

    GROUPS: ClassVar[Groups] = {
        "search": ("search", "space", "objective", "sampler", "sampler_seed", "startup_trials"),
        "trial": ("trials", "max_seconds", "retries", "checkpoints"),
        "pruning": ("pruner", "prune_after", "unpruned_readings"),
    }

    task: Positional[str]
    """Task to train, as in `bertbench train`."""
    search: tuple[str, ...] = ()
    """Training options to search: NAME=VALUE,VALUE or NAME=LOW:HIGH[:STEP] or NAME=log:LOW:HIGH; default those in
    --space."""
    space: Path | None = None
    """TOML file with the options to search; default those of --search."""
    objective: str | None = None
    """Score to optimize, which also selects the best checkpoint of a trial, or loss for the training loss; default the
    task's own score."""
    trials: int | None = None
    """Trials in the whole study; default 20, with --max-seconds no limit."""
    max_seconds: float | None = None
    """Stop after this time in s; the running trial is saved and the next call resumes it; default no limit."""
    sampler: Annotated[str, OneOf(tuple(SAMPLERS))] = "tpe"
    """tpe learns from earlier trials; random does not."""
    sampler_seed: int = 0
    """Seed of the sampler. --seed is the seed of every training run."""
    startup_trials: int = 10
    """Random trials before tpe takes over."""
    pruner: Annotated[str, OneOf(tuple(PRUNERS))] = "median"
    """median stops a trial that is worse than half of the others at the same evaluation; none stops no trial."""
    prune_after: int = 5
    """Complete trials before the first is pruned."""
    unpruned_readings: int = 1
    """Evaluations before a trial can be pruned."""
    retries: int = 2
    """Retries, from the last checkpoint, of a trial whose worker was killed."""
    checkpoints: Annotated[str, OneOf((_BEST, _ALL))] = _BEST
    """Checkpoints to keep of finished trials: best keeps those of the best trial, all keeps all."""
    out: Path = Path("runs/tune")
    """Folder of the study. The same command resumes it; several processes can share it."""

    def __post_init__(self) -> None:
        """Refuse unknown names and values out of range."""
        for value, names, what in (
            (self.sampler, SAMPLERS, "sampler"), (self.pruner, PRUNERS, "pruner"),
            (self.checkpoints, (_BEST, _ALL), "checkpoints"),
        ):  # fmt: skip
            lookup(dict.fromkeys(names), value, what)
        least = {"trials": 1, "startup_trials": 1, "prune_after": 1, "sampler_seed": 0, "unpruned_readings": 0}
        for name, fewest in {**least, "retries": 0}.items():
            value = getattr(self, name)
            if value is not None and value < fewest:
                raise UsageError("option-value", f"{flag(name)} {value} must be at least {fewest}")
        if self.max_seconds is not None and not 0 < self.max_seconds < math.inf:
            raise UsageError("option-value", f"--max-seconds {self.max_seconds} must be above 0")


OPTIONS = {"tune TASK": TuneOptions}

# Options of a training that do not change its result, or that define the comparison.
NOT_SEARCHED = (
    "task", "file", "benchmark_task", "phase", "out", "json", "device", "devices", "threads", "max_seconds", "log_to",
    "log_every", "save_every", "keep", "eval_every", "eval_data", "eval_samples", "best_by",
    "deepspeed_config",
)  # fmt: skip
# Options above that may change between calls.
_FREE = ("out", "json", "threads", "max_seconds", "log_to", "log_every", "save_every", "keep", "device")


@dataclass(frozen=True, slots=True)
class TuneCall:
    """A call of the command."""

    options: TuneOptions
    base: TrainOptions
    """Options common to all trainings."""
    words: Sequence[str]
    """The command-line words of `base`."""

    @property
    def json(self) -> bool:
        """Whether the result is for programs."""
        return self.options.json


def run(call: TuneCall) -> Result:
    """Search; return exit code 0 for a finished or stopped search, 3 if no trial completed."""
    options, base, rest = call.options, call.base, call.words
    with StopRequest() as stop:
        stop.limit(options.max_seconds)
        if joined_world() is not None:
            raise UsageError(
                "option-not-applicable",
                "tune starts the processes of its trials itself: run it without torchrun, once per worker (`bertbench "
                "submit` with --no-launch)",
            )
        space = make_space(options.search, options.space, option_kinds(NOT_SEARCHED))
        _check_given_once(base, space)
        out = run_folder(options.out)
        if is_train_run(out):
            raise UsageError(
                "folder-occupied", f"--out {options.out} is the run directory of a training: give another folder"
            )
        devices = find_devices(base.device)
        maker = _Maker(base, rest, _EVALUATIONS if options.pruner != "none" else 1, devices)
        objective = make_objective(maker.corner(space, out).settings, options.objective)
        maker.evaluated, maker.best_by = objective.evaluated, objective.best_by
        maker.corner(space, out)
        search = Search(**{field.name: _search_field(options, field.name) for field in dataclasses.fields(Search)})
        study = Study(out, _question(options, base, space, objective), search)
        trials = options.trials if options.trials is not None or options.max_seconds is not None else _DEFAULT_TRIALS
        job = Job(
            study=study,
            space=space,
            objective=objective,
            make=maker.make,
            devices=devices,
            trials=trials,
            keep_all=options.checkpoints == _ALL,
        )

        def ended() -> None:
            _write(study, search, trials)

        why = work(job, stop, _tell, ended)
    return _finish(study, search, trials, why, stop)


def read_words(argv: list[str], program: str) -> TuneCall:
    """Parse the options of the search and of its trainings; the first word names the task."""
    check_task(argv, program)
    options, words = parse_known(TuneOptions, argv, program)
    base = parse_trainings(options.task, words)
    if base.best_by is not None:
        raise UsageError(
            "option-not-applicable",
            f"--best-by {base.best_by} does not apply to a study, whose trials choose their best checkpoint by the "
            f"objective: give --objective {base.best_by}",
        )
    return TuneCall(options, base, words)


def _check_given_once(base: TrainOptions, space: SearchSpace) -> None:
    for options in (base, base.task_flags):
        for field in dataclasses.fields(options):
            if field.name in space.texts() and getattr(options, field.name) != field.default:
                name = field.name.replace("_", "-")
                raise UsageError("option-conflict", f"--{name} is both given and searched: remove one of them")


def _search_field(options: TuneOptions, name: str) -> Any:
    return getattr(options, {"seed": "sampler_seed"}.get(name, name))


def _question(options: TuneOptions, base: TrainOptions, space: SearchSpace, objective: Objective) -> Question:
    plain = {**request_of(base), "data": base.data or base.file}
    plain |= of_our_tasks(plain.pop("task_flags"))
    training = {name: value for name, value in plain.items() if name not in (*_FREE, *space.texts(), "task", "file")}
    return Question(
        task=options.task,
        objective=objective.name,
        maximize=objective.maximize,
        space=space.texts(),
        training=training,
    )


class _Maker:
    """Plans the training for the values of a trial."""

    def __init__(self, base: TrainOptions, rest: Sequence[str], evaluations: int, devices: Devices) -> None:
        self._base = base
        self._rest = rest
        self._evaluations = evaluations
        self._devices = devices
        self.evaluated = False
        """Whether trainings must be evaluated, by default `evaluations` times."""
        self.best_by: str | None = None
        """Score that selects the best checkpoint; None uses the task's default."""

    def make(self, values: Values, folder: Path) -> tuple[PlannedVariant, list[str]]:
        """Return the training and its command-line words. Raises BertbenchError if the values are not valid."""
        # One checkpoint besides the best is enough to resume.
        options = self._base.having(values, out=folder, keep=self._base.keep or 1)
        planned = plan_variant(options, values, self._devices)
        settings, own = planned.plan.settings, dict(values)
        if self.evaluated and settings.eval_every == 0:
            own["eval_every"] = math.ceil(settings.steps / self._evaluations)
        if self.best_by is not None:
            own["best_by"] = self.best_by
        if own != dict(values):
            planned = plan_variant(options.having(own), own, self._devices)
        return planned, [options.task, *self._rest, *_words(own)]

    def corner(self, space: SearchSpace, out: Path) -> Plan:
        """Return the plan of a corner of the space. Raises UsageError or InputError if no corner can be trained."""
        first, last = space.corners()
        try:
            return self.make(first, out)[0].plan
        except UsageError:
            return self.make(last, out)[0].plan


def _words(values: Values) -> list[str]:
    found = []
    for name, value in values.items():
        option = flag(name)
        if isinstance(value, bool):
            found += [option] if value else []
        else:
            found += [option, word(value)]
    return found


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(study: Study, search: Search, trials: int | None) -> dict[str, Any]:
    from records.files import write_record

    with study.locked():
        found = document(study, search, trials)
        write_record(study.folder / FILE, found)
    return found


def _finish(study: Study, search: Search, trials: int | None, why: str, stop: StopRequest) -> Result:
    from analysis.render.study import tune_blocks
    from analysis.render.tables import Facts

    found = _write(study, search, trials)
    waiting = sum(trial["state"] == "waiting" for trial in found["trials"])
    code = 3 if found["best"] is None and not stop.wanted() else 0
    charts = shlex.join(["optuna-dashboard", f"sqlite:///{storage_path(study.folder)}"])
    return Result(
        document={"study": str(study.folder), "ended": why, **found},
        blocks=[*tune_blocks(found), Facts([("ended", why), ("charts", charts)])],
        written=[study.folder / FILE],
        notes=[f"{waiting} unfinished trial{'s'[: waiting > 1]}: run the same command to resume"] * (waiting > 0),
        code=130 if stop.signal == signal.SIGINT else code,
    )
