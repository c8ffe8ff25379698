"""From pages of Wikipedia and books to batches, by the commands a user types."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.cli import ROOT, bertbench, run_to_end
from support.commands import called
from support.shared_files import samples, vocabulary_beside

NAME = "hdf5_lower_case_1_seq_len_{}_max_pred_{}_masked_lm_prob_0.15_random_seed_12345_dupe_factor_5"


def prepare(corpus: Path, output: Path, *more: object) -> list[object]:
    return ["data", "pretrain", "--input", corpus, "--output", output, "--vocab", vocabulary_beside(corpus), *more]


def digests(output: Path) -> dict[str, str]:
    return {
        path.relative_to(output).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in output.rglob("*")
        if path.is_file() and path.name not in (".lock", ".inputs.json")
    }


@pytest.fixture(scope="module", params=samples("pretrain"))
def corpus(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both phases, by the script that makes everything, two workers."""
    output = tmp_path_factory.mktemp("made")
    script = ROOT / "bert/data/create_datasets_from_start.sh"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run_to_end(["bash", script, output, corpus], VOCAB=str(vocabulary_beside(corpus)), WORKERS="2", PATH=path)
    return output


def test_both_phases_pass_the_check(corpus: Path, made: Path) -> None:
    pieces = len(vocabulary_beside(corpus).read_text(encoding="utf-8").splitlines())
    for seq_len, predictions in ((128, 20), (512, 80)):
        found = json.loads(called("data", "check", made / NAME.format(seq_len, predictions), "--json").stdout)
        assert (found["seq_len"], found["max_predictions"], found["vocab_size"]) == (seq_len, predictions, pieces)
        assert [split["shards"] for split in found["splits"]] == [4, 1] and len(found["rows"]) == 10
        assert all(row["tokens"][0] == "[CLS]" and row["tokens"][-1] == "[SEP]" for row in found["rows"])


def test_a_run_killed_at_any_moment_and_run_again_with_one_worker_gives_the_same_bytes(
    corpus: Path, made: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    argv = bertbench(*prepare(corpus, output, "--seq-lens", 128, 512, "--workers", 2))
    kills = 0
    for delay in (0.0, 0.2):
        before, files = len(digests(output)) if output.exists() else 0, len(list(output.rglob("*")))
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None and len(list(output.rglob("*"))) <= files:
                time.sleep(0.01)
            time.sleep(delay)
            if process.poll() is not None:
                break
            process.kill()
            process.communicate(timeout=30)
        kills += 1
        assert len(digests(output)) >= before - 2, "finished files stay"
    assert kills, "it was stopped in the middle at least once"
    called(*prepare(corpus, output, "--seq-lens", 128, 512))
    assert digests(output) == digests(made)
    assert not list(output.rglob("*.tmp"))
