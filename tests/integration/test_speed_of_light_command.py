"""`bertbench speed-of-light` on the command line, on one CPU rank."""

import json

import pytest
from support.cli import Cli, bertbench, run_to_end

from bench.cli.main import run

SMALL = ("--preset", "tiny", "--batch-size", "2", "--seq-len", "32", "--precision", "fp32", "--device", "cpu",
         "--rounds", "3", "--max-seconds", "1", "--threads", "1")  # fmt: skip


def test_a_step_is_taken_apart_and_shown_again(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run_to_end(bertbench("speed-of-light", *SMALL, "--json", "--out", cli.out)).stdout)
    assert (found["kind"], found["task"], found["rounds"]) == ("components", "pretrain", 3)
    bars = found["waterfall"]
    assert sum(bar["ms"] for bar in bars[:-1]) == pytest.approx(found["step_time_ms"])
    assert bars[-1]["name"] == "measured step" and bars[0]["ms"] > 0
    communication = next(bar for bar in bars if bar["name"] == "communication")
    assert communication["ms"] == 0.0, "one device talks to nobody"
    names = {row["name"] for row in found["components"]}
    assert {"query, key, value, forward", "attention", "cross-entropy", "optimizer", "embeddings"} <= names
    assert run(["speed-of-light", *SMALL, "--out", str(cli.out)]) == 0
    again = capsys.readouterr()
    assert "already done" in again.err
    assert "= floor" in again.out and "not explained" in again.out and "measured peak" in again.out
    assert (cli.out / "results.csv").read_text().count("\n") == 2 and not cli.processes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("gap",), "pretrain, squad, classify, glue"),
        (("pretrian",), 'Did you mean "pretrain"'),
        (("--rounds", "2"), "--rounds"),
        (("--batch-size", "0"), "--batch-size"),
        (("--preset", "bsae"), "base"),
        (("--seq-len", "1024"), "512 positions"),
        (("--data", "/nowhere"), "/nowhere"),
        (("--device", "cpu", "--threads", "999"), "--threads 999"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["speed-of-light", *options, "--out", "/nowhere/run"]) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
