"""The HTML page of a run: one file that opens anywhere, without network."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.diagnose import run as doubts
from analysis.diagnose.answer import Answer, complete_answers, nothing_measured, points, profile_answer
from analysis.diagnose.profiles import open_profile, summary_rows, utilization_by_batch
from analysis.load import TAKEN_APART, LoadedRun, LoadedTrial, load_run
from analysis.metrics.communication.links import fitted_links, link_rows, project
from analysis.metrics.comparison.runs import input_ratios, ratios_of, synthetic_gaps
from analysis.metrics.pretraining_cost import pretraining_costs
from analysis.metrics.scaling import measured_efficiency
from analysis.render.link_tables import collectives_table, links_figure, links_table, projection_blocks
from analysis.render.page import (
    Block,
    Cards,
    Figures,
    Page,
    Section,
    Text,
    advice_blocks,
    finding_files,
    finding_panel,
    listed,
    write_page,
)
from analysis.render.pages import source_figures
from analysis.render.result_tables import (
    NOT_MEASURED,
    caution_lines,
    input_tables,
    largest_tables,
    light_blocks,
    pretraining_table,
    rank_tables,
    results_blocks,
    scaling_tables,
)
from analysis.render.run_figures import run_figures, utilization_figure, waterfall_figure
from analysis.render.tables import Facts, write_csv
from analysis.render.training import training_part
from records.run import RunDirectory
from records.schema import RESULT_COLUMNS, RESULTS
from records.training import TrainRun

_MOST_ANSWERS = 3
_PRETRAINING = (
    "Days, and at --price-per-hour the cost, of pretraining as published (Devlin et al. 2019): 230.4 million sequences "
    "of 128 tokens, then 25.6 million of 512, at the fastest batch measured with that length, without evaluations, "
    "checkpoints and pauses."
)
_LARGEST = "Micro batch per device, found by doubling and bisection, each size in its own process."
_INPUT = "Batches drawn, adapted and pinned as in training, without training."
_GAP = "The same trials on synthetic batches with the lengths of the real samples. Below 0, real data cost speed."
_RANKS = "Medians per rank. Ranks wait for each other in the all-reduce: own work, not step time, shows the late rank."
_RECORDED = "Recording slows steps down, so read shares, not absolute times."
_MEANINGS = (
    *((column.label, column.says) for column in RESULTS if column.label),
    ("95 % interval", "Moving-block bootstrap of the median; over several rounds, of the processes first."),
    ("throughput ratio", "samples/s of an implementation / that of the reference at the same configuration."),
    ("conclusive", "Three interleaved rounds a side whose interval of the ratio excludes 1, or lies within 5 % of it."),
    ("scaling efficiency", "Throughput on n devices / (that on the fewest devices x the increase in devices)."),
    ("own work", "Step time without exposed communication and data wait."),
)

Part = tuple[list[Section], dict[str, Callable[[Path], None]]]
"""Sections, and files beside the page that belong to them."""


def write_report(
    run: RunDirectory, price_per_hour: float | None = None, out: Path | None = None, project_to: Sequence[int] = ()
) -> tuple[Path, list[Answer]]:
    """Write report.html, its figures and its CSV tables; return the page and the answers about speed that it shows.

    It goes into `out`, or into the run's report folder; `project_to` are numbers of devices.

    Raises:
        InputError: no run directory, or one without trials.
        SchemaError: the run was written by another version of bertbench.
        UsageError: price_per_hour is not above 0, or the run cannot be projected.
        StorageError: the report folder cannot be written.
    """
    everything = load_run(run, price_per_hour)
    # Collectives and broken-down steps are no trainings to compare; they have sections of their own.
    trials = LoadedRun(tuple(trial for trial in everything if trial.trial.kind not in TAKEN_APART), everything.problems)
    rows = sorted((trial.row for trial in trials), key=wording.order)
    ratios = ratios_of(trials, doubts.reference(trials))
    inputs, gaps, scaling, measured = (
        input_ratios(trials), synthetic_gaps(trials), measured_efficiency(trials), points(trials)
    )  # fmt: skip
    profiles, of_profiles, advised = _profiles(trials)
    complete = complete_answers(everything, measured, ratios, str(run.path), advised)
    utilization = utilization_by_batch(summary_rows(run)) if profiles and not measured else {}
    training, in_training, of_training = training_part(TrainRun(run.path), trials)
    answers = [*training, *complete] or ([profile_answer(utilization)] if utilization else [])
    figures = [utilization_figure(utilization)] if utilization else []
    figures += run_figures(trials, measured, scaling)
    cautions = caution_lines(everything, doubts.cautions_of_run(trials, ratios, scaling))
    failures = doubts.failures(everything)
    results: list[Block] = [*results_blocks(rows, ratios, page=True)] if rows else []
    results += [Facts(failures, "Trials without a result")] if failures else []
    waterfalls, of_waterfalls = _waterfalls(everything)
    links, of_links = _links(everything, project_to)
    rates = [{**point.row, "samples_per_second": point.samples_per_second} for point in measured]
    largest, errors = run.read_max_batches()
    damaged = [Text(error, "decides") for error in errors]
    made = {table.name: table for table in input_tables(inputs, gaps)}
    details = [Facts(environment(trials or everything))]
    sections = [
        Section("", _answers(answers or [nothing_measured(everything)]), "answer"),
        Section("What ran", [Facts(facts(trials or everything))]),
        *in_training,
        *waterfalls,
        Section("Cautions", listed([line.removeprefix("caution: ") for line in cautions])),
        Section("Results", results),
        Section("Figures", [Figures(figures)] if figures else []),
        _explained("Pretraining", _PRETRAINING, pretraining_table(pretraining_costs(rates, price_per_hour))),
        _explained("Largest batch", _LARGEST, [*damaged, *largest_tables(largest)]),
        _explained("Input", _INPUT, [made["input"]] if "input" in made else []),
        _explained("Real compared with synthetic data", _GAP, [made["gap"]] if "gap" in made else []),
        Section("Scaling", scaling_tables(scaling)),
        *links,
        _explained("Ranks", _RANKS, rank_tables(trials)),
        Section("Profile", profiles),
        Section("Machine and software in detail", details, folded=True),
        Section("What the numbers mean", [Facts(_MEANINGS)], folded=True),
    ]
    ranks = [{"trial_id": one.trial.trial_id, **rank} for one in trials if one.ok for rank in one.row["per_rank"]]
    extra = {"ratios": ratios, "scaling": scaling, "input": inputs, "real_against_synthetic": gaps, "ranks": ranks}
    files: dict[str, Callable[[Path], None]] = {
        "results.csv": partial(write_csv, rows=rows, columns=RESULT_COLUMNS),
        **{f"{name}.csv": partial(write_csv, rows=content) for name, content in extra.items() if content},
        **of_training, **of_waterfalls, **of_links, **of_profiles,
    }  # fmt: skip
    page = Page(run.path.resolve().name, "bertbench report", sections, files)
    return write_page(page, out or run.report)[0], complete


def _explained(title: str, text: str, blocks: Sequence[Block]) -> Section:
    """Return blocks below what they are; an empty section where there are none."""
    return Section(title, [Text(text, "faint"), *blocks] if blocks else [])


def _answers(answers: Sequence[Answer]) -> list[Block]:
    shown: list[Block] = []
    for answer in answers:
        blocks: list[Block] = [Text(answer.headline, "headline")]
        blocks += [Text(f"Machine disturbed: {answer.badge}", "badge caution")] if answer.badge else []
        blocks += [Cards(answer.cards)] if answer.cards else []
        shown.append(Section("", [*blocks, *answer.good, *advice_blocks(answer.advice), *answer.sentences]))
    more = shown[_MOST_ANSWERS:]
    return [*shown[:_MOST_ANSWERS], Section(wording.counted(len(more), "more model"), more, folded=True)]


def _waterfalls(everything: LoadedRun) -> Part:
    """Return one section for every broken-down step, and both tables of each as files."""
    sections: list[Section] = []
    files: dict[str, Callable[[Path], None]] = {}
    measured = [trial for trial in everything if trial.trial.kind == "components" and trial.row["status"] == "ok"]
    for number, trial in enumerate(measured):
        row = trial.row
        for name in ("waterfall", "components"):
            files[f"{name}-{number}.csv"] = partial(write_csv, rows=row[name])
        title = f"Speed of light: {wording.implementation_or_input(row)} {wording.model(row)} {wording.place(row)}"
        title += f", {trial.trial.trial_id}" if title in [one.title for one in sections] else ""
        floor, ceilings, *blocks = light_blocks(trial)
        figures = Figures([waterfall_figure(row, f"waterfall-{number}")])
        sections.append(Section(title, [floor, ceilings, figures, *blocks]))
    return sections, files


def _links(everything: LoadedRun, project_to: Sequence[int]) -> Part:
    """Return the sections about collectives and projections, and their rows as files."""
    measured = [trial for trial in everything if trial.trial.kind == "comm" and trial.row["status"] == "ok"]
    links = fitted_links(measured)
    by_size = [row for trial in measured for row in trial.row["by_size"]]
    projected = project(everything, project_to) if project_to else []
    blocks: list[Block] = [Figures([links_figure(links)]), links_table(links)] if links else []
    blocks += [collectives_table(by_size)] if by_size else []
    sections = [
        Section("Projection to more devices", projection_blocks(projected) if projected else []),
        Section("Collectives", blocks),
    ]
    contents = {"collectives": by_size, "links": link_rows(links), "projection": projected}
    return sections, {f"{name}.csv": partial(write_csv, rows=rows) for name, rows in contents.items() if rows}


def _profiles(
    trials: Sequence[LoadedTrial],
) -> tuple[list[Block], dict[str, Callable[[Path], None]], dict[str, Sequence[Any]]]:
    """Return what profilers left, its tables as files, and its advice by trial; a damaged profile is named."""
    errors: list[Block] = []
    sections: list[Block] = []
    files: dict[str, Callable[[Path], None]] = {}
    advised: dict[str, Sequence[Any]] = {}
    for trial in trials:
        if trial.trial.kind != "profile":
            continue
        name = f"{wording.implementation(trial.row)}, {wording.place(trial.row)}, {trial.trial.profiler}"
        if not trial.directory.profile.is_dir():
            why = f"{trial.row['status']}: {trial.row.get('reason') or 'nothing was written'}"
            errors.append(Text(f"{name}: no profile ({why})", "decides"))
            continue
        opened = open_profile(trial.directory)
        findings = opened.findings
        advised[trial.trial.trial_id] = opened.advice
        errors += [Text(f"{name}: {problem}", "decides") for problem in opened.source.problems]
        place, prefix = f"profiles/{trial.trial.trial_id}", f"profile-{len(sections)}-"
        figures = source_figures(opened.source, opened.measured)
        panels = [finding_panel(one, figures.get(one.name, ()), prefix, place) for one in findings]
        sections.append(Section(name, panels))
        files |= finding_files(findings, f"{place}/")
    shown = [*errors, *sections]
    return [*shown, Text(_RECORDED, "faint")] if shown else [], files, advised


def facts(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return what ran and on what, as (name, value)."""
    shown = [trial for trial in trials if trial.trial.kind not in NOT_MEASURED] or list(trials)
    rows = [dataclasses.asdict(trial.trial) for trial in shown]
    kinds = {row["kind"] for row in rows}

    def listed(text: str | Callable[[Mapping[str, Any]], str]) -> str:
        values = {row[text] if isinstance(text, str) else text(row) for row in rows}
        return ", ".join(map(str, sorted(values)))

    if kinds == {"comm"}:
        collectives = listed(lambda row: str(dict(row["collective"]).get("name")))
        ran = [("collectives", f"{collectives}, {listed('precision')}"), ("ranks", listed("world_size"))]
    elif kinds == {"measure"}:
        commands = dict.fromkeys(" ".join(row["command"]) for row in rows)
        ran = [*(("command", text) for text in commands), ("ranks", listed("world_size"))]
    else:
        lengths = listed(wording.lengths)
        ran = [
            ("model", f"BERT {listed('preset')}, sequences of {lengths}, {listed('precision')}"),
            ("task", f"{listed(wording.task)}, data: {listed(wording.data)}"),
            ("implementations", f"{listed('implementation')} (strategy {listed(wording.strategy)})"),
            ("swept", f"micro batch {listed('micro_batch_size')}; devices {listed('world_size')}"),
        ]
    recorded = next((trial.environment for trial in trials if trial.environment), {})
    libraries = recorded.get("libraries") or {}
    software = [f"{name} {libraries[name]}" for name in ("torch", "transformers") if libraries.get(name)]
    software += [f"Python {recorded['python']}"] if recorded.get("python") else []
    software += [str(recorded["system"])] if recorded.get("system") else []
    found = ", ".join(software) or "not recorded"
    return [("machine", _machine(recorded)), *ran, ("trials", _count(trials)), ("software", found)]


def _count(trials: Sequence[LoadedTrial]) -> str:
    others = doubts.without_probes(trials)
    tally = Counter(str(trial.row["status"]) for trial in others)
    ended = ", ".join(f"{count} {status}" for status, count in tally.items())
    rounds = len({trial.trial.round for trial in others if trial.trial.kind != "train"}) or 1
    words = [f"{len(others)} ({ended})", wording.counted(rounds, "round")] if others else ["only probes"]

    def measured(trial: LoadedTrial) -> tuple[object, ...]:
        return (trial.key(), trial.trial.start_iteration, trial.trial.stop_iteration)

    profiled = {measured(trial) for trial in trials if trial.trial.kind == "profile"}
    beside = Counter(measured(trial) in profiled for trial in trials if trial.trial.kind == "probe")
    for key, kind in ((False, "of the largest batch"), (True, "beside a profile")):
        words += [f"and {wording.counted(beside[key], 'probe')} {kind}"] if beside[key] else []
    return ", ".join(words)


def _machine(recorded: Mapping[str, Any]) -> str:
    cpu = recorded.get("cpu") or {}
    gpus = Counter(str(gpu.get("name")) for gpu in recorded.get("gpus") or [])
    parts = [f"{count} × {name}" for name, count in gpus.items()]  # noqa: RUF001
    parts.append(str(cpu.get("model") or recorded.get("device_name") or "not recorded"))
    parts += [f"{cpu['physical_cores']} cores"] if cpu.get("physical_cores") else []
    parts += [wording.size(recorded["memory_bytes"])] if recorded.get("memory_bytes") else []
    return ", ".join(parts)


def environment(trials: Sequence[LoadedTrial]) -> list[tuple[str, str]]:
    """Return the machine in detail, from the first trial that recorded it, as (name, value)."""
    first = next((trial.environment for trial in trials if trial.environment), {})
    rows = [(name.replace("_", " "), _flat(name, value)) for name, value in first.items()
            if name not in ("schema_version", "topology") and value not in (None, {}, [])]  # fmt: skip
    ranks = next((trial.ranks for trial in trials if trial.ok and trial.ranks), {})
    record = ranks[min(ranks)] if ranks else {}
    rows += [("parameters", wording.count(record["parameters"]))] if record.get("parameters") else []
    if record.get("seconds"):
        seconds = [f"{name.replace('_', ' ')} {wording.number(value)} s" for name, value in record["seconds"].items()]
        rows.append(("a trial's time (rank 0 of the first)", ", ".join(seconds)))
    optimizations = dict.fromkeys(str(trial.row["levers_on"]) for trial in trials if trial.row.get("levers_on"))
    return rows + [("optimizations", text) for text in optimizations]


def _flat(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key.replace('_', ' ')}: {_flat(key, one)}" for key, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return ", ".join(_flat("", one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return wording.size(value) if name == "memory_bytes" else f"{value:.3g}" if isinstance(value, float) else str(value)
