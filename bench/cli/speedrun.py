"""`bertbench speedrun`: time, energy and cost from random weights to a held-out MLM loss."""

import math
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from analysis.metrics.comparison.trainings import NOT_REACHED, REACHED, SCORE
from bench.cli.options import Printed, parse_known, run_folder
from bench.cli.result import Result
from bench.cli.train import TrainingsCall, parse_trainings
from bench.cli.train_progress import TrainProgress
from bench.cluster.world import joined_world
from bench.machine.devices import Devices, find_devices
from bench.plan.speedrun import SpeedrunPlan, document, plan_speedrun
from bench.plan.variants import explore, in_turn
from bench.run.processes import StopRequest
from common import locks
from common.errors import UsageError
from common.flags import Groups, check_seed
from records.speedrun import Speedrun

_OUT_HELP = "Folder of the speedrun. The same command resumes it, also with more seeds."


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedrunOptions(Printed):
    """Pretrain from random weights until a held-out MLM loss is reached, once per seed, and report the time, energy and
    cost with their intervals over the seeds.

    It also takes the options of `bertbench train pretrain`, which apply to all seeds. The default recipe is for
    small models: preset mini, AdamW at 5e-4, linear schedule, 32 sequences per update, 1,000 steps, 50 evaluations.
    --data is a folder of shards with held-out (test) shards. `bertbench compare A B` decides between two speedruns.

    Examples:
        bertbench speedrun --preset mini --data data/mine --target-mlm-loss 6.5
        bertbench speedrun --data data/mine --target-mlm-loss 6.5 --precision bf16 --out runs/speedrun-bf16
    """

    GROUPS: ClassVar[Groups] = {"goal": ("target_mlm_loss", "seeds")}

    target_mlm_loss: float
    """Held-out MLM loss in nats. A seed has reached it at its first evaluation at or below it."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of weights, data order and dropout; one training each. All seeds of a folder count."""
    price_per_hour: float | None = None
    """Price of the machine per hour, for the cost; default no cost."""
    out: Annotated[Path, tyro.conf.arg(help=_OUT_HELP)] = Path("runs/speedrun")

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if not (math.isfinite(self.target_mlm_loss) and self.target_mlm_loss > 0):
            raise UsageError("option-value", f"--target-mlm-loss {self.target_mlm_loss:g} must be a number above 0")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise UsageError(
                "option-value", f"--seeds {' '.join(map(str, self.seeds))}: give at least one seed, each once"
            )
        for seed in self.seeds:
            check_seed(seed)
        if self.price_per_hour is not None and not 0 < self.price_per_hour < math.inf:
            raise UsageError("option-value", f"--price-per-hour {self.price_per_hour:g} must be above 0")


OPTIONS = {"speedrun": SpeedrunOptions}


def read_words(words: list[str], program: str) -> TrainingsCall[SpeedrunOptions]:
    """Parse the options of the speedrun and of its trainings."""
    options, rest = parse_known(SpeedrunOptions, words, program)
    if any(word.partition("=")[0] == "--seed" for word in rest):
        raise UsageError("option-not-applicable", "--seed is for one training: give --seeds, such as --seeds 1 2 3")
    return TrainingsCall(options, parse_trainings("pretrain", rest), words)


def run(call: TrainingsCall[SpeedrunOptions]) -> Result:
    """Train all seeds; return exit code 0 if all ended or on a stop, 3 if a training failed."""
    options, base = call.options, call.base
    with StopRequest() as stop:
        stop.limit(base.max_seconds)
        if joined_world() is not None:
            raise UsageError(
                "option-not-applicable",
                "speedrun starts the processes of its trainings itself: run it without torchrun",
            )
        place = Speedrun(run_folder(options.out))
        devices = find_devices(base.device)
        plan = plan_speedrun(
            base, place, devices, seeds=options.seeds, target=options.target_mlm_loss,
            price_per_hour=options.price_per_hour, command=_command(call.words),
        )  # fmt: skip
        with locks.locked(place.path, "another call", "wait for it, or choose another --out"):
            _write(plan)
            _train_all(plan, devices, stop)
            found = _write(plan)
    return _result(place, found, stop)


class _TargetProgress(TrainProgress):
    """Shows a training, and has it stop when an evaluation reaches the target."""

    def __init__(self, stop: StopRequest, target: float) -> None:
        super().__init__(stop)
        self._target = target
        self._reached = False

    def heard(self, event: Mapping[str, Any]) -> None:
        """Compare an evaluation with the target."""
        loss = event.get(SCORE) if event["event"] == "evaluated" else None
        self._reached = self._reached or (loss is not None and loss <= self._target)

    def stop_wanted(self) -> bool:
        """Whether the ranks should save and exit."""
        return self._reached or super().stop_wanted()


def _train_all(plan: SpeedrunPlan, devices: Devices, stop: StopRequest) -> None:
    signaled: list[int] = []

    def train(numbered: tuple[int, int]) -> None:
        number, seed = numbered
        item = plan.seeds[seed]
        head = f"[{number}/{len(plan.seeds)}] seed {seed}"
        if plan.complete(seed):
            _tell(f"{head}: already trained")
            return
        _tell(f"{head}: {item.run.path}")
        progress = _TargetProgress(stop, plan.target)
        try:
            item.train(devices, progress)
        finally:
            progress.end()
        if not plan.complete(seed) and (item.run.read_state() or {}).get("status") == "ok":
            signaled.append(seed)
        _write(plan)

    explore(in_turn(enumerate(plan.seeds, start=1)), train, lambda: stop.wanted() or bool(signaled))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(plan: SpeedrunPlan) -> dict[str, Any]:
    from analysis.render.tables import write_csv
    from records.files import write_record
    from records.schema import SPEEDRUN_COLUMNS

    found = document(plan)
    write_record(plan.place.document, found)
    write_csv(plan.place.csv, found["rows"], SPEEDRUN_COLUMNS, line_end="\n")
    return found


def _result(place: Speedrun, found: Mapping[str, Any], stop: StopRequest) -> Result:
    from analysis.render.comparison_tables import speedrun_blocks
    from analysis.render.figure import write_png
    from analysis.render.training_figures import column, lines_figure

    settings = found["settings"]
    name = f"{settings['preset']}, {settings['precision']}, batch {settings['global_batch_size']:,}"
    lines = {
        f"seed {row['seed']}": (column(row["readings"], "step_seconds"), column(row["readings"], "mlm_loss"))
        for row in found["rows"]
        if row["readings"]
    }
    panel = ("training time (s)", "held-out MLM loss (nats)", lines, ("target", float(found["target"]["value"])))
    figures = [lines_figure("speedrun", "Time to quality", name, [panel])] if lines else []
    written = [place.document, place.csv, *(write_png(figure, place.path) for figure in figures)]
    failed = [row for row in found["rows"] if row["status"] not in (REACHED, NOT_REACHED)]
    problems = [f"seed {row['seed']} {row['status']}: {row['reason'] or 'no attempt was made'}" for row in failed]
    stopped = stop.wanted() or (failed and all(row["status"] in ("stopped", "not begun") for row in failed))
    if failed and stopped:
        problems = [f"stopped by {stop.why() or 'a signal to the ranks'}; run the same command to resume"]
    elif failed:
        problems.append(f"the logs are in {place.path}/seed-*/trials/*/log.txt; run the same command to resume")
    code = 130 if stop.signal == signal.SIGINT and failed else 0 if stopped or not failed else 3
    return Result(
        document={"speedrun": str(place.path), **found},
        blocks=speedrun_blocks(found),
        written=written,
        problems=problems,
        code=code,
    )


def _command(words: Sequence[str]) -> str:
    """Return the command line without --out and --json, and with the name of the data instead of their path."""
    shown: list[str] = []
    skip = False
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if skip or name in ("--out", "--json"):
            skip = not skip and name == "--out" and not equals
        elif name == "--data" and equals:
            shown.append(f"--data={Path(value).name}")
        else:
            shown.append(Path(word).name if words[place - 1 : place] == ["--data"] else word)
    return shlex.join(["bertbench", "speedrun", *shown])
