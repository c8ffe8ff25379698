"""`bertbench compare-heads gap`: train with each head and compare the results in a table and a chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bench.cli.compare_strategies import OUT_HELP, stopped, train_all
from bench.cli.options import Printed, check_task, parse_known, run_folder
from bench.cli.result import Result
from bench.cli.train import TrainingsCall, parse_trainings
from bench.machine.devices import Devices, find_devices
from bench.plan.training import TrainOptions
from bench.plan.variants import PlannedVariant, Values, check_comparable, grid, plan_variant
from bench.run.processes import StopRequest
from bert.tasks import check_task_options
from bert.tasks.gap.source import HEAD_NAMES
from common import locks
from common.errors import UsageError
from common.flags import choice_of, request_of
from common.registry import lookup

if TYPE_CHECKING:
    from analysis.metrics.comparison.trainings import HeadResult
    from analysis.render.tables import Block

TABLE_FILE, DOCUMENT_FILE, PICTURE_FILE = "heads.csv", "heads.json", "heads.png"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareHeadsOptions(Printed):
    """Train GAP with each head, one after another, with the same settings, seed and data. Then compare the validation
    loss and accuracy of each epoch, and the training time.

    It also takes the options of `bertbench train gap`, which apply to all heads.

    Examples:
        bertbench compare-heads gap --data runs/gap --epochs 3
        bertbench compare-heads gap --heads concat mul --preset base
    """

    task: tyro.conf.Positional[str]
    """Task to train: gap."""
    heads: Annotated[tuple[str, ...], tyro.conf.arg(metavar=choice_of(HEAD_NAMES) + " ...")] = HEAD_NAMES
    """Heads to compare."""
    out: Annotated[Path, tyro.conf.arg(help=OUT_HELP)] = Path("runs/heads")

    def __post_init__(self) -> None:
        """Refuse unknown heads."""
        for name in self.heads:
            lookup(dict.fromkeys(HEAD_NAMES), name, "head")
        if not self.heads or len(set(self.heads)) < len(self.heads):
            raise UsageError("option-value", f"--heads {' '.join(self.heads)}: give at least one head, each once")


OPTIONS = {"compare-heads gap": CompareHeadsOptions}


def run(call: TrainingsCall[CompareHeadsOptions]) -> Result:
    """Compare; return exit code 0 for a finished or stopped comparison, 3 if a training failed."""
    options, base = call.options, call.base
    with StopRequest() as stop:
        out = run_folder(options.out)
        stop.limit(base.max_seconds)
        devices = find_devices(base.device)
        planned = [_plan(out, base, values, devices) for values in grid({"head": options.heads})]
        check_comparable(planned, devices)
        with locks.locked(out, "another call", "wait for it, or choose another --out"):
            if not train_all(planned, devices, stop):
                return stopped(stop)
    from analysis.metrics.comparison.trainings import FINISHED, compare_heads

    samples = planned[0].plan.source.samples
    assert samples is not None, "planning refuses endless data"
    best_by, higher_is_better = _deciding(planned)
    results = compare_heads({item.name: item.run for item in planned}, samples, best_by, higher_is_better)
    with locks.locked(out, "another call", "wait for it, or choose another --out"):
        document = _document(options, planned, results)
        _write(out, document, results, _majority(planned))
    rows = [(result.head, result.training) for result in results if result.training["status"] != FINISHED]
    return Result(
        document=document,
        blocks=_blocks(document, results),
        written=[out / name for name in _files(results)],
        problems=[f"{head} {row['status']}: {row['reason']}\n  log: {row['log']}" for head, row in rows],
        code=3 if rows else 0,
    )


def read_words(words: list[str], program: str) -> TrainingsCall[CompareHeadsOptions]:
    """Parse the options of the comparison and of its trainings; the first word is gap."""
    check_task(words, program, ("gap",), "task with several heads")
    options, rest = parse_known(CompareHeadsOptions, words, program)
    if any(word.partition("=")[0] == "--head" for word in rest):
        raise UsageError(
            "option-not-applicable", "--head does not apply to a comparison: give --heads, such as --heads mul concat"
        )
    return TrainingsCall(options, parse_trainings("gap", rest))


def _plan(out: Path, base: TrainOptions, values: Values, devices: Devices) -> PlannedVariant:
    planned = plan_variant(base.having(values, out=out / str(values["head"])), values, devices)
    if not planned.plan.settings.eval_every or planned.plan.source.samples is None:
        raise UsageError(
            "data-missing",
            "compare-heads needs evaluations: give --data with features for training and validation, without "
            "--eval-every 0",
        )
    return planned


def _deciding(planned: Sequence[PlannedVariant]) -> tuple[str, bool]:
    """Return the score that selects the best checkpoint of all trainings, and whether higher is better."""
    from bert.tasks import make_task
    from bert.tasks.base import deciding

    settings = planned[0].plan.settings
    return deciding(make_task(settings.task, settings.task_options), settings.best_by)


def _majority(planned: Sequence[PlannedVariant]) -> float:
    import numpy as np

    from bert.data.loading.order import spread
    from bert.tasks.gap.source import evaluation_features

    settings = planned[0].plan.settings
    wanted = None if settings.eval_data is None else Path(settings.eval_data)
    labels = evaluation_features(Path(settings.data), wanted).rows.labels
    labels = labels[spread(len(labels), settings.eval_samples)]
    return float(np.bincount(labels).max() / len(labels))


def _document(
    options: CompareHeadsOptions, planned: Sequence[PlannedVariant], results: Sequence["HeadResult"]
) -> dict[str, Any]:
    from analysis.render.comparison_tables import head_summary

    first = planned[0]
    settings = first.plan.settings
    # Head and folder differ between the trainings.
    request = {name: value for name, value in first.plan.request.items() if name not in ("command", "out")}
    return {
        "task": "gap",
        "request": {**request_of(options), "training": {**request, "task_flags": _without_head(request["task_flags"])}},
        "settings": {
            **settings.to_json(),
            "task_options": _without_head(check_task_options(settings.task, settings.task_options)),
        },
        "device_name": first.device_name(),
        "samples_per_epoch": first.plan.source.samples,
        "majority_accuracy": _majority(planned),
        "best_by": _deciding(planned)[0],
        "heads": [head_summary(result) for result in results],
        "epochs": [dict(row) for result in results for row in result.evaluations],
    }


def _without_head(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "head"}


def _write(out: Path, document: Mapping[str, Any], results: Sequence["HeadResult"], majority: float) -> None:
    from analysis.render.figure import write_png
    from analysis.render.tables import write_csv
    from analysis.render.training_figures import column, lines_figure
    from records.files import write_record
    from records.schema import HEAD_COLUMNS

    write_record(out / DOCUMENT_FILE, dict(document))
    rows = [row for result in results for row in result.evaluations]
    write_csv(out / TABLE_FILE, rows, HEAD_COLUMNS, line_end="\n")
    evaluated = {result.head: result.evaluations for result in results if result.evaluations}
    if evaluated:
        losses = {head: (column(rows, "epoch"), column(rows, "log_loss")) for head, rows in evaluated.items()}
        accuracies = {head: (column(rows, "epoch"), 100 * column(rows, "accuracy")) for head, rows in evaluated.items()}
        panels = [
            ("epoch", "validation log loss (nats)", losses, None),
            ("epoch", "validation accuracy (%)", accuracies, ("most frequent answer", 100 * majority)),
        ]
        write_png(lines_figure("heads", "Comparison of heads", "", panels), out)


def _blocks(document: Mapping[str, Any], results: Sequence["HeadResult"]) -> list["Block"]:
    from analysis.render.comparison_tables import heads_blocks
    from analysis.render.tables import Facts

    machine = [Facts([("machine", document["device_name"])])] if document["device_name"] else []
    return [*heads_blocks(results, document["majority_accuracy"]), *machine]


def _files(results: Sequence["HeadResult"]) -> list[str]:
    return [TABLE_FILE, DOCUMENT_FILE, *([PICTURE_FILE] if any(result.evaluations for result in results) else [])]
