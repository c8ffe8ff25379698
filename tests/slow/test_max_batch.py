"""The max-batch search with real processes that run out of real (limited) memory."""

import json
import subprocess

import pytest
from support.cli import ROOT, Cli

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_the_largest_batch_is_found_proved_and_one_more_fails(cli: Cli) -> None:
    done = subprocess.run(
        cli.sweep(
            "--max-batch-search", "--seq-lens", "512", "--batch-sizes", "8", "--memory-limit-gib", "0.9", "--json"
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["max_batch"]
    assert found["fails_at"] == found["micro_batch_size"] + 1
    assert [found["fails_at"], "oom"] in found["tried"]
    assert [found["micro_batch_size"], "ok"] in found["tried"]
