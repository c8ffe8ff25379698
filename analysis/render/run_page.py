"""The HTML page of a run: one file that opens anywhere, without network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.diagnose import run as doubts
from analysis.diagnose.answer import Answer, nothing_measured, points, profile_answer
from analysis.diagnose.finding import Finding
from analysis.diagnose.profiles import (
    OpenedProfile,
    open_profile,
    summary_rows,
    utilization_by_batch,
)
from analysis.diagnose.run_answer import complete_answers
from analysis.load import TAKEN_APART, LoadedRun, LoadedTrial, load_run
from analysis.metrics.comparison.within_run import input_ratios, ratios_of, synthetic_gaps
from analysis.metrics.pretraining_cost import pretraining_costs
from analysis.metrics.scaling import measured_efficiency
from analysis.render import sections, tables
from analysis.render.light_tables import ceilings_text, components_table, waterfall_table
from analysis.render.links import link_part
from analysis.render.page import (
    Article,
    Badge,
    Block,
    Cards,
    Caution,
    Details,
    Gallery,
    Heading,
    Page,
    Prose,
    Section,
    report_folder,
    write_page,
)
from analysis.render.result_tables import (
    input_tables,
    pretraining_table,
    rank_tables,
    results_table,
    scaling_tables,
)
from analysis.render.run_figures import run_figures, taken_apart, utilization_figure, waterfall_figure
from analysis.render.source_page import advice_blocks, source_panels
from analysis.render.tables import Facts
from analysis.render.training import training_part
from records.run import RunDirectory
from records.schema import RESULT_COLUMNS
from records.training import TrainRun

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("step", "One optimizer step: grad_accum_steps micro-steps of micro_batch_size sequences on every device."),
    (
        "step time (ms)",
        "Median time of one step over the window, of the slowest rank in each step. It includes waiting for data. It "
        "is measured with CUDA events on a GPU and with a monotonic clock elsewhere.",
    ),
    (
        "window",
        "The measured steps: [start, stop) as given, or all steps after the detected end of warm-up (MSER, White "
        "1997, made robust against outliers). No number includes warm-up.",
    ),
    (
        "95 % interval",
        "Moving-block bootstrap interval of the median step time (Künsch 1989). With several rounds processes are "
        "resampled first, then blocks of steps. With one round it covers only the noise within that process.",
    ),
    ("samples/s", "Sequences per second over all devices: those of all measured steps / the time of these steps."),
    ("tokens/s", "Real tokens per second (attention mask 1), over all devices. Padding is not counted."),
    ("padding efficiency", "Real tokens / all positions, padding included."),
    (
        "MFU",
        "Model FLOP/s / peak. Model FLOPs follow from the formula of the model (activation checkpointing adds none). "
        "The peak is the rate of the fastest GEMM measured on the same devices just before and after the trial, summed "
        "over the ranks; it is not a data-sheet value.",
    ),
    (
        "peak memory",
        "Peak of the rank that needs most: of the device allocator on a GPU, the resident set of the process on a CPU.",
    ),
    (
        "throughput ratio",
        "samples/s of an implementation / samples/s of the reference at the same configuration. 2 means twice as fast.",
    ),
    (
        "time saved",
        "1 - new time / old time, per sample. A throughput ratio of 2 saves 50 % of the time.",
    ),
    (
        "conclusive",
        "A comparison is conclusive when at least three interleaved processes per side give a 95 % interval of the "
        "ratio that excludes 1 or lies within 5 % of it, or when it exceeds the known run-to-run spread of the "
        "machine.",
    ),
    (
        "scaling efficiency",
        "Throughput on n devices / (throughput on the fewest devices x the increase in devices). Weak keeps the batch "
        "of a device, strong keeps the global batch. Ranks on a CPU share the same cores, so there it is the ratio of "
        "the two throughputs on the same total cores.",
    ),
    (
        "exposed communication",
        "Time from the last gradient being ready to the end of the backward pass: all-reduce, and waiting for slower "
        "ranks, that does not overlap with computation.",
    ),
    ("own work", "Step time minus exposed communication and data wait. The rank with the most is the straggler."),
    ("skew", "Own work of a rank / own work of the fastest rank - 1."),
    ("data wait", "Time from the start of a step until its batch is available."),
    (
        "input / training",
        "samples/s of the input pipeline alone (batches drawn, adapted and pinned) / samples/s of training with the "
        "same data and configuration. Above 1 training does not wait.",
    ),
    (
        "shards read",
        "Samples per second that the slowest rank reads from compressed shards while it makes batches. This limits the "
        "input over an epoch, for all ranks together. Uncompressed shards are memory-mapped.",
    ),
    (
        "gap",
        "samples/s on real data / samples/s on synthetic batches with the same lengths - 1. Below 0 real data "
        "cost speed.",
    ),
    (
        "energy",
        "Energy counters or integrated power of the devices over the window, in joules, idle power included.",
    ),
    ("cost", "Price per hour / 3600 / samples/s x 1,000,000: the cost of a million samples at the measured rate."),
    ("status", "ok, oom (out of memory), crashed, timeout, interrupted, refused (cannot run here)."),
)

Row = Mapping[str, Any]

_MOST_ANSWERS = 3
_SORT = "Click a heading to sort. Hover over or focus a number or a dash for details."
_LARGEST = (
    "Micro batch per device, found by doubling and bisection, each size in its own process. Confirmed: it ran for more "
    "steps, and the next size ran out of memory or was beyond the limit of the search."
)
_INPUT = (
    "Batches drawn, adapted and pinned as in training, without training. Training does not wait for an input pipeline "
    "that is many times as fast."
)
_PRETRAINING = (
    "Days, and at --price-per-hour the cost, of pretraining as published (Devlin et al. 2019): 230.4 million sequences "
    "of 128 tokens (phase 1), then 25.6 million of 512 (phase 2), each at the fastest batch measured with that length. "
    "Real tokens are the share of all positions; fuller sequences may take longer. "
    "Evaluations, checkpoints and pauses are not included."
)
_GAP = (
    "The same trials on synthetic batches with the lengths of the real samples. The difference comes from the input "
    "pipeline and the content. Below 0, real data cost speed."
)
_RANKS = (
    "Medians per rank. Ranks wait for each other in the all-reduce, so own work, not step time, shows the late rank."
)
_RECORDED = (
    "Recording slows steps down, so read shares, not absolute times. On a CPU an operator's time is its self time, "
    "summed over threads; on a GPU it is the time of its kernels."
)


def write_report(
    run: RunDirectory,
    price_per_hour: float | None = None,
    out: Path | None = None,
    project_to: Sequence[int] = (),
) -> tuple[Path, list[Answer]]:
    """Write report.html, its figures and its CSV tables into the run's report folder; return the page and the answers
    about speed that it shows.

    Everything is computed afresh from the raw records. The page holds its figures, style and script.

    Args:
        run: the run directory.
        price_per_hour: price of the machine, for the cost columns.
        out: folder to write into instead.
        project_to: numbers of devices to project to.

    Raises:
        InputError: no run directory, or one without trials.
        SchemaError: the run was written by another version of bertbench.
        UsageError: price_per_hour is not above 0, or a projection is asked for that is none.
        StorageError: the report folder cannot be written.
    """
    folder = out or run.report
    everything = load_run(run, price_per_hour)
    with report_folder(folder, given=out is not None):
        return _write(run, everything, folder, price_per_hour, project_to)


def _write(
    run: RunDirectory,
    everything: LoadedRun,
    folder: Path,
    price_per_hour: float | None,
    project_to: Sequence[int],
) -> tuple[Path, list[Answer]]:
    # Collectives and broken-down steps are no trainings to compare; they have sections of their own.
    whole = tuple(trial for trial in everything if trial.trial.kind not in TAKEN_APART)
    trials = LoadedRun(whole, everything.problems)
    rows = sorted((trial.row for trial in trials), key=wording.order)
    ratios = ratios_of(trials, doubts.reference(trials))
    inputs, gaps = input_ratios(trials), synthetic_gaps(trials)
    scaling = measured_efficiency(trials)
    links = link_part(everything, project_to)
    found = points(trials)
    training = training_part(TrainRun(run.path), trials, folder)
    profiles = _profiles(trials)
    advised = {one.trial.trial.trial_id: one.opened.to_do(one.findings) for one in profiles if one.opened}
    complete = complete_answers(everything, found, ratios, str(run.path), advised)
    pretraining = pretraining_costs(
        [{**point.row, "samples_per_second": point.samples_per_second} for point in found], price_per_hour
    )
    utilization = utilization_by_batch(summary_rows(run)) if profiles and not found else {}
    said = [*([] if training is None else [training.answer]), *complete]
    if utilization and not said:
        said = [profile_answer(utilization)]
    extra = {"ratios": ratios, "scaling": scaling, "input": inputs, "real_against_synthetic": gaps, **links.rows}
    _write_csvs(folder, rows, extra, trials)
    figures = run_figures(trials, found, scaling)
    if utilization:
        figures = [utilization_figure(utilization), *figures]
    made = {table.name: table for table in input_tables(inputs, gaps)}
    page = Page(
        run.path.resolve().name,
        "bertbench report",
        [
            Section("", _answer_blocks(said or [nothing_measured(everything)]), "answer"),
            _what_ran(trials, everything, ratios),
            *([] if training is None else [training.section()]),
            *_waterfalls(everything, folder),
            Section("Cautions", _caution_blocks(trials, everything, ratios, scaling)),
            _results(rows, ratios, everything),
            Section("Pretraining", _explained(_PRETRAINING, pretraining_table(pretraining))),
            Section("Largest batch", _largest_blocks(run)),
            Section("Figures", [Gallery(figures)] if figures else []),
            Section("Input", _explained(_INPUT, [made["input"]] if "input" in made else [])),
            Section("Real compared with synthetic data", _explained(_GAP, [made["gap"]] if "gap" in made else [])),
            Section("Scaling", scaling_tables(scaling)),
            *links.sections,
            Section("Ranks", _explained(_RANKS, rank_tables(trials))),
            Section("Profile", _profile_blocks(profiles, folder)),
            Section("", _details(trials or everything)),
        ],
    )
    return write_page(page, folder)[0], complete


def _explained(text: str, blocks: Sequence[Block]) -> list[Block]:
    """Blocks with what they are before them; none where there are none."""
    return [Prose(text, "faint"), *blocks] if blocks else []


def _answer_blocks(said: Sequence[Answer]) -> list[Block]:
    shown: list[Block] = []
    for number, answer in enumerate(said):
        blocks: list[Block] = [Heading(answer.headline, "headline")]
        if answer.badge:
            blocks.append(Badge(f"Machine disturbed: {answer.badge}"))
        if answer.cards:
            blocks.append(Cards([(card.label, card.value, card.note) for card in answer.cards]))
        blocks += [*answer.good, *advice_blocks(answer.advice), *answer.sentences]
        shown.append(Article("", blocks, style="further" if number else ""))
    if len(shown) <= _MOST_ANSWERS:
        return shown
    return [*shown[:_MOST_ANSWERS], Details(f"{len(shown) - _MOST_ANSWERS} more models", shown[_MOST_ANSWERS:])]


def _what_ran(trials: LoadedRun, everything: LoadedRun, ratios: Sequence[Row]) -> Section:
    decides = doubts.what_it_decides(trials, ratios)
    blocks: list[Block] = [Facts(sections.facts(trials or everything))]
    if decides:
        blocks.append(Prose(decides, "decides"))
    return Section("What ran", blocks)


def _waterfalls(everything: LoadedRun, folder: Path) -> list[Section]:
    """One section for every broken-down step; both tables of each are written as CSV files too."""
    found = []
    apart = taken_apart(everything)
    names = [f"{wording.implementation(one.row)} {wording.model(one.row)} {wording.place(one.row)}" for one in apart]
    for number, (trial, name) in enumerate(zip(apart, names, strict=True)):
        row = trial.row
        which = name if names.count(name) == 1 else f"{name}, {trial.trial.trial_id}"
        tables.write_csv(folder / f"waterfall-{number}.csv", row["waterfall"])
        tables.write_csv(folder / f"components-{number}.csv", row["components"])
        components = components_table(row["components"])
        blocks: list[Block] = [
            wording.floor_sentence(row),
            Prose(ceilings_text(row), "faint"),
            Gallery([waterfall_figure(row, f"waterfall-{number}")]),
            waterfall_table(row["waterfall"]),
            Details(f"{len(components.rows)} parts, each timed alone", [components]),
        ]
        found.append(Section(f"Speed of light: {which}" if len(apart) > 1 else "Speed of light", blocks))
    return found


def _caution_blocks(
    trials: LoadedRun, everything: LoadedRun, ratios: Sequence[Row], scaling: Sequence[Row]
) -> list[Block]:
    groups = doubts.grouped_cautions(everything, doubts.cautions_of_run(trials, ratios, scaling))
    return [Caution(group.messages, group.where, group.remedy) for group in groups]


def _results(rows: Sequence[Row], ratios: Sequence[Row], everything: LoadedRun) -> Section:
    blocks: list[Block] = [Prose(_SORT, "faint"), results_table(sections.shown_rows(rows), ratios)]
    failures = doubts.failures(everything)
    if failures:
        blocks += [Facts(failures, "Trials without a result")]
    return Section("Results", blocks)


def _largest_blocks(run: RunDirectory) -> list[Block]:
    largest, errors = run.read_max_batches()
    problems = [Prose(error, "decides") for error in errors]
    return _explained(_LARGEST, [*problems, *sections.largest_tables(largest)])


@dataclass(frozen=True, slots=True)
class _Profile:
    """What the profiler left of one trial."""

    trial: LoadedTrial
    name: str
    opened: OpenedProfile | None
    """None where nothing was written."""
    findings: Sequence[Finding]


def _profiles(trials: Sequence[LoadedTrial]) -> list[_Profile]:
    found = []
    for trial in trials:
        if trial.trial.kind == "profile":
            name = f"{trial.row['implementation']}, {wording.place(trial.row)}, {trial.trial.profiler}"
            opened = open_profile(trial.directory) if trial.directory.profile.is_dir() else None
            found.append(_Profile(trial, name, opened, opened.explained() if opened else []))
    return found


def _profile_blocks(profiles: Sequence[_Profile], folder: Path) -> list[Block]:
    """What profilers left, with its figures and tables; a damaged profile is named, and the rest is still shown."""
    found: list[Block] = []
    errors: list[Block] = []
    shown = 0
    for profile in profiles:
        row, opened = profile.trial.row, profile.opened
        if opened is None:
            why = f"{row['status']}: {row.get('reason') or 'nothing was written'}"
            errors.append(Prose(f"{profile.name}: no profile ({why})", "decides"))
            continue
        errors += [Prose(f"{profile.name}: {problem}", "decides") for problem in opened.source.problems]
        own = f"profiles/{profile.trial.trial.trial_id}"
        panels = source_panels(opened.source, profile.findings, f"profile-{shown}-", own, opened.measured)
        found += [Heading(profile.name, "profile"), *panels]
        shown += 1
        for finding in profile.findings:
            tables.write_frame(folder / own / f"{finding.name}.csv", finding.table)
    return [*errors, *found, Prose(_RECORDED, "faint")] if errors or found else []


def _details(trials: Sequence[LoadedTrial]) -> list[Block]:
    machine = Facts(sections.environment(trials))
    return [
        Details("Machine and software in detail", [machine], heading=True),
        Details("What the numbers mean", [Facts(GLOSSARY)], heading=True),
    ]


def _write_csvs(
    folder: Path, rows: Sequence[Row], extra: Mapping[str, Sequence[Row]], trials: Sequence[LoadedTrial]
) -> None:
    tables.write_csv(folder / "results.csv", rows, RESULT_COLUMNS)
    ranks = [
        {"trial_id": trial.trial.trial_id, **rank} for trial in trials if trial.ok for rank in trial.row["per_rank"]
    ]
    for name, content in {**extra, "ranks": ranks}.items():
        if content:
            tables.write_csv(folder / f"{name}.csv", content)
