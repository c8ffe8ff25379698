"""The HTML page of a run: one file that opens anywhere, without network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.diagnose.answer import answers, nothing_measured, points
from analysis.diagnose.profiles import open_profile
from analysis.load import TAKEN_APART, LoadedRun, LoadedTrial, load_run
from analysis.metrics import cautions as cautions_of
from analysis.metrics.comparison.within_run import input_ratios, ratios_of, synthetic_gaps
from analysis.metrics.scaling import measured_efficiency
from analysis.render import figures, sections, tables
from analysis.render.drawing import Picture
from analysis.render.light_figures import draw_waterfalls, taken_apart
from analysis.render.light_tables import ceilings_text, components_table, waterfall_table
from analysis.render.link_sections import link_part
from analysis.render.page import render_page
from analysis.render.panels import Panel, panels
from analysis.render.report_folder import report_folder
from analysis.render.result_tables import input_tables, rank_tables, results_table, scaling_tables
from analysis.render.training import training_part
from common.atomic import write_text
from common.errors import SchemaError
from records.files import read_record
from records.run import RunDirectory
from records.schema import RESULT_COLUMNS
from records.training import TrainRun

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("step", "One optimizer step: grad_accum_steps micro-steps of micro_batch_size sequences on every device."),
    (
        "step time (ms)",
        "Median over the window of the time of one step, of the slowest rank in each step. Waiting for data is part of "
        "it. On a GPU it is measured with CUDA events, elsewhere with a monotonic clock.",
    ),
    (
        "window",
        "The steps that count: [start, stop) as given, or all steps after the detected end of warm-up (MSER, White "
        "1997, made robust against outliers). Warm-up is in no number.",
    ),
    (
        "95 % interval",
        "Moving-block bootstrap interval of the median step time (Künsch 1989). With several rounds processes are "
        "resampled first, then blocks of steps. Of one round it holds the noise within that process only.",
    ),
    (
        "samples/s",
        "Sequences per second over all devices: mean sequences of a step, divided by the median step time.",
    ),
    ("tokens/s", "Real tokens per second (attention mask 1), over all devices. Padding is not counted."),
    ("padding efficiency", "Real tokens / all positions, padding included."),
    (
        "MFU",
        "Model FLOP/s / peak. Model FLOPs are what the formula of the model needs (recomputation not counted); the "
        "peak is the fastest matrix product measured on the same devices just before and after, summed over the ranks. "
        "It is no data-sheet value.",
    ),
    (
        "peak memory",
        "Of the rank that needs most: the device allocator's peak on a GPU, the resident set of the process on a CPU.",
    ),
    (
        "throughput ratio",
        "samples/s of an implementation / samples/s of the reference at the same configuration. 2 means twice as fast.",
    ),
    (
        "time saved",
        "1 - new time / old time, per sample. A throughput ratio of 2 saves 50 % of the time: two different numbers.",
    ),
    (
        "decided",
        "A difference is decided when at least three interleaved processes per side give a 95 % interval of the ratio "
        "that excludes 1 or lies within 5 % of it, or when it exceeds the known run-to-run spread of the machine.",
    ),
    (
        "scaling efficiency",
        "Throughput on n devices / (throughput on the fewest devices x the increase in devices). Weak keeps the batch "
        "of a device, strong keeps the global batch. Ranks on a CPU share the same cores: there it is the ratio of the "
        "two throughputs, against the same total cores.",
    ),
    (
        "exposed communication",
        "From the last gradient being ready to the end of the backward pass: all-reduce (and waiting for slower ranks) "
        "that computation did not hide.",
    ),
    ("own work", "Step time less exposed communication and data wait: what a rank itself needs. Shows the straggler."),
    ("skew", "Own work of a rank / own work of the quickest rank - 1."),
    ("data wait", "Time at the start of a step until its batch is there."),
    (
        "input / training",
        "samples/s of the input alone (batches drawn, adapted and pinned, nothing done with them) / samples/s of "
        "training with the same data and configuration. Above 1 training need not wait.",
    ),
    (
        "shards read",
        "Samples of compressed shards that the slowest rank reads per second, beside making batches. Over an epoch the "
        "input sustains no more, for all ranks together. Shards stored plainly are mapped, not read.",
    ),
    (
        "gap",
        "samples/s on real data / samples/s on batches made up beforehand with the same lengths - 1. Below 0 real data "
        "cost speed.",
    ),
    (
        "energy",
        "Energy counters or integrated power of the devices over the window, in joules; idle power is part of it.",
    ),
    ("cost", "Price per hour / 3600 / samples/s x 1,000,000: the cost of a million samples at the measured rate."),
    ("status", "ok, oom (out of memory), crashed, timeout, interrupted, refused (cannot run here)."),
)


Row = Mapping[str, Any]

MAX_BATCH_FILE = "max_batch.json"
_NUMBERS = ("seq_len", "world_size", "micro_batch_size")


def read_largest(run: RunDirectory) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what the search found, and what is wrong with its file; both empty where no search was made."""
    path = run.path / MAX_BATCH_FILE
    if not path.exists():
        return [], []
    try:
        found = read_record(path).get("found")
    except SchemaError as error:
        return [], [str(error)]
    if not isinstance(found, list):
        return [], [f"{path} holds no list of what was found: search again, or remove it"]
    rows, notes = [], []
    for number, item in enumerate(found, start=1):
        if isinstance(item, dict) and _is_whole(item):
            rows.append(item)
        else:
            notes.append(f"{path}: entry {number} is damaged and left out: search again, or remove it")
    return rows, notes


def _is_whole(item: Row) -> bool:
    words = all(isinstance(item.get(name), str) for name in ("implementation", "preset", "precision"))
    return words and all(_is_count(item.get(name)) for name in _NUMBERS) and _is_count(item.get("fails_at", 0) or 0)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def largest_tables(found: list[dict[str, Any]]) -> list[tables.Table]:
    """Return the table of what fits and what fails, one line per search; none where nothing was searched."""
    if not found:
        return []
    columns = [
        tables.plain("implementation", "implementation"),
        tables.Column("model", wording.model, wording.model, False),
        tables.recorded("world_size"),
        tables.Column("largest batch that fits", lambda row: row["micro_batch_size"], _fits),
        tables.Column("fails at", lambda row: row.get("fails_at"), _fails_at),
        tables.Column("why the search ended", _why, _why, False),
        tables.Column("proved", _proved, _proved, False),
        tables.Column("sizes tried", _tried, _tried, False),
    ]
    return [tables.build("largest", columns, found)]


def _fits(row: Row) -> str:
    return wording.count(row["micro_batch_size"]) if row["micro_batch_size"] else "none"


def _fails_at(row: Row) -> str:
    return wording.count(row["fails_at"]) if row.get("fails_at") else "no size tried"


def _why(row: Row) -> str:
    return str(row.get("failure") or "not recorded").strip().rstrip(":")


def _proved(row: Row) -> str:
    proved = row.get("proved")
    return ("yes" if proved else "no") if isinstance(proved, bool) else "not recorded"


def _tried(row: Row) -> str:
    tried = row.get("tried")
    pairs = [item for item in tried if isinstance(item, list) and len(item) == 2] if isinstance(tried, list) else []
    return ", ".join(f"{size} {status}" for size, status in pairs) or "not recorded"


@dataclass(frozen=True, kw_only=True, slots=True)
class LightPart:
    """The section about one step."""

    sentence: str
    ceilings: str
    picture: Picture
    waterfall: tables.Table
    components: tables.Table


def light_parts(trials: Sequence[LoadedTrial], folder: Path) -> list[LightPart]:
    """Draw and tabulate every step of a run that was taken apart, and write both tables of each as CSV files.

    Args:
        trials: all of the run.
        folder: where the PNGs and CSVs go.

    Raises:
        StorageError: a picture or a table cannot be written.
    """
    found = []
    measured = taken_apart(trials)
    for number, (trial, picture) in enumerate(zip(measured, draw_waterfalls(folder, measured), strict=True)):
        row = trial.row
        tables.write_csv(folder / f"waterfall-{number}.csv", row["waterfall"])
        tables.write_csv(folder / f"components-{number}.csv", row["components"])
        found.append(
            LightPart(
                sentence=wording.floor_sentence(row),
                ceilings=ceilings_text(row),
                picture=picture,
                waterfall=waterfall_table(row["waterfall"]),
                components=components_table(row["components"]),
            )
        )
    return found


def write_report(
    run: RunDirectory,
    price_per_hour: float | None = None,
    out: Path | None = None,
    project_to: Sequence[int] = (),
    same_links: bool = False,
) -> Path:
    """Write report.html, its pictures and its CSV tables into the run's report folder; return the page.

    Everything is computed afresh from the raw records. The page holds its pictures, style and script.

    Args:
        run: the run directory.
        price_per_hour: price of the machine, for the cost columns.
        out: folder to write into instead.
        project_to: numbers of devices to project to, as metrics.projection does.
        same_links: as metrics.projection.project takes it.

    Raises:
        InputError: no run directory, or one without trials.
        SchemaError: the run was written by a newer bertbench.
        UsageError: price_per_hour is not above 0, or a projection is asked for that is none.
        StorageError: the report folder cannot be written.
    """
    folder = out or run.report
    everything = load_run(run, price_per_hour)
    with report_folder(folder):
        return _write(run, everything, folder, project_to, same_links)


def _write(run: RunDirectory, everything: LoadedRun, folder: Path, project_to: Sequence[int], same_links: bool) -> Path:
    # Collectives train nothing, and steps taken apart are compared with nothing: they have parts of their own.
    whole = tuple(trial for trial in everything if trial.trial.kind not in TAKEN_APART)
    trials = LoadedRun(whole, everything.problems)
    rows = sorted((trial.row for trial in trials), key=wording.order)
    shown = sections.shown_rows(rows)
    reference = _reference(trials)
    ratios = ratios_of(trials, reference)
    inputs, gaps = input_ratios(trials), synthetic_gaps(trials)
    scaling = measured_efficiency(trials)
    links = link_part(everything, scaling, folder, project_to, same_links)
    found = points(trials)
    profiles, profile_errors = _profiles(trials, folder)
    largest, largest_errors = read_largest(run)
    pictures = figures.draw_all(folder, trials, found, scaling)
    training = training_part(TrainRun(run.path), trials, folder)
    said = answers(found, ratios)
    said = said if training is None else [training.answer, *said]
    extra = {"ratios": ratios, "scaling": scaling, "input": inputs, "real_against_synthetic": gaps, **links.rows}
    _write_csvs(folder, rows, extra, trials)
    shown_tables = [
        results_table(shown, ratios),
        *largest_tables(largest),
        *rank_tables(trials),
        *scaling_tables(scaling),
        *input_tables(inputs, gaps),
    ]
    page = render_page(
        "page.html",
        {
            "title": run.path.resolve().name,
            "answers": said or [nothing_measured(everything)],
            "links": links,
            "taken_apart": light_parts(everything, folder),
            "training": training,
            "facts": sections.facts(trials or everything),
            "failures": sections.failures(everything),
            "decides": sections.what_it_decides(trials, ratios),
            "cautions": sections.grouped_cautions(everything, _run_cautions(trials, ratios, scaling)),
            "largest_errors": largest_errors,
            "tables": {table.name: table for table in shown_tables},
            "pictures": pictures,
            "profiles": profiles,
            "profile_errors": profile_errors,
            "environment": sections.environment(trials or everything),
            "glossary": GLOSSARY,
        },
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _reference(trials: Sequence[LoadedTrial]) -> str:
    """hf where it was measured, else another implementation that ours can be held against."""
    names = sorted({str(trial.row["implementation"]) for trial in trials if trial.trial.kind == "throughput"})
    others = [name for name in names if name != "bertbench"]
    return "hf" if "hf" in names or not others else others[0]


def _run_cautions(
    trials: LoadedRun, ratios: Sequence[Row], scaling: Sequence[Row]
) -> list[cautions_of.Caution]:  # fmt: skip
    found = [cautions_of.damaged(problem) for problem in trials.problems]
    found += cautions_of.of_run([trial.environment for trial in trials])
    found += cautions_of.of_scaling(scaling)
    rounds = [min(row["rounds"], row["reference_rounds"]) for row in ratios if row["throughput_ratio"] is not None]
    fewest = min(rounds, default=3)
    return [*found, cautions_of.one_round(fewest)] if fewest < 3 else found


def _profiles(trials: Sequence[LoadedTrial], folder: Path) -> tuple[list[tuple[str, list[Panel]]], list[str]]:
    """Read what profilers left, draw it, write its tables; a damaged profile is named, and the rest is still shown."""
    found: list[tuple[str, list[Panel]]] = []
    errors: list[str] = []
    for trial in trials:
        if trial.trial.kind != "profile":
            continue
        name = f"{trial.row['implementation']}, {wording.place(trial.row)}"
        name = f"{name}, {trial.trial.profiler}"
        if not trial.directory.profile.is_dir():
            why = f"{trial.row['status']}: {trial.row.get('reason') or 'nothing was written'}"
            errors.append(f"{name}: no profile ({why})")
            continue
        opened = open_profile(trial.directory)
        errors += [f"{name}: {problem}" for problem in opened.source.problems]
        findings = opened.explained()
        own = folder / "profiles" / trial.trial.trial_id
        found.append((name, panels(opened.source, findings, own, f"profile-{len(found)}-", opened.measured)))
        for finding in findings:
            tables.write_frame(own / f"{finding.name}.csv", finding.table)
    return found, errors


def _write_csvs(
    folder: Path,
    rows: Sequence[Row],
    extra: Mapping[str, Sequence[Row]],
    trials: Sequence[LoadedTrial],
) -> None:
    tables.write_csv(folder / "results.csv", rows, RESULT_COLUMNS)
    ranks = [
        {"trial_id": trial.trial.trial_id, **rank} for trial in trials if trial.ok for rank in trial.row["per_rank"]
    ]
    for name, content in {**extra, "ranks": ranks}.items():
        if content:
            tables.write_csv(folder / f"{name}.csv", content)
