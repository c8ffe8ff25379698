"""gpu-acceptance on a machine without a GPU: what it says, what it keeps, how it ends."""

import ast
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.acceptance_script import ABOUT, SCRIPT, acceptance
from support.acceptance_steps import Step
from support.cli import ROOT


def python(name: str, code: str, limit: float = 30, *more: str) -> Step:
    return Step(name, [sys.executable, "-c", code, *more], limit, 0)


def ran(step: Step, folder: Path) -> dict[str, Any]:
    return dict(acceptance().run_step(step, step.limit, folder))


def record_in(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "acceptance.json").read_text()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "out")], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2 and "needs a CUDA device" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_python_without_torch_is_told_to_name_another(tmp_path: Path) -> None:
    bare = [sys.executable, "-I", "-S", str(SCRIPT), str(tmp_path / "out")]  # without site-packages
    done = subprocess.run(bare, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    needed = "torch, numpy, msgspec, psutil, pynvml, tyro, docstring_parser, typeguard, typing_extensions, which"
    assert f"has no {needed}" in done.stderr and "PYTHON=<python>" in done.stderr
    assert "nvtx (profile ncu, profile nsys, profile nvtx emit)" in done.stderr and "nvidia-ml-py" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["{out}"], ["--tests", "{out}"], ["--publish", "{out}"]])
def test_an_older_python_is_told_to_name_another_before_anything_it_lacks(words: list[str], tmp_path: Path) -> None:
    # As 3.10 is: no datetime.UTC; what it cannot parse would show in the grammar of 3.8.
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 8))
    code = (
        "import datetime, runpy, sys; sys.version_info = (3, 10, 4, 'final', 0); sys.version = '3.10.4 (main)'; "
        "del datetime.UTC; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    given = [word.format(out=tmp_path / "out") for word in words]
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT), *given], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "3.11" in done.stderr and "3.10.4" in done.stderr and "PYTHON=" in done.stderr


@pytest.mark.parametrize("words", [[""], [], ["--publish"], ["--publish", ""], ["-h"], ["a", "b"], ["--tests"]])
def test_without_a_folder_it_says_how_to_call_it(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2 and "OUT=<folder>" in done.stderr


def test_the_tests_of_commands_are_left_to_a_call_of_their_own(tmp_path: Path) -> None:
    module, out = acceptance(), tmp_path / "out"
    late = Step("tests", [sys.executable, "-c", "raise SystemExit(9)"], 240, 200, apart=True)
    assert module.run_all(out, [python("a", "pass"), late], ABOUT) == 0, "no failure: it has a call of its own"
    row = record_in(out)["steps"][1]
    assert row["outcome"] == "apart" and "make gpu-tests" in row["why"]
    for body, outcome, end in (("pass", "ok", 0), ("assert 0", "failed", 1)):
        assert module.add_tests(out, ABOUT, made_test(tmp_path, body)) == end
        steps_now = record_in(out)["steps"]
        assert [step["name"] for step in steps_now] == ["a", "tests"] and steps_now[1]["outcome"] == outcome
        assert "acceptance.json" in names_in(out)
    assert module.add_tests(tmp_path / "new", ABOUT, made_test(tmp_path, "pytest.skip('r')")) == 1, "no test has run"
    assert [step["name"] for step in record_in(tmp_path / "new")["steps"]] == ["tests"]
    (tmp_path / "new/acceptance.json").write_text("[]")
    assert module.add_tests(tmp_path / "new", ABOUT, made_test(tmp_path, "pass")) == 2


def made_test(folder: Path, body: str) -> Step:
    file = folder / "test_made.py"
    file.write_text(f"import pytest\n\n\ndef test_made():\n    {body}\n")
    alone = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    return Step("tests", [sys.executable, "-m", "pytest", "-vv", *alone, str(file)], 60, 0)


def names_in(out: Path) -> list[str]:
    with tarfile.open(out / "acceptance.tar.gz") as tar:
        return tar.getnames()


def test_real_tests_are_told_by_name_also_where_they_were_ended(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(
        "import pytest, time\n\n\n@pytest.mark.parametrize('v', ['a b', 2])\ndef test_good(v):\n    pass\n\n\n"
        "def test_bad():\n    assert 0\n\n\n@pytest.mark.skip(reason='r')\ndef test_left():\n    pass\n\n\n"
        "def test_slow():\n    time.sleep(60)\n"
    )
    pytest_of = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir"]
    found = ran(Step("correctness", [*pytest_of, str(tmp_path), str(file)], 12, 0), tmp_path / "logs")
    told = {"passed": ["test_good[a b]", "test_good[2]"], "skipped": ["test_left"], "failed": ["test_bad"]}
    assert found["figures"] == told and found["outcome"] == "timeout"
    found = ran(Step("correctness", [*pytest_of, str(tmp_path), str(file), "-k", "bad"], 30, 0), tmp_path / "logs")
    assert found["outcome"] == "failed" and "failed: test_bad" in found["why"]
    found = ran(Step("correctness", [*pytest_of, str(tmp_path), str(file), "-k", "left"], 30, 0), tmp_path / "logs")
    assert found["outcome"] == "failed" and found["why"] == "no test has run"


def begun(out: Path) -> "tuple[subprocess.Popen[bytes], int]":
    """Begin a run of three steps; return it and the process of the second, which waits, once that has begun."""
    program = f"""
import signal, sys
sys.path[:0] = [{str(ROOT / "tests/gpu")!r}]
import acceptance
from support.acceptance_steps import Step
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
plan = [Step(name, [sys.executable, "-c", code], 60, 0) for name, code in (
    ("a", "print(5)"), ("b", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"), ("c", "pass"))]
sys.exit(acceptance.run_all(acceptance.Path({str(out)!r}), plan, {ABOUT!r}))
"""
    child = subprocess.Popen([sys.executable, "-c", program], cwd=out.parent)
    log = out / "logs/b.out"
    for _ in range(300):
        if log.exists() and log.read_text().strip():
            break
        time.sleep(0.1)
    return child, int(log.read_text())


def test_a_run_that_is_killed_has_left_what_it_had_in_one_tar(tmp_path: Path) -> None:
    out = tmp_path / "out"
    child, waiting = begun(out)
    child.kill()
    child.wait(30)
    os.kill(waiting, signal.SIGKILL)
    with tarfile.open(out / "acceptance.tar.gz") as tar:
        member = tar.extractfile("acceptance.json")
        assert member is not None
        packed = json.load(member)
        assert {"acceptance.md", "logs/a.out"} <= set(tar.getnames())
    assert [(step["name"], step["outcome"]) for step in packed["steps"]] == [("a", "ok")]
    assert [step["outcome"] for step in record_in(out)["steps"]] == ["ok", "interrupted"]


def test_a_failing_step_is_a_row_and_a_missing_tool_is_no_failure(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('nsys is not on PATH: install it'); sys.exit(2)"
    assert ran(python("a", code), tmp_path)["outcome"] == "absent"
    assert ran(python("b", "raise SystemExit(3)"), tmp_path)["outcome"] == "failed"
    good = ran(python("c", "print('{\"x\": NaN}')", 30, "--json"), tmp_path)
    assert (good["outcome"], good["figures"]) == ("ok", {"x": None})
    late = ran(python("d", "import time; time.sleep(30)", 2), tmp_path)
    assert late["outcome"] == "timeout" and late["seconds"] < 15
    left = ran(Step("e", ["none"], 0.5, 0), tmp_path)
    assert left["outcome"] == "left out" and "0 s are left" in left["why"]
    left = dict(acceptance().run_step(Step("e", ["none"], 90, 40), 39.0, tmp_path))
    assert left["outcome"] == "left out" and "about 40 s, and 39 s are left" in left["why"]
    out = ran(Step("g", ["/no/such/command"], 5, 0, needs=("nvtx", "ncu"), lacks=("nvtx",)), tmp_path)
    assert (out["outcome"], out["why"]) == ("absent", "it needs nvtx")
    lost = ran(Step("f", ["/no/such/command"], 5, 0), tmp_path)
    assert lost["outcome"] == "failed" and "cannot be started" in lost["why"]


@pytest.mark.parametrize("printed", ["", "no JSON", '{"rows": ', "\\xff\\x00", "[" * 100_000])
def test_what_should_be_json_and_is_not_fails_the_step(tmp_path: Path, printed: str) -> None:
    code = f"import sys; sys.stdout.buffer.write({printed!r}.encode('latin-1'))"
    found = ran(python("throughput x", code, 30, "--json"), tmp_path)
    assert found["outcome"] == "failed" and "no JSON" in found["why"]
    json.dumps(found)


@pytest.mark.parametrize("name", ["throughput x", "max batch", "profile ncu", "profile torch", "speed-of-light"])
def test_json_of_another_form_fails_the_step(tmp_path: Path, name: str) -> None:
    for number, printed in enumerate(("{}", "[1]", "null", '{"rows": [1], "max_batch": [3], "profiles": [null]}')):
        found = ran(python(name, f"print({printed!r})", 30, "--json"), tmp_path / str(number))
        assert found["outcome"] == "failed" and found["why"]
    plan = [python(name, 'print(\'{"profiles": [7], "max_batch": [3]}\')', 30, "--json"), python("a", "pass")]
    assert acceptance().run_all(tmp_path / "out", plan, ABOUT) == 1
    assert [step["outcome"] for step in record_in(tmp_path / "out")["steps"]] == ["failed", "ok"]


def test_what_a_step_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])"
        "; print(child.pid, flush=True); time.sleep({})"
    )
    for number, (seconds, outcome) in enumerate(((0, "ok"), (300, "timeout"))):
        found = ran(python("a", code.format(seconds), 3), tmp_path / str(number))
        assert found["outcome"] == outcome and found["seconds"] < 15
        pid = int(found["figures"][0])
        for _ in range(50):
            if gone(pid):
                break
            time.sleep(0.1)
        assert gone(pid)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_step_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    module = acceptance()
    module.GRACE_SECONDS = 0.5
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    found = module.run_step(python("a", code), 3, tmp_path)
    assert found["outcome"] == "timeout" and found["seconds"] < 10 and found["figures"] == ["on"]


def test_the_record_is_true_after_every_step_and_the_exit_code_says_whether_all_is_well(tmp_path: Path) -> None:
    module = acceptance()
    look = f"import json; print(len(json.load(open({str(tmp_path / 'out/acceptance.json')!r}))['steps']))"
    plan = [python("a", "pass"), python("b", look), python("c", look)]
    assert module.run_all(tmp_path / "out", plan, ABOUT) == 0
    record = record_in(tmp_path / "out")
    assert [step["outcome"] for step in record["steps"]] == ["ok"] * 3
    assert [step["figures"] for step in record["steps"]][1:] == [["2"], ["3"]], "the one that has begun included"
    assert "3 parts are ok." in (tmp_path / "out/acceptance.md").read_text()
    assert module.run_all(tmp_path / "two", [python("a", "raise SystemExit(1)"), python("b", "pass")], ABOUT) == 1
    assert [step["outcome"] for step in record_in(tmp_path / "two")["steps"]] == ["failed", "ok"]


def test_what_does_not_fit_is_named_and_the_same_command_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, out = acceptance(), tmp_path / "out"
    code = "import pathlib, sys; open(sys.argv[1], 'a').write('x')"
    plan = [
        python(name, code, 30, str(tmp_path / name))._replace(expected=expected, kept=name == "report")
        for name, expected in (("a", 0.0), ("bad", 0.0), ("late", 25.0), ("report", 0.0))
    ]
    plan[1] = python("bad", "raise SystemExit(1)")
    module.seconds_for = lambda number, plan, elapsed: 20.0
    assert module.run_all(out, plan, ABOUT) == 1, "bad has failed"
    assert "lack of time: late;" in capsys.readouterr().out
    assert "left out: late" in (out / "acceptance.md").read_text()
    first = record_in(out)
    assert [row["outcome"] for row in first["steps"]] == ["ok", "failed", "left out", "ok"]
    module.seconds_for = lambda number, plan, elapsed: 30.0
    assert module.run_all(out, plan, ABOUT) == 1
    record = record_in(out)
    assert [row["outcome"] for row in record["steps"]] == ["ok", "failed", "ok", "ok"]
    times = {name: (tmp_path / name).read_text() for name in ("a", "late", "report")}
    assert times == {"a": "x", "late": "x", "report": "xx"}, "only what was left out, and the report"
    assert record["seconds"] > first["seconds"] and record["began"] == first["began"]
    assert module.run_all(tmp_path / "none", [plan[2]._replace(expected=99.0)], ABOUT) == 0, "left out is no failure"


def test_a_folder_with_a_run_of_other_code_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = acceptance()
    for name, make in (("acceptance.json", Path.mkdir), ("run", Path.mkdir), ("acceptance.json", Path.touch)):
        out = tmp_path / f"{name}-{make.__name__}"
        out.mkdir()
        make(out / name)
        assert module.run_all(out, [python("a", "pass")], ABOUT) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1 and [path.name for path in out.iterdir()] == [name]
    out = tmp_path / "other"
    assert module.run_all(out, [python("a", "pass")], ABOUT) == 0
    before = (out / "acceptance.json").read_text()
    assert module.run_all(out, [python("a", "pass"), python("b", "pass")], {**ABOUT, "code": "changed"}) == 2
    assert "other code" in capsys.readouterr().err and (out / "acceptance.json").read_text() == before


def test_the_fingerprint_changes_with_the_code_alone(tmp_path: Path) -> None:
    module = acceptance()
    module.ROOT = tmp_path
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/a.py").write_text("1")
    found = [module.code_fingerprint()]
    (tmp_path / "bench/notes.txt").write_text("x")
    found.append(module.code_fingerprint())
    (tmp_path / "bench/a.py").write_text("2")
    found.append(module.code_fingerprint())
    assert found[0] == found[1] != found[2]


def test_what_a_trial_has_measured_is_in_the_tar_before_its_part_ends(tmp_path: Path) -> None:
    """A part of five trials takes minutes, and a kill may come in any of them."""
    module, out = acceptance(), tmp_path / "out"
    module.LOOK_SECONDS = 0.1
    code = f"""
import json, pathlib, tarfile, time
folder = pathlib.Path({str(out)!r})
trial = folder / "run/trials/t"
trial.mkdir(parents=True)
names = ("implementation", "levers", "preset", "seq_len", "precision", "micro_batch_size")
(trial / "trial.json").write_text(json.dumps({{"kind": "throughput", **dict.fromkeys(names, "tiny")}}))
(trial / "result.json").write_text(json.dumps({{"status": "ok", "samples_per_second": 7.5}}))
for _ in range(300):
    time.sleep(0.1)
    try:
        with tarfile.open(folder / "acceptance.tar.gz") as tar:
            found = json.load(tar.extractfile("acceptance.json"))["throughput"][0]["samples_per_second"]
    except (OSError, KeyError, IndexError, tarfile.TarError):
        continue
    print(found)
    break
"""
    assert module.run_all(out, [python("large", code, 60)], ABOUT) == 0
    assert record_in(out)["steps"][0]["figures"] == ["7.5"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_midway_keeps_what_is_recorded_and_ends_the_step(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    child, waiting = begun(out)
    os.kill(child.pid, number)
    assert child.wait(30) == 130
    record = record_in(out)
    assert [step["outcome"] for step in record["steps"]] == ["ok", "interrupted", "left out"]
    assert record["steps"][0]["figures"] == ["5"] and record["ended"] == "interrupted" and record["seconds"] > 0
    assert gone(waiting) and "interrupted" in (out / "acceptance.md").read_text()


def test_a_full_disk_ends_the_run_with_one_line_and_the_last_whole_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = acceptance()
    write, calls = module.write_text, []

    def full(path: Path, text: str) -> None:
        calls.append(path)
        if len(calls) > 4:  # two files each: the first step has begun, and it has ended
            raise module.StorageError("disk-full", f"cannot write {path}: the disk is full")
        write(path, text)

    module.write_text = full
    assert module.run_all(tmp_path / "out", [python("a", "pass"), python("b", "pass"), python("c", "pass")], ABOUT) == 1
    assert [step["name"] for step in record_in(tmp_path / "out")["steps"]] == ["a"]
    said = capsys.readouterr().err
    assert "the disk is full" in said and "Traceback" not in said and "what was recorded before" in said


@pytest.mark.skipif(not Path("/dev/full").exists() or os.geteuid() != 0, reason="needs root and a small file system")
def test_a_really_full_file_system_ends_the_run_with_what_was_whole(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        fill = python("fill", "import sys; sys.stdout.write('x' * 10**6)")
        assert acceptance().run_all(small / "out", [python("a", "print(1)"), fill, python("c", "pass")], ABOUT) == 1
        record = record_in(small / "out")
        assert record["steps"][0]["outcome"] == "ok" and len(record["steps"]) < 3
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert acceptance().run_all(tmp_path / "file/out", [python("a", "pass")], ABOUT) == 2
    assert "file" in capsys.readouterr().err


def test_a_run_is_published_without_its_folders_by_one_command(tmp_path: Path) -> None:
    module = acceptance()
    out = tmp_path / "out"
    code = f"""
import pathlib
print({str(out)!r}, {str(ROOT)!r})
report = pathlib.Path({str(out)!r}, "run/report")
report.mkdir(parents=True)
(report / "throughput.png").write_bytes(b"png")
"""
    assert module.run_all(out, [python("a", code)], ABOUT) == 0
    day = record_in(out)["began"][:10]
    alone = (out / "acceptance.tar.gz").rename(tmp_path / "carried.tar.gz")
    results = tmp_path / "results"
    results.mkdir()
    assert module.publish(out, results) == 2 and not list(results.iterdir()), "the tar is what is published"
    assert module.publish(alone, results) == 0
    assert sorted(path.name for path in results.iterdir()) == [f"{day}-h200.{end}" for end in ("json", "md", "png")]
    text = (results / f"{day}-h200.json").read_text() + (results / f"{day}-h200.md").read_text()
    assert str(tmp_path) not in text and str(ROOT) not in text and "OUT" in text
    assert (results / f"{day}-h200.png").read_bytes() == b"png"
    assert "python -c" in text, "the command of each part"
    assert module.publish(tmp_path / "nothing", results) == 2
    content = alone.read_bytes()
    for damaged in (content[: len(content) // 2], b"", bytes(1000), b"\x1f\x8b" + bytes(range(256))):
        alone.write_bytes(damaged)
        assert module.publish(alone, results) == 2


def test_names_of_gpus_become_names_of_files() -> None:
    short_name = acceptance().short_name
    assert short_name("NVIDIA H200, 580.1") == "h200" and short_name("NVIDIA A100-SXM4-80GB, 550") == "a100"
    assert short_name("no GPU") == "gpu" and short_name("NVIDIA GeForce RTX 4090, 1") == "4090"
