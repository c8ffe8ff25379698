"""`bertbench launch` around its nodes: options, programs, the environment of ranks, and the world that a rank joins."""

import shutil
import sys
from pathlib import Path

import pytest
from support.refusals import check_refusal

from bench.cli import main as cli
from bench.launch import torchrun
from bench.launch.torchrun import command_of_rank
from bench.launch.world import World, joined_world
from bench.machine.devices import Devices, Gpu
from common.errors import Code


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        ([], "option-missing", ["COMMAND"]),
        (["--", "sleep", "1"], "path-missing", ["'sleep'", "--no-python"]),
        (["--no-python", "--", "no-such-program"], "tool-missing", ["no-such-program"]),
        (["--join-timeout", "0", "--", "x"], "option-value", ["--join-timeout"]),
        (["--join-timeout", "1e12", "--", "x"], "option-value", ["--join-timeout"]),
        (["--master-port", "70000", "--", "x"], "option-value", ["--master-port", "70000", "65535"]),
        (["--other-gpus", "1", "--node-rank", "1", "--no-python", "--", "true"], "option-missing", ["--master-addr"]),
    ],
)
def test_what_cannot_be_launched_is_one_message_and_exit_code_2(
    words: list[str], code: Code, facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["launch", "--quiet", *words]) == 2
    check_refusal(capsys.readouterr().err, code, *facts)


def test_programs_are_run_as_torchrun_runs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.touch(0o755)
    monkeypatch.chdir(tmp_path)
    assert command_of_rank(["./train.py"], False, True) == (str(script),)
    command = (sys.executable, "-u", str(script), "--x", "--", "1")
    assert command_of_rank([str(script), "--x", "--", "1"], False, False) == command
    assert command_of_rank(["a.b", "--x"], True, False) == (sys.executable, "-u", "-m", "a.b", "--x")
    assert command_of_rank(["sh", "-c", "x"], False, True) == (shutil.which("sh"), "-c", "x")
    assert command_of_rank(["bertbench", "train"], False, False)[-3:] == ("-m", "bench.cli.main", "train")


def test_ranks_share_the_cores_and_see_only_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    gpus = tuple(Gpu("H200", str(number), f"GPU-{number}", None) for number in (0, 2))
    variables = torchrun.environment(Devices("cuda", gpus, 16), 2)
    assert (variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]) == ("8", "0,2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert torchrun.environment(Devices("cpu", (), 16), 2)["OMP_NUM_THREADS"] == "3"


WORLD = {"RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_a_process_is_a_rank_only_where_all_variables_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**WORLD, "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GROUP_WORLD_SIZE", raising=False)
    assert joined_world() == World(2, 1, 3, 2, 1)
    for name in WORLD:
        with monkeypatch.context() as patch:
            patch.delenv(name)
            assert joined_world() is None
