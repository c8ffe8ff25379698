"""`bertbench collect`: run directories of several nodes become one, and nothing is lost."""

import contextlib
import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.commands import document, result
from support.refusals import refused

import bench.cluster.collect
from bench.cluster.collect import collect
from common.errors import Code
from records.files import write_record
from records.run import RunDirectory
from records.schema import STEP_COLUMNS, TELEMETRY_COLUMNS
from records.trial import Trial

WORLD = Trial(world_size=2, micro_batch_size=4, start_iteration=0, stop_iteration=4, device="cpu")


def put_steps(path: Path, milliseconds: float, rows: int = 4) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, STEP_COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for step in range(rows):
            counts = {"samples": 4, "real_tokens": 400, "padded_tokens": 512, "model_flops": 1e9}
            writer.writerow({"step": step, "start_ns": step, "step_time_ms": milliseconds, **counts})


def put_node(
    folder: Path, rank: int, milliseconds: float, trial: Trial = WORLD, status: str = "ok", watts: float = 1.0
) -> Path:
    """What one node leaves of a trial: its rank's records, its sensors as number 0, and what it made of them."""
    run = RunDirectory(folder)
    directory = run.trial(trial.trial_id)
    write_record(directory.trial_json, trial.to_json())
    write_record(directory.env_json, {"hostname": folder.name})
    write_record(directory.rank_json(rank), {"peak_memory_bytes": 1000 + rank})
    write_record(
        directory.result_json, {"trial_id": trial.trial_id, "status": status, "reason": "", "node": folder.name}
    )
    put_steps(directory.steps_csv(rank), milliseconds)
    rows = f"{','.join(TELEMETRY_COLUMNS)}\n1,gpu0,power_watts,{watts}\n"
    directory.telemetry_csv(0).write_text(rows, encoding="utf-8")
    directory.log.write_text(f"log of {folder.name}\n", encoding="utf-8")
    write_record(run.sweep_json, {"request": {"node": folder.name}, "trials": [trial.trial_id], "earlier": []})
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def results(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def everything(out: Path) -> set[bytes]:
    return set(tree(out).values())


def test_trials_of_different_nodes_stand_side_by_side(tmp_path: Path) -> None:
    other = Trial(preset="tiny", micro_batch_size=4, start_iteration=0, stop_iteration=4)
    one = put_node(tmp_path / "a", 0, 10, Trial(micro_batch_size=4, start_iteration=0, stop_iteration=4))
    two = put_node(tmp_path / "b", 0, 10, other)
    told = collect([one, two], tmp_path / "out")
    assert (told.trials, told.contested, told.joined) == (2, [], [])
    assert {row["trial_id"] for row in results(tmp_path / "out")} == {
        path.path.name for path in RunDirectory(tmp_path / "out").trials()
    }
    sweep = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert len(sweep["trials"]) == 2
    assert (sweep["request"], sweep["earlier"]) == ({"node": "a"}, [{"node": "b"}])


def test_ranks_of_one_trial_join_and_its_result_is_that_of_all(tmp_path: Path) -> None:
    one, two = put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20, watts=2.0)
    told = collect([one, two], tmp_path / "out")
    (directory,) = RunDirectory(tmp_path / "out").trials()
    assert told.joined == [directory.path.name]
    assert directory.ranks() == [0, 1]
    (row,) = results(tmp_path / "out")
    assert float(row["step_time_ms"]) == 20
    assert float(row["samples_per_second"]) == 400
    assert {reading["node"]: reading["value"] for reading in directory.read_telemetry()} == {0: 1.0, 1: 2.0}
    assert not told.contested
    assert "nodes/b/trials/" + directory.path.name + "/log.txt" in told.apart
    lost = {
        name
        for folder in (one, two)
        for name, content in tree(folder).items()
        if content not in everything(tmp_path / "out")
    }
    assert lost == set()


def test_a_measured_trial_without_the_steps_of_a_rank_is_named_until_its_node_is_collected(tmp_path: Path) -> None:
    one, two = put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20, watts=2.0)
    (record,) = one.glob("trials/*/result.json")
    write_record(record, json.loads(record.read_text()) | {"steps_measured": 4})
    (text,) = collect([one], tmp_path / "out").incomplete
    assert text.endswith("ranks 1")
    assert result("collect", one, "--out", tmp_path / "out").code == 1
    assert collect([one, two], tmp_path / "out").incomplete == []


def test_a_trial_that_failed_on_one_node_failed(tmp_path: Path) -> None:
    one, two = put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20, status="crashed")
    collect([one, two], tmp_path / "out")
    (row,) = results(tmp_path / "out")
    assert (row["status"], row["samples_per_second"]) == ("crashed", "")


def test_files_of_other_names_are_copied_and_not_read_as_sensors(tmp_path: Path) -> None:
    one, two = put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20, watts=2.0)
    (path,) = two.glob("trials/*/telemetry-0.csv")
    for name in ("telemetry-abc.csv", "telemetry--1.csv", "telemetry-01.csv"):
        path.with_name(name).write_bytes(path.read_bytes())
    path.unlink()
    collect([one, two], tmp_path / "out")
    (directory,) = RunDirectory(tmp_path / "out").trials()
    assert (directory.path / "telemetry-abc.csv").is_file()
    assert {reading["node"]: reading["value"] for reading in directory.read_telemetry()} == {0: 1.0}


def test_collecting_again_changes_nothing(tmp_path: Path) -> None:
    folders = [put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20, watts=2.0)]
    folders.append(put_node(tmp_path / "c", 0, 30))
    first = collect(folders, tmp_path / "out")
    before = tree(tmp_path / "out")
    again = collect(list(reversed(folders)), tmp_path / "out")
    assert tree(tmp_path / "out") == before
    assert again.copied == 0
    assert again.contested == first.contested


def test_a_call_that_was_cut_short_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20, watts=2.0)]
    collect(folders, tmp_path / "whole")
    copies = 0

    def copy_some(source: Path, target: Path) -> None:
        nonlocal copies
        copies += 1
        if copies > stop_after:
            raise KeyboardInterrupt
        whole_copy(source, target)

    whole_copy = bench.cluster.collect._copy
    for stop_after in range(1, 20, 3):
        out, copies = tmp_path / f"cut-{stop_after}", 0
        monkeypatch.setattr(bench.cluster.collect, "_copy", copy_some)
        with contextlib.suppress(KeyboardInterrupt):
            collect(folders, out)
        monkeypatch.setattr(bench.cluster.collect, "_copy", whole_copy)
        collect(folders, out)
        assert tree(out) == tree(tmp_path / "whole")


def test_a_source_that_went_on_replaces_its_own_files(tmp_path: Path) -> None:
    one, two = put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20)
    collect([one], tmp_path / "out")
    collect([two], tmp_path / "out")
    put_steps(RunDirectory(two).trials()[0].steps_csv(1), 40)
    told = collect([two], tmp_path / "out")
    assert told.contested == []
    assert float(results(tmp_path / "out")[0]["step_time_ms"]) == 40


def test_a_trial_that_was_measured_twice_is_named_and_kept_apart(tmp_path: Path) -> None:
    one, two = put_node(tmp_path / "x" / "run", 0, 10), put_node(tmp_path / "y" / "run", 0, 20)
    out = tmp_path / "out"
    found = result("collect", one, two, "--out", out)
    assert found.code == 1 and f" of {two} " in found.problems[0]
    assert [float(row["step_time_ms"]) for row in RunDirectory(out).trials()[0].read_steps(0)] == [10] * 4
    (second,) = RunDirectory(out / "nodes" / "y-run").trials()
    assert [row["step_time_ms"] for row in second.read_steps(0)] == [20] * 4
    lost = {name for folder in (one, two) for name, content in tree(folder).items() if content not in everything(out)}
    assert lost == set()


def test_other_files_of_a_run_come_along(tmp_path: Path) -> None:
    one, two = put_node(tmp_path / "a", 0, 10), put_node(tmp_path / "b", 1, 20)
    (one / "checkpoints" / "step-1").mkdir(parents=True)
    (one / "checkpoints" / "step-1" / "model.safetensors").write_bytes(b"weights")
    (two / "curve.csv").write_text("step\n", encoding="utf-8")
    (one / "report").mkdir()
    (one / "report" / "report.html").write_text("old", encoding="utf-8")
    collect([one, two], tmp_path / "out")
    assert (tmp_path / "out" / "checkpoints" / "step-1" / "model.safetensors").read_bytes() == b"weights"
    assert (tmp_path / "out" / "curve.csv").exists()
    assert not (tmp_path / "out" / "report").exists()


def test_links_and_pipes_are_left_out_and_named(tmp_path: Path) -> None:
    one = put_node(tmp_path / "a", 0, 10)
    (one / "secret").symlink_to("/etc/passwd")
    (one / "folder").symlink_to("/etc")
    os.mkfifo(one / "pipe")
    told = collect([one], tmp_path / "out")
    assert len(told.left_out) == 3
    assert not any((tmp_path / "out" / name).exists() for name in ("secret", "folder", "pipe"))


def refusals(tmp_path: Path) -> list[tuple[list[str], Code, object]]:
    one = put_node(tmp_path / "a", 0, 10)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x", encoding="utf-8")
    collect([one], tmp_path / "collected")
    return [
        ([str(one)], "option-missing", "--out"),
        ([str(one), "--out", str(one / "inside")], "option-conflict", one / "inside"),
        ([str(one), "--out", str(tmp_path)], "option-conflict", one),
        ([str(tmp_path / "empty"), "--out", str(tmp_path / "o")], "run-incomplete", tmp_path / "empty"),
        ([str(tmp_path / "absent"), "--out", str(tmp_path / "o")], "path-missing", tmp_path / "absent"),
        ([str(one), "--out", str(tmp_path / "full")], "folder-occupied", tmp_path / "full"),
        ([str(tmp_path / "collected"), "--out", str(tmp_path / "o")], "run-mismatch", tmp_path / "collected"),
    ]


@pytest.mark.parametrize("number", range(7))
def test_what_cannot_be_collected_is_refused(tmp_path: Path, number: int) -> None:
    argv, code, fact = refusals(tmp_path)[number]
    with refused(code, fact):
        result("collect", *argv)


def damage(folder: Path) -> None:
    (directory,) = RunDirectory(folder).trials()
    for path in directory.path.glob("*.json"):
        path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize("damaged_first", [True, False])
def test_a_trial_that_cannot_be_read_never_wins_and_is_named_each_time(tmp_path: Path, damaged_first: bool) -> None:
    alone = Trial(micro_batch_size=4, start_iteration=0, stop_iteration=4, device="cpu")
    bad, good = put_node(tmp_path / "a", 0, 10, alone), put_node(tmp_path / "b", 0, 20, alone)
    damage(bad)
    out = tmp_path / "out"
    folders = [str(path) for path in ([bad, good] if damaged_first else [good, bad])]
    for _ in range(2):
        found = result("collect", *folders, "--out", out)
        assert found.code == 1
        said = "\n".join(found.problems)
        assert len(found.problems) == 1 and f"of {bad}: " in said
        assert len(results(out)) == 1 and RunDirectory(out).trials()[0].read_steps(0)[0]["step_time_ms"] == 20
    assert list((out / "nodes" / "a" / "trials").rglob("trial.json")), "what there is of it is kept"


@pytest.mark.parametrize("incomplete_first", [True, False])
@pytest.mark.parametrize("lines", [0, 1, 3])
def test_a_trial_with_fewer_steps_than_were_measured_never_wins(
    tmp_path: Path, lines: int, incomplete_first: bool
) -> None:
    alone = Trial(micro_batch_size=4, start_iteration=0, stop_iteration=4, device="cpu")
    bad, good = put_node(tmp_path / "a", 0, 10, alone), put_node(tmp_path / "b", 0, 20, alone)
    for folder in (bad, good):
        (directory,) = RunDirectory(folder).trials()
        write_record(directory.result_json, {"trial_id": alone.trial_id, "status": "ok", "steps_measured": 4})
    (path,) = bad.glob("trials/*/steps-0.csv")
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]), encoding="utf-8")
    out = tmp_path / "out"
    found = result("collect", *([bad, good] if incomplete_first else [good, bad]), "--out", out)
    assert found.code == 1 and len(found.problems) == 1 and f"of {bad}: " in found.problems[0]
    assert len(results(out)) == 1 and RunDirectory(out).trials()[0].read_steps(0)[0]["step_time_ms"] == 20
    assert list((out / "nodes" / "a").rglob("steps-0.csv")), "what there is of it is kept"


def test_a_damaged_trial_alone_is_named_and_takes_its_place_once_it_is_whole(tmp_path: Path) -> None:
    alone = Trial(micro_batch_size=4, start_iteration=0, stop_iteration=4, device="cpu")
    one, out = put_node(tmp_path / "a", 0, 10, alone), tmp_path / "out"
    whole = tree(one)
    damage(one)
    found = result("collect", one, "--out", out)
    assert found.code == 1 and results(out) == [] and alone.trial_id in found.problems[0]
    for name, content in whole.items():
        (one / name).write_bytes(content)
    assert result("collect", one, "--out", out).code == 0
    assert len(results(out)) == 1 and RunDirectory(out).trials()[0].read_steps(0)[0]["step_time_ms"] == 10
    assert not (out / "nodes" / "a" / "trials" / alone.trial_id).exists()


def test_different_training_runs_are_refused_before_anything_is_copied_and_parts_of_one_are_not(tmp_path: Path) -> None:
    def trained(folder: Path, rank: int, rate: float) -> Path:
        trial = Trial(kind="train", world_size=2, device="cpu", training=(("learning_rate", rate),))
        (folder / "checkpoints" / "step-1").mkdir(parents=True)
        (folder / "checkpoints" / "step-1" / "state.json").write_text(str(rate), encoding="utf-8")
        return put_node(folder, rank, 10, trial)

    one, part, other = (
        trained(tmp_path / "a", 0, 1e-4),
        trained(tmp_path / "b", 1, 1e-4),
        trained(tmp_path / "c", 0, 2e-4),
    )
    out = tmp_path / "out"
    with refused("run-mismatch", other):
        collect([one, other], out)
    assert not (out / "checkpoints").exists()
    assert collect([one, part], out).trials == 1
    with refused("run-mismatch", other):
        collect([other], out)


def test_the_summary_as_json(tmp_path: Path) -> None:
    one = put_node(tmp_path / "a", 0, 10)
    found: dict[str, Any] = document("collect", one, "--out", tmp_path / "out")
    assert found["trials"] == 1
    assert found["sources"] == {"a": str(one)}
