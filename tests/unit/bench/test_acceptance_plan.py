"""The steps of gpu-acceptance: commands that exist, in order of worth, each with its time, without what is missing."""

import subprocess
from pathlib import Path

import pytest
import torch
from support.acceptance_steps import TOTAL_SECONDS, Step, first_batch, seconds_for, steps
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
    light_levers = []
    for step in steps(tmp_path):
        if step.command[2] != "bench.cli.main":
            files = [word for word in step.command[1:] if word.startswith("tests/")]
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
            light_levers.append(speed_of_light.planned(light, devices).levers)
        elif name == "doctor":
            assert parse(doctor.DoctorOptions, words, name).json
        else:
            assert parse(report.ReportOptions, words, name).path == tmp_path
    # Trials of each: our own with its levers beside the others; one batch for a search and a profile.
    assert trials == {
        "throughput large 512 batch 64": 4, "throughput large 512 batch 128": 2, "throughput large 128": 2,
        "throughput base 128": 2, "max batch": 1, "profile torch": 1, "profile ncu": 1, "profile nsys": 1,
        "profile nvtx emit": 1, "throughput large 512 compiled": 1, "throughput large 512 batch 128 others": 2,
    }  # fmt: skip
    assert light_levers == ["", "bf16-weights+fp8+fused-elementwise+fused-optimizer+unpad"], (
        "what is on by default, and FP8"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_every_sweep_is_refused_for_want_of_a_gpu_alone(tmp_path: Path) -> None:
    sweeps = [step.command for step in steps(tmp_path) if set(step.command) & {"throughput", "speed-of-light"}]
    assert len(sweeps) == 9
    for command in sweeps[::3]:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2 and "[device-missing]" in done.stderr and len(done.stderr.splitlines()) == 1, (
            done.stderr
        )


def test_all_parts_end_within_nine_minutes_and_the_report_keeps_its_time(tmp_path: Path) -> None:
    plan = steps(tmp_path)
    assert TOTAL_SECONDS + 20 <= 540, "nine minutes, ending the last part included"
    assert all(0 < step.expected < step.limit for step in plan)
    elapsed, ran = 0.0, []
    for number, step in enumerate(plan):  # each takes all it is given
        limit = seconds_for(number, plan, elapsed)
        assert limit <= step.limit
        if limit >= step.expected and not step.apart:
            elapsed += limit
            ran.append(step.name)
    assert elapsed <= TOTAL_SECONDS and {"correctness", "throughput large 512 batch 64", "report"} <= set(ran)
    usual, named = 0.0, []
    for number, step in enumerate(plan):  # each takes what it usually takes
        if seconds_for(number, plan, usual) >= step.expected and not step.apart:
            usual += step.expected
            named.append(step.name)
    assert named[:7] == [step.name for step in plan[:7]], "up to large 128, profiles included"


def test_what_is_worth_most_comes_first_and_the_tests_of_commands_last_and_apart(tmp_path: Path) -> None:
    plan = steps(tmp_path, first_batch=192)
    names = "correctness, throughput large 512 batch 64, throughput large 512 batch 128, report of large, profile torch"
    names += ", profile ncu, throughput large 128, throughput base 128, throughput large 512 compiled"
    names += ", speed-of-light bf16, speed-of-light fp8, max batch, throughput large 512 batch 128 others"
    names += ", doctor, profile nsys, profile nvtx emit, report"
    assert [step.name for step in plan] == [*names.split(", "), "tests"]
    assert [step.name for step in plan if step.apart] == ["tests"]
    named = {step.name: step for step in plan}
    for batch, others in (("64", ""), ("128", " others")):
        words = named[f"throughput large 512 batch {batch}"].command
        assert words[words.index("--batch-sizes") + 1] == batch
        assert {"hf", "hf-compiled"} <= set(named[f"throughput large 512 batch {batch}{others}"].command)
        assert {"auto", "bf16-weights+fp8+fused-elementwise+fused-optimizer+unpad"} <= set(words), (
            "bf16 and FP8 in one sweep"
        )
    words = named["max batch"].command
    assert words[words.index("--batch-sizes") + 1] == "192"


def test_the_largest_batch_is_searched_from_160_up_or_from_what_is_predicted_to_fit() -> None:
    from bert.model.memory import predict_memory
    from common.train_spec import TrainSpec

    def needed(size: int) -> int:
        spec = TrainSpec(preset="large", precision="bf16", seq_len=512, max_predictions=76, micro_batch_size=size)
        return predict_memory(spec, "cuda").total

    assert first_batch(24 << 30) == first_batch(80 << 30) == 160
    for gib in (141, 180):
        batch = first_batch(gib << 30)
        assert batch > 160 and batch % 32 == 0 and needed(batch) < 0.95 * (gib << 30) <= needed(batch + 32)


def test_steps_that_lack_something_are_left_out_and_hold_no_time(tmp_path: Path) -> None:
    plan = steps(tmp_path, ["nvtx", "nsys", "transformers"])
    lacks = {step.name: step.lacks for step in plan if step.lacks}
    assert lacks == {
        "profile ncu": ("nvtx",), "profile nsys": ("nvtx", "nsys"), "profile nvtx emit": ("nvtx",),
        "throughput large 512 batch 128 others": ("transformers",),
    }  # fmt: skip
    assert not any({"hf", "hf-compiled"} & set(step.command) for step in plan)
    two = [Step("a", [], 900), Step("report", [], 50, 10, kept=True)]
    lacking = [two[0], two[1]._replace(lacks=("pandas",))]
    assert seconds_for(0, lacking, 500.0) == seconds_for(0, two, 500.0) + 10
    assert not any(
        "bf16-weights+fp8+fused-elementwise+fused-optimizer+unpad" in step.command
        for step in steps(tmp_path, ["triton"])[:3]
    )
