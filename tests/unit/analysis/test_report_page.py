import csv
import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.charts import report_page
from support.commands import document, result
from support.fake_run import ENVIRONMENT, step_rows, write_sweep, write_trial
from support.timelines import event, write

from analysis.diagnose.answer import points
from analysis.diagnose.run import cautions_of_run
from analysis.load import load_run
from common.errors import UsageError
from records.files import write_record
from records.run import RunDirectory
from records.schema import RESULT_COLUMNS
from records.trial import Trial

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("pictures_of_one_pixel")]

HOSTILE = "<script>alert(1)<b> & \"quoted' $x^2$ {{ 7 * 7 }}"
SMALL = {"batches": (8, 16), "worlds": (1,), "count": 15}


def text_of(run: RunDirectory, **options: Any) -> str:
    """The page of a run."""
    return report_page(run, **options).read_text(encoding="utf-8")


def attributes(page: str, name: str) -> list[str]:
    """The values of an attribute of HTML, in order."""
    return re.findall(rf'\s{name}="([^"]*)"', page)


def test_the_page_holds_everything_it_needs_and_its_files_lie_beside_it(tmp_path: Path) -> None:
    path = report_page(write_sweep(tmp_path, batches=(8, 16), worlds=(1, 2), count=15))
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report" / "report.html"
    assert page.count('<div class="chart"') == 3 and not re.search(r'\s(src|srcset|data|action)="', page)
    assert (path.parent / "throughput.png").is_file() and path.stat().st_size < 500_000
    links, ids = attributes(page, "href"), attributes(page, "id")
    inside = [link[1:] for link in links if link.startswith("#")]
    files = [link for link in links if not link.startswith("#")]
    assert len(inside) >= 6 and set(inside) <= set(ids) and len(ids) == len(set(ids))
    assert len(files) == page.count("<table") >= 2 and len(files) == len(set(files))
    assert all((path.parent / file).is_file() and file.endswith(".csv") for file in files)
    assert page.count("<script") == 1 and "<link" not in page
    names = {item.name for item in path.parent.iterdir()}
    assert {"throughput.png", "scaling.png", "phases.png"} <= names
    tables = {item.name for item in (path.parent / "tables").iterdir()}
    assert "results.csv" in names and tables >= {"ratios.csv", "scaling.csv", "ranks.csv"}
    with (path.parent / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and list(rows[0]) == list(RESULT_COLUMNS)
    assert float(rows[0]["samples_per_second"]) > 0


def write_named(run: RunDirectory, folder: str, trial: Trial, environment: dict[str, Any]) -> None:
    """Write a trial whose names no folder could have, into a folder of its own."""
    other = RunDirectory(run.path / f"other-{folder}")
    plain = dataclasses.replace(trial, implementation="x")
    written = write_trial(other, plain, {0: step_rows([50.0] * 12, 8)}, environment=environment)
    directory = run.path / "trials" / folder
    directory.parent.mkdir(parents=True, exist_ok=True)
    other.trial(written.trial_id).path.rename(directory)
    write_record(directory / "trial.json", trial.to_json())


def test_names_from_outside_are_escaped_everywhere(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    base = Trial(preset="mini", precision="bf16", micro_batch_size=8)
    environment = {**ENVIRONMENT, "device_name": HOSTILE, "cpu": {"model": HOSTILE}, HOSTILE: HOSTILE}
    for number, name in enumerate(("hf", HOSTILE, "_hidden")):
        write_named(
            run, f"t{number}", dataclasses.replace(base, implementation=name, data="/data/" + HOSTILE), environment
        )
    failed = dataclasses.replace(base, micro_batch_size=64)
    write_trial(run, failed, status="crashed", reason=HOSTILE)
    text = text_of(run)
    assert text.count("<script") == 1 and "<b>" not in text
    assert "alert(1)&lt;b&gt;" in text and "{{ 7 * 7 }}" in text


def test_a_run_with_only_failures_says_so_first(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_trial(run, Trial(preset="mini"), status="oom", reason="rank 0: out of memory")
    write_trial(run, Trial(preset="mini", seed=2), status=None)
    text = text_of(run)
    assert "No trial succeeded. Of 2 trials: " in text and "rank 0: out of memory" in text
    assert "interrupted" in text and "<img" not in text


def test_a_profile_shows_its_operators_and_a_damaged_trace_is_named(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, **SMALL)
    trial = Trial(preset="mini", kind="profile", profiler="torch", start_iteration=3, stop_iteration=6)
    write_trial(run, trial, {0: step_rows([90.0] * 6, 8)})
    folder = run.trial(trial.trial_id).profile
    folder.mkdir()
    events = [event("ProfilerStep#3", 0, 1000, "user_annotation"), event("aten::my_operator", 0, 700)]
    write(folder / "trace-rank0.json.gz", events)
    (folder / "trace-rank1.json.gz").write_bytes(b"\x1f\x8bcut")
    text = text_of(run)
    assert "aten::my_operator" in text and "trace-rank1.json.gz" in text
    assert (run.report / "profiles" / trial.trial_id / "top_operators.csv").is_file()
    assert all(point.row["kind"] == "throughput" for point in points(load_run(run)))


def test_runs_on_one_page_share_no_rounds_and_no_files(tmp_path: Path) -> None:
    """Equal trials of two machines: each run compares its own, and one that is given twice counts once."""
    runs = [write_sweep(tmp_path / "old", **SMALL), write_sweep(tmp_path / "new", **SMALL, scale=0.5)]
    profiled = Trial(preset="mini", kind="profile", profiler="torch", start_iteration=3, stop_iteration=6)
    for run in runs:
        write_trial(run, profiled, {0: step_rows([90.0] * 6, 8)})
        run.trial(profiled.trial_id).profile.mkdir()
        events = [event("ProfilerStep#3", 0, 1000, "user_annotation"), event(f"aten::{run.path.name}", 0, 700)]
        write(run.trial(profiled.trial_id).profile / "trace-rank0.json.gz", events)
    both = document("report", runs[0].path, runs[1].path, tmp_path / "new" / ".." / "old")
    alone = [document("report", run.path, "--out", tmp_path / "alone") for run in runs]
    for run, part, one in zip(runs, both["runs"], alone, strict=True):
        assert part == {"run": str(run.path), **{name: one[name] for name in ("answers", "rows", "ratios")}}
    page = Path(both["report"])
    assert page == runs[0].report / "report.html"
    with (page.parent / "results.csv").open(newline="") as file:
        assert Counter(row["run"] for row in csv.DictReader(file)) == {str(run.path): 5 for run in runs}
    ids, links = (attributes(page.read_text(encoding="utf-8"), name) for name in ("id", "href"))
    assert len(ids) == len(set(ids))
    assert all((page.parent / link).is_file() for link in links if not link.startswith("#"))
    operators = [path.read_text() for path in page.parent.glob("profiles/*/top_operators.csv")]
    assert sorted("aten::old" in one for one in operators) == [False, True]
    assert len(list(page.parent.glob("throughput*.png"))) == 2
    with pytest.raises(UsageError):
        result("report", runs[0].path, tmp_path)


def test_a_run_of_several_versions_is_read_with_care(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, **SMALL)
    assert "mixed" not in [one.code for one in cautions_of_run(load_run(run), [], [])]
    other = {**ENVIRONMENT, "libraries": {"torch": "2.14.0"}}
    write_trial(run, Trial(preset="mini", micro_batch_size=4), {0: step_rows([9.0] * 20, 4)}, environment=other)
    assert "mixed" in [one.code for one in cautions_of_run(load_run(run), [], [])]


SEARCH = {"implementation": HOSTILE, "preset": "mini", "precision": "fp32", "seq_len": 32, "world_size": 2,
          "micro_batch_size": 48, "fails_at": 49, "failure": "oom: rank 1: out of memory", "proved": True,
          "tried": [[32, "ok"], [64, "oom"], [48, "ok"]]}  # fmt: skip


def test_the_largest_batch_has_its_section_and_its_probes_are_in_no_other(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_trial(run, Trial(kind="probe", preset="mini", micro_batch_size=64), status="oom", reason="no memory left")
    ended = {**SEARCH, "fails_at": None, "failure": "the limit of 4096 was reached", "micro_batch_size": 4096}
    write_record(run.path / "max_batch.json", {"found": [SEARCH, ended]})
    text = text_of(run)
    assert "Largest batch</h2>" in text and "<script>alert" not in text and "Trials without a result" not in text
    for cell in ("48", "49", "oom: rank 1: out of memory", "32 ok, 64 oom, 48 ok", "4,096"):
        assert f">{cell}<" in text
    assert "only probes" in text
    write_trial(run, Trial(preset="mini"), {0: step_rows([9.0] * 20, 8)})
    text = text_of(run)
    assert "1 ok, 1 round" in text and "no memory left" not in text


@pytest.mark.parametrize(("ours", "rivals"), [(100.0, ["bertbench"]), (133.0, [])], ids=["close", "apart"])
def test_what_is_too_close_to_call_is_named(tmp_path: Path, ours: float, rivals: list[str]) -> None:
    """hf 81.6 and bertbench 80 samples/s in one round each are within 5 %; at 60 they are not."""
    run = RunDirectory(tmp_path)
    for implementation, median in (("hf", 98.0), ("bertbench", ours)):
        trial = Trial(preset="mini", micro_batch_size=8, implementation=implementation)
        write_trial(run, trial, {0: step_rows([median] * 20, 8)})
    answer = document("report", tmp_path)["answers"][0]
    assert answer["too_close_to_call"] == rivals
