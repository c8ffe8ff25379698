"""From a sweep of the task squad to its trials."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.refusals import refused
from support.squad_windows import VOCAB, squad_windows, write_windows

from bench.machine.devices import Devices
from bench.plan.trials import Sweep, expand
from bert.tasks import task_data
from common.errors import Code
from records.trial import Trial

CPU = Devices("cpu", (), 4)


def test_defaults_are_windows_of_384_tokens_padded_to_the_longest_of_a_batch() -> None:
    (trial,) = expand(Sweep(task="squad"), CPU)
    assert (trial.task, trial.seq_len, trial.padding, trial.max_predictions) == ("squad", 384, "longest", 0)
    assert (trial.data, trial.data_fingerprint, trial.vocab_size) == ("synthetic", "", 30522)
    (pretraining,) = expand(Sweep(), CPU)
    assert (pretraining.seq_len, pretraining.padding, pretraining.max_predictions) == (128, "", 20)


def test_the_way_of_padding_makes_another_trial_and_none_keeps_the_ids_of_old_ones() -> None:
    ids = {expand(Sweep(task="squad", padding=padding), CPU)[0].trial_id for padding in ("auto", "longest", "fixed")}
    assert len(ids) == 2
    assert Trial().trial_id == "pretrain-bertbench-ddp-base-bf16-s128-b8-a1-n1-r0-8006d573"
    old = replace(Trial(), padding="").to_json()
    del old["padding"]
    assert Trial.from_json(old).trial_id == Trial().trial_id


def test_features_and_their_twin_of_made_up_windows_are_named_by_their_content(tmp_path: Path) -> None:
    path = write_windows(tmp_path / "features", squad_windows(12))
    sweep = Sweep(task="squad", data=str(path.parent), seq_lens=(64,))
    real, made_up = expand(sweep, CPU, against_synthetic=True)
    assert (real.data, real.vocab_size, real.seq_len) == (str(path.parent), VOCAB, 64)
    assert made_up.data == f"synthetic:{path.parent}" and made_up.data_fingerprint.startswith("lengths-")
    (elsewhere,) = expand(replace(sweep, data=str(write_windows(tmp_path / "copy", squad_windows(12)))), CPU)
    (other,) = expand(replace(sweep, data=str(write_windows(tmp_path / "other", squad_windows(13)))), CPU)
    assert elsewhere.trial_id == real.trial_id != other.trial_id


def test_features_of_another_length_are_refused_with_both_ways_out(tmp_path: Path) -> None:
    path = write_windows(tmp_path, squad_windows(12))
    with refused("data-mismatch", "--seq-lens 384", path, "--seq-lens 64", "--max-seq-length 384"):
        expand(Sweep(task="squad", data=str(path)), CPU)
    assert task_data("squad").inspect(str(path), None).seq_len == 64


@pytest.mark.parametrize("data", ["{}/none", "{}", "synthetic:{}/none"])
def test_missing_features_are_refused_with_the_command_that_makes_them(data: str, tmp_path: Path) -> None:
    with refused("data-unprepared", "bertbench data squad --input"):
        expand(Sweep(task="squad", data=data.format(tmp_path)), CPU)


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        ({"task": "squad", "padding": "short"}, "option-choice", ["'short'"]),
        ({"task": "pretrain", "padding": "fixed"}, "option-not-applicable", ["--padding fixed", "pretrain"]),
        ({"task": "squad", "seq_lens": (513,)}, "option-value", ["--seq-lens 513", "base", 512]),
        ({"task": "squad", "seq_lens": (4,)}, "option-value", ["--seq-len 4", "squad", 5]),
        ({"task": "squad", "data": "synthetic:banana"}, "option-choice", ["'banana'"]),
        ({"task": "squid"}, "option-choice", ["'squid'", "'squad'"]),
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(
    options: dict[str, object], code: Code, facts: list[object]
) -> None:
    with refused(code, *facts):
        expand(Sweep(**options), CPU)  # type: ignore[arg-type]


def test_planning_loads_no_torch(tmp_path: Path) -> None:
    path = write_windows(tmp_path, squad_windows(12))
    code = (
        "import sys\nfrom bench.machine.devices import Devices\nfrom bench.plan.trials import Sweep, expand\n"
        f"for data in ('synthetic', {str(path)!r}, 'synthetic:{path}'):\n"
        "    expand(Sweep(task='squad', data=data, seq_lens=(64,)), Devices('cpu', (), 1))\n"
        "sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
