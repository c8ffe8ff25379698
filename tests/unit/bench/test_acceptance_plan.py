"""The steps of gpu-acceptance: commands that exist, in order of worth, each with its time, without what is missing."""

import subprocess
from pathlib import Path

import pytest
import torch
from support.acceptance_steps import TOTAL_SECONDS, seconds_for, steps
from support.cli import ROOT


def test_every_profiler_and_no_unknown_command_is_in_it(tmp_path: Path) -> None:
    from bench.cli.dispatch import COMMANDS
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
    from bench.machine.devices import Devices, Gpu
    from bench.plan.trials import expand

    devices = Devices("cuda", (Gpu("NVIDIA H200", "0", "GPU-0", 141 << 30),), 16)
    trials: dict[str, int] = {}
    for step in steps(tmp_path):
        if step.command[2] != "bench.cli.main":
            files = [word for word in step.command if word.startswith("tests/")]
            assert files and all((ROOT / file).is_file() for file in files)
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
            light = parse_task(speed_of_light.SpeedOfLightOptions, words, name)
            assert speed_of_light.planned(light, devices).levers == "", "what is on anyway"
        elif name == "doctor":
            assert parse(doctor.DoctorOptions, words, name).json
        else:
            assert parse(report.ReportOptions, words, name).path == tmp_path
    # Trials of each: our own with its levers beside the others; one batch for a search and a profile.
    assert trials == {
        "throughput large 512 batch 64": 5, "throughput large 512 batch 128": 2, "throughput large 128": 3,
        "throughput large 512 batch 64 further": 3, "throughput large 512 batch 128 beside": 3, "throughput base": 3,
        "max batch": 1, "profile torch": 1, "profile ncu": 1, "profile nsys": 1,
        "profile nvtx emit": 1,
    }  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_every_sweep_is_refused_for_want_of_a_gpu_alone(tmp_path: Path) -> None:
    sweeps = [step.command for step in steps(tmp_path) if set(step.command) & {"throughput", "speed-of-light"}]
    assert len(sweeps) == 8
    for command in sweeps:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2 and "[device-missing]" in done.stderr and len(done.stderr.splitlines()) == 1, (
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
    assert all(0 < step.held < step.longest for step in plan[:-1])
    assert sum(step.held for step in plan) <= 0.93 * TOTAL_SECONDS, "some time is anybody's"


def test_what_is_worth_most_comes_first_and_the_tests_of_commands_last(tmp_path: Path) -> None:
    plan = steps(tmp_path)
    names = "correctness, throughput large 512 batch 64, profile torch, throughput large 512 batch 128, profile ncu"
    names += ", speed-of-light, throughput large 128, doctor, report, throughput large 512 batch 64 further"
    names += ", throughput large 512 batch 128 beside, throughput base, max batch, profile nsys, profile nvtx emit"
    assert [step.name for step in plan] == [*names.split(", "), "tests"]
    named = {step.name: step for step in plan}
    assert named["correctness"].held == 20 and not {"test_commands.py"} & set(" ".join(plan[0].command).split("/"))
    for batch, row in (("64", "64"), ("128", "128 beside")):
        words = named[f"throughput large 512 batch {row}"].command
        assert words[words.index("--batch-sizes") + 1] == batch and {"hf", "hf-compiled"} <= set(words)
    words = named["max batch"].command
    assert words[words.index("--batch-sizes") + 1] == "160"
    assert named["tests"].least >= 200 and "tests/gpu/test_commands.py" in named["tests"].command


def test_steps_that_lack_something_are_left_out_and_hold_no_time(tmp_path: Path) -> None:
    plan = steps(tmp_path, ["nvtx", "nsys", "transformers"])
    lacks = {step.name: step.lacks for step in plan if step.lacks}
    assert lacks == {
        "profile ncu": ("nvtx",), "profile nsys": ("nvtx", "nsys"), "profile nvtx emit": ("nvtx",),
    }  # fmt: skip
    assert not any({"hf", "hf-compiled"} & set(step.command) for step in plan)
    whole = steps(tmp_path)
    gained = sum(step.held for step in whole if step.name in lacks)
    assert seconds_for(0, plan, 500.0) == pytest.approx(seconds_for(0, whole, 500.0) + gained) and gained > 0
    assert not any("fused-elementwise+unpad" in step.command for step in steps(tmp_path, ["triton"]))
