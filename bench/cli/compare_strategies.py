"""`bertbench compare-strategies TASK`: compare trainings on one and on several devices in a table and a chart."""

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from analysis.wording import implementation_label
from bench.cli.options import Printed, check_task, parse_known, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, show
from bench.cli.sweep_progress import show_progress
from bench.cli.train import TrainingsCall, parse_trainings
from bench.cli.train_progress import TrainProgress
from bench.implementations import OURS, TRAININGS
from bench.machine.devices import Devices, find_devices
from bench.plan.comparison import PROFILE_FOLDER, combinations, profile_variants, remarks, with_same_batches
from bench.plan.options import AUTO
from bench.plan.sweep import Session
from bench.plan.variants import PlannedVariant, check_comparable, explore, in_turn, plan_variant
from bench.run.launch import LaunchOptions
from bench.run.processes import StopRequest
from bert.parallel import STRATEGIES
from bert.speed.registry import check_levers
from common import locks
from common.errors import UsageError
from common.flags import choice_of, request_of
from common.registry import lookup
from records.run import RunDirectory
from records.trial import PRECISIONS

if TYPE_CHECKING:
    from analysis.metrics.comparison.trainings import TrainingComparison

# Most lines of the caption; more would leave no room for the chart.
_MOST_SHARES = 2
OUT_HELP = "Folder of the comparison. The same command resumes it."


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareStrategiesOptions(Printed):
    """Train the same model with each strategy, number of devices, precision, implementation and set of optimizations,
    with the same global batch size, seed and data. Then compare time, samples/s, losses, scores and communication.

    It also takes the options of `bertbench train TASK`, which apply to all variants. Set --global-batch-size
    explicitly, and set --dropout 0 to get equal losses: with dropout each process draws its own masks.

    Examples:
        bertbench compare-strategies pretrain --steps 20 --global-batch-size 64 --dropout 0
        bertbench compare-strategies squad --devices 2 --strategies ddp fsdp --precisions bf16
    """

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """Task to train, as in `bertbench train`."""
    devices: tuple[int, ...] = (1, 2)
    """Numbers of devices, one process each; on a CPU the processes share the cores."""
    strategies: tuple[str, ...] = (AUTO,)
    """Parallel strategy; default auto: single on one device, ddp on several."""
    precisions: tuple[str, ...] = (AUTO,)
    """Numeric precision; default auto: --precision if given, else bf16 where the hardware supports it, else fp32."""
    implementations: Annotated[tuple[str, ...], tyro.conf.arg(metavar=choice_of(TRAININGS) + " ...")] = (OURS,)
    """Implementations that train."""
    levers: tuple[str, ...] = (AUTO,)
    """Optimizations of bertbench's own model, a variant each: auto, none, or names joined by +."""
    out: Annotated[Path, tyro.conf.arg(help=OUT_HELP)] = Path("runs/strategies")
    profile_steps: int = 3
    """Steps to profile with the PyTorch profiler after training, for variants on several devices; 0 disables it."""

    def __post_init__(self) -> None:
        """Refuse unknown names and values out of range."""
        for name in self.strategies:
            lookup({AUTO: "", **STRATEGIES}, name, "strategy")
        for name in self.precisions:
            lookup(dict.fromkeys((AUTO, *PRECISIONS)), name, "precision")
        for name in self.implementations:
            lookup(TRAININGS, name, "implementation of training runs")
        for name in self.levers:
            check_levers(name)
        if any(count < 1 for count in self.devices):
            raise UsageError(
                "option-value", f"--devices {' '.join(map(str, self.devices))}: every number must be at least 1"
            )
        if self.profile_steps < 0:
            raise UsageError("option-value", f"--profile-steps {self.profile_steps} must be at least 0")


OPTIONS = {"compare-strategies TASK": CompareStrategiesOptions}


def run(call: TrainingsCall[CompareStrategiesOptions]) -> Result:
    """Compare; return exit code 0 for a finished or stopped comparison, 3 if a variant failed or has no profile."""
    options, base = call.options, call.base
    with StopRequest() as stop:
        out = run_folder(options.out)
        found = combinations(
            {
                "implementation": options.implementations, "levers": options.levers, "precision": options.precisions,
                "strategy": options.strategies, "devices": options.devices,
            }
        )  # fmt: skip
        if skipped := by_reason([(variant.name, variant.impossible) for variant in found if variant.impossible]):
            note(f"skipped {skipped}")
        stop.limit(base.max_seconds)
        devices = find_devices(base.device)
        possible = [variant for variant in found if not variant.impossible]
        planned = [
            with_same_batches(
                plan_variant(base.having(variant.values, out=out / variant.name), variant.values, devices), devices
            )
            for variant in possible
        ]
        check_comparable(planned, devices)
        with locks.locked(out, "another call", "wait for it, or choose another --out"):
            if not train_all(planned, devices, stop):
                return stopped(stop)
    with locks.locked(out, "another call", "wait for it, or choose another --out"):
        document, comparison = _written(options, out, planned, devices, {})
        if options.profile_steps:
            try:
                profiles = _profile(options, out, planned, devices)
            except KeyboardInterrupt:
                if not options.json:
                    show(_result(out, document, comparison), as_json=False)
                note("interrupted while profiling, so the table lacks communication: run the same command to add it")
                raise
            document, comparison = _written(options, out, planned, devices, profiles)
    return _result(out, document, comparison)


def read_words(words: list[str], program: str) -> TrainingsCall[CompareStrategiesOptions]:
    """Parse the options of the comparison and of its trainings; the first word names the task."""
    check_task(words, program)
    options, rest = parse_known(CompareStrategiesOptions, words, program)
    return TrainingsCall(options, parse_trainings(options.task, rest))


def train_all(planned: Sequence[PlannedVariant], devices: Devices, stop: StopRequest) -> bool:
    """Train all unfinished variants; return False if a stop request came first."""
    signaled: list[PlannedVariant] = []

    def train(numbered: tuple[int, PlannedVariant]) -> bool:
        number, item = numbered
        head = f"[{number}/{len(planned)}] {item.name}"
        progress = TrainProgress(stop)
        print(f"{head}: {item.run.path}", file=sys.stderr, flush=True)
        try:
            trained = item.train(devices, progress)
        finally:
            progress.end()
        if not trained:
            ended = f"refused earlier; delete {item.run.path} to try again" if item.refused else "already trained"
            print(f"{head}: {ended}", file=sys.stderr, flush=True)
        if not item.finished and (item.run.read_state() or {}).get("status") == "ok":
            signaled.append(item)
        return trained

    ended = explore(in_turn(enumerate(planned, start=1)), train, lambda: stop.wanted() or bool(signaled))
    return ended is not None or all(item.finished for item in planned)


def stopped(stop: StopRequest) -> Result:
    """Return the result of a comparison that was stopped."""
    said = f"stopped by {stop.why() or 'a signal to the ranks'}; run the same command to continue"
    return Result(problems=[said], code=130 if stop.signal == signal.SIGINT else 0)


def _profile(
    options: CompareStrategiesOptions, out: Path, planned: Sequence[PlannedVariant], devices: Devices
) -> dict[str, dict[str, Any]]:
    trained = [item for item in planned if item.finished]
    request = {"command": "compare-strategies", **request_of(options)}
    session = Session(
        run=RunDirectory(out / PROFILE_FOLDER), request=request, devices=devices, options=LaunchOptions(),
        progress=show_progress, note=note,
    )  # fmt: skip
    return profile_variants(session, trained, options.profile_steps)


def _written(
    options: CompareStrategiesOptions,
    out: Path,
    planned: Sequence[PlannedVariant],
    devices: Devices,
    profiles: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], "TrainingComparison"]:
    """Write the comparison so far; profiling takes minutes and may be interrupted."""
    comparison = _compare(planned, profiles)
    document = _document(options, planned, devices, comparison)
    _write(out, document, comparison)
    return document, comparison


def _compare(planned: Sequence[PlannedVariant], profiles: Mapping[str, Mapping[str, Any]]) -> "TrainingComparison":
    from analysis.metrics.comparison.trainings import VariantRun, compare_trainings

    runs = [
        VariantRun(
            strategy=item.plan.settings.strategy,
            devices=item.plan.settings.world_size,
            implementation=implementation_label(item.plan.implementation, str(item.values.get("levers", ""))),
            run=item.run,
            profile=profiles.get(item.name, {}),
        )
        for item in planned
    ]
    return compare_trainings(runs, planned[0].plan.source.samples)


def _document(
    options: CompareStrategiesOptions,
    planned: Sequence[PlannedVariant],
    devices: Devices,
    comparison: "TrainingComparison",
) -> dict[str, Any]:
    settings = planned[0].plan.settings
    machines = filter(None, (item.device_name() for item in planned))
    return {
        "task": settings.task,
        "request": request_of(options),
        "settings": settings.to_json(),
        "device_name": next(machines, None),
        "samples_per_epoch": planned[0].plan.source.samples,
        "epochs": comparison.epochs,
        "notes": remarks(planned, devices),
        "variants": list(comparison.rows),
    }


def _write(out: Path, document: Mapping[str, Any], comparison: "TrainingComparison") -> None:
    from analysis.render.comparison_tables import comparison_rows
    from analysis.render.figure import write_png
    from analysis.render.tables import write_csv
    from analysis.render.training_figures import comparison_figure
    from records.files import write_record

    settings = document["settings"]
    write_record(out / "comparison.json", document)
    write_csv(out / "comparison.csv", comparison_rows(comparison), line_end="\n")
    precisions = dict.fromkeys(row["precision"] for row in comparison.rows if row["precision"])
    words = (settings["task"], settings["preset"], " and ".join(precisions), f"batch {settings['global_batch_size']:,}")
    figure = comparison_figure(comparison, ", ".join(words), _caption(document, comparison))
    if figure is not None:
        write_png(figure, out)


def _caption(document: Mapping[str, Any], comparison: "TrainingComparison") -> str:
    """Return the lines below the chart: the machine, shared cores, and communication."""
    from analysis.metrics.comparison.trainings import row_names

    shares = [
        f"{name}: communication takes {100 * row['communication_share']:.1f} % of a profiled step, "
        f"{100 * row['communication_exposed_share']:.1f} % exposed"
        for name, row in zip(row_names(comparison.rows), comparison.rows, strict=True)
        if row["communication_share"] is not None
    ][:_MOST_SHARES]
    about = [document["device_name"] or "", *document["notes"][:1]]
    return "\n".join(filter(None, ["; ".join(filter(None, about)), "; ".join(shares)]))


def _result(out: Path, document: Mapping[str, Any], comparison: "TrainingComparison") -> Result:
    from analysis.metrics.comparison.trainings import row_names
    from analysis.render.comparison_tables import comparison_notes, comparison_table
    from analysis.render.tables import Facts

    named = list(zip(row_names(comparison.rows), comparison.rows, strict=True))
    facts = [("note", remark) for remark in document["notes"]]
    facts += [
        ("caution", f"{name}: {found['message']}; {found['remedy']}")
        for name, row in named
        for found in row["cautions"]
    ]  # fmt: skip
    profiled = any(row["all_reduce_share"] is not None for row in comparison.rows)
    facts += [("more", f"bertbench analyze {out / 'profile'}")] * profiled
    files = ["comparison.json", "comparison.csv", *(["comparison.png"] if comparison.curves else [])]
    refused = [(name, str(row["reason"])) for name, row in named if row["status"] == "refused"]
    others = [(name, row) for name, row in named if row["status"] != "refused"]
    problems = [said for name, row in others if (said := _problem(name, row, row in comparison.failed))]
    return Result(
        document=dict(document),
        blocks=[comparison_table(comparison), *comparison_notes(comparison), *([Facts(facts)] if facts else [])],
        written=[out / name for name in files],
        problems=[*problems, *([f"refused: {by_reason(refused)}"] if refused else [])],
        code=3 if comparison.failed or any(row["profile_problem"] for row in comparison.rows) else 0,
    )


def by_reason(pairs: Sequence[tuple[str, str]]) -> str:
    """Return names with their reasons in one line, those of the same reason together; "" for none."""
    names: dict[str, list[str]] = {}
    for name, reason in pairs:
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(same)}: {reason}" for reason, same in names.items())


def _problem(name: str, row: Mapping[str, Any], failed: bool) -> str:
    if failed:
        return f"{name} {row['status']}: {row['reason']}" + (f"\n  log: {row['log']}" if row["log"] else "")
    return f"{name} has no profile: {row['profile_problem']}" if row["profile_problem"] else ""
