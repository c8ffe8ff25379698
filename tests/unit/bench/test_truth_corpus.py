"""The truth corpus: its files, its answers and the score of answers to them."""

import itertools
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import ROOT
from support.commands import document, text
from support.commands import result as command
from support.corpus_answers import answers
from support.refusals import refused

from bench.truth import corpus as made
from bench.truth.recordings import ALL_REDUCE, COPY, Trace, deep_queue, one_gpu, ranks
from common.errors import InputError, StorageError, UsageError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("truth") / "corpus"
    made.write_corpus(folder, 3)
    return folder


def facts(corpus: Path) -> dict[str, float]:
    return {fact["id"]: fact["value"] for fact in json.loads((corpus / "manifest.json").read_text())["facts"]}


def scored(corpus: Path, path: Path, given: Any) -> Any:
    path.write_text(json.dumps({"tool": "a tool", "answers": given}))
    return document("truth-corpus", corpus, "--score", path)


def covered(spans: list[tuple[int, int]], unit: int) -> set[int]:
    """Numbers of the units of time that spans cover, one by one."""
    return {now for start, end in spans for now in range(start // unit, end // unit)}


def by_brute_force(trace: Trace) -> dict[str, float]:
    """What a trace comes to, unit of time by unit of time."""
    unit = trace.unit
    window = covered([(trace.steps[0][0], trace.steps[-1][1])], unit)
    kernels = [one for one in trace.work if one.name != COPY]
    compute = covered([(one.start, one.end) for one in kernels if one.name != ALL_REDUCE], unit)
    talk = covered([(one.start, one.end) for one in kernels if one.name == ALL_REDUCE], unit)
    copies = covered([(one.start, one.end) for one in trace.work if one.name == COPY], unit)
    work = compute | talk | copies
    return {
        "window_ms": len(window) * unit / 1e6,
        "compute_ms": len(compute & window) * unit / 1e6,
        "idle_ms": len(window - work) * unit / 1e6,
        "work_span_ms": (max(work) + 1 - min(work)) * unit / 1e6,
        "idle_in_work_span_ms": len(set(range(min(work), max(work))) - work) * unit / 1e6,
        "kernel_busy_ms": len((compute | talk) & window) * unit / 1e6,
        "communication_ms": len(talk) * unit / 1e6,
        "overlapped_ms": len(talk & compute) * unit / 1e6,
        "exposed_ms": len(talk - compute) * unit / 1e6,
        "copy_ms": len(copies) * unit / 1e6,
        "exposed_copy_ms": len(copies - compute - talk) * unit / 1e6,
    }


@pytest.mark.parametrize("seed", range(4))
def test_answers_by_construction_are_those_of_counting_every_unit_of_time(seed: int) -> None:
    for (trace,), said in (one_gpu(seed, unit=37, steps=4, stretches=15), deep_queue(seed)):
        counted = by_brute_force(trace)
        for quantity, value in {name: value for (name, of), value in said.items() if not of}.items():
            if quantity in counted:
                assert counted[quantity] == pytest.approx(value, rel=1e-9), quantity
    traces, said = ranks(seed)
    for trace in traces:
        counted = by_brute_force(trace)
        for quantity in ("compute_ms", "communication_ms", "overlapped_ms", "exposed_ms"):
            assert counted[quantity] == pytest.approx(said[quantity, f"rank {trace.rank}"], rel=1e-9), quantity


def test_the_cpu_launches_one_call_at_a_time_each_before_its_work_and_within_its_step() -> None:
    for (trace,), _ in (one_gpu(5), deep_queue(5)):
        calls = [one.call for one in trace.work]
        assert all(after - before >= trace.unit for before, after in itertools.pairwise(calls))
        assert all(one.call + trace.unit <= one.start for one in trace.work)
        steps = [max(number for number, step in enumerate(trace.steps) if step[0] <= call) for call in calls]
        assert all(trace.steps[step][1] >= call + trace.unit for step, call in zip(steps, calls, strict=True))
    (trace,), _ = one_gpu(5)
    assert all(any(begin <= one.call and one.end <= end for begin, end in trace.steps) for one in trace.work)


def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(corpus: Path, tmp_path: Path) -> None:
    made.write_corpus(tmp_path / "again", 3)
    made.write_corpus(tmp_path / "other", 4)
    files = sorted(path.relative_to(corpus) for path in corpus.rglob("*") if path.is_file())
    assert len(files) == 1 + sum(len(one["sha256"]) for one in json.loads((corpus / "manifest.json").read_text())[
        "recordings"].values())  # fmt: skip
    for path in files:
        data = (corpus / path).read_bytes()
        assert data == (tmp_path / "again" / path).read_bytes()
        assert data != (tmp_path / "other" / path).read_bytes()


def test_every_quantity_is_defined_and_every_definition_is_used(corpus: Path) -> None:
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert {fact["quantity"] for fact in manifest["facts"]} == set(manifest["quantities"])
    assert len(facts(corpus)) == len(manifest["facts"])
    for quantity in manifest["quantities"].values():
        assert set(quantity) == {"kind", "unit", "definition", "relative", "absolute"}


def test_the_reference_page_has_every_recording_and_definition() -> None:
    page = (ROOT / "docs" / "reference" / "truth-corpus.md").read_text(encoding="utf-8")
    for name in made.RECORDINGS:
        assert f"| `{name}` |" in page
    for name, quantity in made.QUANTITIES.items():
        assert f"| `{name}` | {quantity.kind} | {quantity.unit} | {quantity.definition} |" in page


def test_our_own_answers_are_right(corpus: Path, tmp_path: Path) -> None:
    """Of some recordings; make truth-test asks for all."""
    found = scored(corpus, tmp_path / "a.json", answers(corpus, document, ["kineto-clocks", "nsys-short"]))
    assert [fact for fact in found["facts"] if fact["verdict"] == "wrong"] == []
    assert found["total"]["right"] > 50


def test_a_score_says_what_is_right_wrong_and_unanswered(corpus: Path, tmp_path: Path) -> None:
    true = facts(corpus)
    window, steps, idle = "kineto:window_ms", "nsys:steps", "nsys:idle_ms"
    given = {window: true[window] * 1.0009, steps: true[steps] + 1, idle: true[idle] * 0.9, "ncu:counted_time_ms": None}
    found = scored(corpus, tmp_path / "a.json", given)
    rows = {fact["id"]: fact for fact in found["facts"]}
    assert [rows[name]["verdict"] for name in given] == ["right", "wrong", "wrong", "unanswered"]
    assert rows[steps]["error"] == 1
    assert rows[idle]["relative_error"] == pytest.approx(-0.1)
    assert found["total"] == {"facts": len(true), "right": 1, "wrong": 2, "unanswered": len(true) - 3}
    kinds = {kind.pop("kind"): kind for kind in found["kinds"]}
    assert kinds["window"]["right"] == kinds["window"]["wrong"] == kinds["utilization"]["wrong"] == 1
    assert sum(kind["facts"] for kind in kinds.values()) == len(true)
    shown = text(command("truth-corpus", corpus, "--score", tmp_path / "a.json").blocks)
    assert "a tool" in shown
    assert idle in shown
    assert window not in shown


def test_answers_that_cannot_be_scored_are_refused(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for given, code, fact in (
        ({"kineto:steps": "20"}, "answers-invalid", "kineto:steps"),
        ({"kineto:steps": True}, "answers-invalid", "kineto:steps"),
        ({"kineto:steps": 10**400}, "answers-invalid", "kineto:steps"),
        ({"kineto:leaps": 20}, "answers-invalid", "kineto:leaps"),
        ([20], "file-format", "answers"),
    ):
        with refused(code, path, fact, kind=InputError):  # type: ignore[arg-type]
            scored(corpus, path, given)
    path.write_text('{"answers": {"kineto:steps": NaN}}')
    with refused("file-damaged", path, kind=InputError):
        command("truth-corpus", corpus, "--score", path)
    path.write_text("{}")
    with refused("path-missing", tmp_path / "manifest.json", kind=InputError):
        command("truth-corpus", tmp_path, "--score", path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    with refused("record-foreign", tmp_path / "manifest.json", kind=InputError):
        command("truth-corpus", tmp_path, "--score", path)
    manifest = json.loads((corpus / "manifest.json").read_text())
    for place, name in (("quantities", "relative"), ("facts", "value")):
        other = json.loads(json.dumps(manifest))
        (other["facts"][0] if place == "facts" else other["quantities"]["idle_ms"])[name] = "many"
        (tmp_path / "manifest.json").write_text(json.dumps(other))
        with refused("record-foreign", tmp_path / "manifest.json", "many", kind=InputError):
            command("truth-corpus", tmp_path, "--score", path)
    with refused("option-value", -1, kind=UsageError):
        command("truth-corpus", tmp_path / "b", "--seed", "-1")
    with refused("option-conflict", "--seed 3", "--score", kind=UsageError):
        command("truth-corpus", tmp_path, "--score", path, "--seed", "3")


def test_names_with_wildcards_remove_nothing_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "RECORDINGS", {"ncu": made.RECORDINGS["ncu"]})
    other = tmp_path / ".other.12345678.tmp"
    other.mkdir()
    made.write_corpus(tmp_path / "*", 0)
    assert other.is_dir() and (tmp_path / "*" / "manifest.json").is_file()


def test_the_current_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused("folder-occupied", tmp_path, kind=StorageError):
        command("truth-corpus", ".")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_kept(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with refused("folder-occupied", tmp_path, kind=StorageError):
        command("truth-corpus", tmp_path)
    with refused("folder-occupied", tmp_path / "mine", kind=StorageError):
        command("truth-corpus", tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(kernels: object, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(made, "RECORDINGS", {name: made.RECORDINGS[name] for name in ("kineto-queue", "ncu")})
    monkeypatch.setitem(made.WRITERS, "ncu", full)
    with refused("disk-full", tmp_path / "corpus", kind=StorageError):
        made.write_corpus(tmp_path / "corpus", 0)
    assert list(tmp_path.iterdir()) == []

    def sqlite_full(trace: object, folder: Path) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setitem(made.WRITERS, "ncu", sqlite_full)
    with refused("disk-full", tmp_path / "corpus", kind=StorageError):
        made.write_corpus(tmp_path / "corpus", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_call_leaves_no_corpus_and_the_next_one_removes_its_left_overs(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    program = (
        "import os, signal, sys; from pathlib import Path; from bench.truth import corpus\n"
        "del corpus.RECORDINGS['kineto'], corpus.RECORDINGS['nsys'], corpus.RECORDINGS['nsys-short']\n"
        "corpus.WRITERS['ncu'] = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "corpus.write_corpus(Path(sys.argv[1]), 3)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not folder.exists()
    assert len(list(tmp_path.iterdir())) == 1
    made.write_corpus(folder, 3)
    assert list(tmp_path.iterdir()) == [folder]
    assert facts(folder) == facts(corpus)
