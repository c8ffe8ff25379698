"""gpu-acceptance on a machine without a GPU: what it says, that its steps are commands that exist, how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch
from support.acceptance_steps import TOTAL_SECONDS, Step, seconds_for, steps

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests/gpu/acceptance.py"
ABOUT = {"python": "3", "torch": "2", "cuda": "13", "gpus": ["NVIDIA H200, 580.1"], "commit": "c"}


def acceptance() -> Any:
    spec = util.spec_from_file_location("acceptance", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(name: str, code: str, longest: float = 30, *more: str) -> Step:
    return Step(name, [sys.executable, "-c", code, *more], longest, 0)


def ran(step: Step, folder: Path) -> dict[str, Any]:
    return dict(acceptance().run_step(step, step.longest, folder))


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
    assert "has no torch, numpy, msgspec, tyro, psutil: " in done.stderr and "PYTHON=<python>" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [[""], [], ["--publish"], ["--publish", ""], ["-h"], ["a", "b"]])
def test_without_a_folder_it_says_how_to_call_it(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2 and "OUT=<folder>" in done.stderr


def test_every_profiler_and_no_unknown_command_is_in_it(tmp_path: Path) -> None:
    from bench.cli.main import COMMANDS
    from bench.profilers import PROFILERS

    plan = steps(tmp_path)
    commands = [step.command[3] for step in plan if step.command[2] == "bench.cli.main"]
    assert set(commands) <= set(COMMANDS)
    profilers = {step.command[step.command.index("--profiler") + 1] for step in plan if "--profiler" in step.command}
    assert profilers == set(PROFILERS) - {"nvprof"}, "nvprof cannot run on the GPUs of today"
    assert len({step.name for step in plan}) == len(plan)


def test_every_command_line_is_parsed_and_planned_for_one_gpu(tmp_path: Path) -> None:
    from bench.cli import doctor, profile, report, speed_of_light, throughput
    from bench.cli.options import parse, parse_task
    from bench.devices import Devices, Gpu
    from bench.plan import expand

    devices = Devices("cuda", (Gpu("NVIDIA H200", "0", "GPU-0", 141 << 30),), 16)
    trials: dict[str, int] = {}
    for step in steps(tmp_path):
        if step.command[2] != "bench.cli.main":
            assert (ROOT / step.command[-1]).is_dir()
            continue
        name, words = step.command[3], step.command[4:]
        if name == "throughput":
            found = parse_task(throughput.ThroughputOptions, words, name)
            trials[step.name] = len(expand(found.sweep, devices))
        elif name == "profile":
            wanted = parse_task(profile.ProfileOptions, words, name)
            options = profile.profiler_words(wanted)
            trials[step.name] = len(expand(wanted.sweep, devices, "profile", wanted.profiler, options))
        elif name == "speed-of-light":
            light = parse_task(speed_of_light.SpeedOfLightOptions, words, name, sweep=False)
            assert speed_of_light.planned(light, devices).levers == "unpad"
        elif name == "doctor":
            assert parse(doctor.DoctorOptions, words, name).json
        else:
            assert parse(report.ReportOptions, words, name).path == tmp_path
    # Trials of each: our own with its levers beside the others; one batch for a search and a profile.
    assert trials == {
        "throughput large 512": 4, "throughput large 128": 5, "throughput base": 6, "max batch": 1,
        "profile torch": 1, "profile ncu": 1, "profile nsys": 1, "profile nvtx emit": 1,
    }  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_every_sweep_is_refused_for_want_of_a_gpu_alone(tmp_path: Path) -> None:
    sweeps = [step.command for step in steps(tmp_path) if set(step.command) & {"throughput", "speed-of-light"}]
    assert len(sweeps) == 5
    for command in sweeps:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2 and "no GPU can be used" in done.stderr and len(done.stderr.splitlines()) == 1, (
            done.stderr
        )


def test_no_step_can_use_up_the_time_of_those_after_it(tmp_path: Path) -> None:
    plan = steps(tmp_path)
    assert TOTAL_SECONDS + 20 <= 540, "nine minutes, ending the last step included"
    elapsed = 0.0
    for number, step in enumerate(plan):  # each takes all it is given
        limit = seconds_for(number, plan, elapsed)
        assert limit >= step.held and limit <= step.longest, step.name
        elapsed += limit
    assert elapsed <= TOTAL_SECONDS
    assert all(0 < step.held < step.longest for step in plan[:-1]) and plan[-2].name == "report"
    assert sum(step.held for step in plan) <= 0.85 * TOTAL_SECONDS, "some time is anybody's"


def test_a_failing_step_is_a_row_and_a_missing_tool_is_no_failure(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('nsys is not on PATH: install it'); sys.exit(2)"
    assert ran(python("a", code), tmp_path)["outcome"] == "absent"
    assert ran(python("b", "raise SystemExit(3)"), tmp_path)["outcome"] == "failed"
    good = ran(python("c", "print('{\"x\": NaN}')", 30, "--json"), tmp_path)
    assert (good["outcome"], good["figures"]) == ("ok", {"x": None})
    late = ran(python("d", "import time; time.sleep(30)", 2), tmp_path)
    assert late["outcome"] == "timeout" and late["seconds"] < 15
    left = ran(Step("e", ["none"], 0.5, 0), tmp_path)
    assert left["outcome"] == "not reached" and "0 s are left" in left["why"]
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
    assert [step["figures"] for step in record["steps"]][1:] == [["1"], ["2"]]
    assert "3 steps are ok." in (tmp_path / "out/acceptance.md").read_text()
    assert module.run_all(tmp_path / "two", [python("a", "raise SystemExit(1)"), python("b", "pass")], ABOUT) == 1
    assert [step["outcome"] for step in record_in(tmp_path / "two")["steps"]] == ["failed", "ok"]


def test_what_does_not_fit_is_named_as_not_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = Step("late", ["none"], 0.5, 0)
    assert acceptance().run_all(tmp_path / "out", [python("a", "pass"), late], ABOUT) == 1
    assert "not reached: late" in capsys.readouterr().out
    assert "not reached: late" in (tmp_path / "out/acceptance.md").read_text()


@pytest.mark.parametrize("name", ["acceptance.json", "run"])
def test_a_folder_with_an_earlier_run_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).mkdir()
    assert acceptance().run_all(tmp_path, [python("a", "pass")], ABOUT) == 2
    assert "holds an earlier run" in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_midway_keeps_what_is_recorded_and_ends_the_step(tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
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
    child = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
    log = out / "logs/b.out"
    for _ in range(300):
        if log.exists() and log.read_text().strip():
            break
        time.sleep(0.1)
    os.kill(child.pid, number)
    assert child.wait(30) == 130
    record = record_in(out)
    assert [step["outcome"] for step in record["steps"]] == ["ok", "interrupted", "not reached"]
    assert record["steps"][0]["figures"] == ["5"] and record["ended"] == "interrupted" and record["seconds"] > 0
    assert gone(int(log.read_text())) and "interrupted" in (out / "acceptance.md").read_text()


def test_a_full_disk_ends_the_run_with_one_line_and_the_last_whole_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = acceptance()
    write, calls = module.write_text, []

    def full(path: Path, text: str) -> None:
        calls.append(path)
        if len(calls) > 4:  # the empty record and that of the first step are written
            raise module.StorageError(f"cannot write {path}: the disk is full")
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
    code = f"print({str(out)!r}, {str(ROOT)!r})"
    assert module.run_all(out, [python("a", code)], ABOUT) == 0
    (out / "run/report").mkdir(parents=True)
    (out / "run/report/throughput.png").write_bytes(b"png")
    moved = out.rename(tmp_path / "moved")
    results = tmp_path / "results"
    results.mkdir()
    assert module.publish(moved, results) == 0
    day = record_in(moved)["began"][:10]
    assert sorted(path.name for path in results.iterdir()) == [f"{day}-h200.{end}" for end in ("json", "md", "png")]
    text = (results / f"{day}-h200.json").read_text() + (results / f"{day}-h200.md").read_text()
    assert str(tmp_path) not in text and str(ROOT) not in text and "OUT" in text
    assert module.publish(tmp_path / "nothing", results) == 2


def test_names_of_gpus_become_names_of_files() -> None:
    short_name = acceptance().short_name
    assert short_name("NVIDIA H200, 580.1") == "h200" and short_name("NVIDIA A100-SXM4-80GB, 550") == "a100"
    assert short_name("no GPU") == "gpu" and short_name("NVIDIA GeForce RTX 4090, 1") == "4090"
