"""Secrets of the environment reach no file of a run: records, log, trace, report."""

import gzip
from pathlib import Path

import pytest
from support.cli import SHORT, TINY, Cli, run_to_end

SECRET = "correct-horse-SECRET123"


def contents(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
            found[path.relative_to(folder).as_posix()] = content.decode("utf-8", "replace")
    return found


@pytest.mark.slow
def test_no_file_of_a_profiled_run_holds_a_secret(cli: Cli) -> None:
    planted = {"NCCL_SECRET": SECRET, "HF_TOKEN": SECRET, "CUDA_CACHE_URL": f"https://me:{SECRET}@host/x"}
    argv = cli.argv("profile", "pretrain", *TINY, *SHORT, "--batch-sizes", "2", "--profiler", "torch", "--out")
    for words in ([*argv, str(cli.out)], cli.argv("report", str(cli.out))):
        done = run_to_end(words, OMP_NUM_THREADS="1", **planted)
        assert SECRET not in done.stdout + done.stderr
    files = contents(cli.out)
    kinds = ("env.json", "log.txt", "trace-rank0.json.gz", "report.html")
    assert all(any(name.endswith(kind) for name in files) for kind in kinds), sorted(files)
    assert [name for name, text in files.items() if SECRET in text] == []
    assert any('"NCCL_SECRET": "[redacted]"' in text for name, text in files.items() if name.endswith("env.json"))
