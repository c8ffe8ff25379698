"""What the redesign must not change, as facts of a checkout; it goes when the redesign is done.

    python tests/freeze.py facts CHECKOUT OUT [--old RUNS]
    python tests/freeze.py compare BEFORE AGAIN AFTER

`facts` prepares, trains, plans and reads with the code of CHECKOUT, into OUT/facts.json: the options of every command,
sha256 of prepared files, losses of 20 steps of every task, ids of trials, and the --json of every reading command on
the public traces and on run directories: those it made, or RUNS of an earlier call (old runs must be readable).
`compare`: BEFORE and AGAIN are of one commit; what differs between them is noise. Paths must not hold blanks.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parents[2] / "shared"
VOCAB = SHARED / "data/vocab/bert-uncased.txt"
TRAIN = (
    "--preset tiny --precision fp32 --device cpu --devices 1 --threads 2 --steps 20 --log-every 1 "
    "--micro-batch-size 2 --global-batch-size 4"
)
SWEEP = "--presets tiny --device cpu --start 1 --stop 4"


class Checkout:
    """Runs the command line of one checkout, with paths of the machine taken out of what it prints."""

    def __init__(self, root: Path, out: Path) -> None:
        self._root, self._out = root, out

    def __call__(self, words: str) -> dict[str, Any]:
        argv = [sys.executable, "-m", "bench.cli.main", *words.split()]
        env = {**os.environ, "PYTHONPATH": str(self._root), "COLUMNS": "160", "BERTBENCH_COMPILE": "0"}
        ended = subprocess.run(argv, cwd=self._root, env=env, capture_output=True, text=True, errors="replace")
        said: Any = self._plain(ended.stdout)
        if "--json" in argv and ended.returncode != 2:
            said = json.loads(said)
        failed = {"stderr": self._plain(ended.stderr)[-2000:]} if ended.returncode else {}
        return {"exit": ended.returncode, "stdout": said, **failed}

    def _plain(self, text: str) -> str:
        return text.replace(str(self._out), "OUT").replace(str(SHARED), "SHARED")


def prepared(call: Checkout, data: Path) -> dict[str, Any]:
    """Prepare a part of every data set; return the sha256 of each file and how each call ended."""
    source = SHARED / "data"
    (data / "text").mkdir(parents=True, exist_ok=True)
    dev = json.loads(gzip.decompress((source / "squad/dev-v2.0.json.gz").read_bytes()))
    (data / "dev.json").write_text(json.dumps({**dev, "data": dev["data"][:2]}))
    texts = (source / "csv/sms_spam_latin1.csv").read_bytes()[:60_000]
    (data / "sms.csv").write_bytes(texts.rpartition(b"\n")[0] + b"\n")
    book = min((source / "pretrain/books").iterdir(), key=lambda path: path.stat().st_size)
    (data / "text/book.txt").write_bytes(book.read_bytes()[:300_000])
    for dump in (source / "pretrain/wiki").glob("*.bz2"):
        (data / "text" / dump.name).write_bytes(dump.read_bytes())
    gap = " ".join(str(source / f"gap/gap-{name}.tsv") for name in ("development", "validation", "test"))
    squad = f"data squad --input {data}/dev.json --vocab {VOCAB} --output {data}/squad --split"
    calls = {
        "squad training": f"{squad} training",
        "squad evaluation": f"{squad} evaluation",
        "gap": f"data gap --input {gap} --vocab {VOCAB} --output {data}/gap",
        "glue": f"data glue --input {source}/glue --vocab {VOCAB} --output {data}/glue",
        "csv": f"data csv {data}/sms.csv --text v2 --label v1 --vocab {VOCAB} --max-seq-length 32",
        "pretrain": f"data pretrain --input {data}/text --output {data}/pretrain --vocab {VOCAB} --seq-lens 128 "
        "--workers 1",
    }
    ended = {name: call(words)["exit"] for name, words in calls.items()}
    files = [path for path in sorted(data.rglob("*")) if path.is_file()]
    return {
        "exit": ended,
        "files": {str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }


def trained(call: Checkout, data: Path, runs: Path) -> dict[str, Any]:
    """Train every task for 20 steps; return the losses, every bit of them."""
    shards = next((data / "pretrain").glob("hdf5_*/*"), data / "pretrain")
    jobs = {
        "pretrain": f"pretrain --data {shards}",
        "squad": f"squad --data {data}/squad",
        "gap": f"gap --head mul --data {data}/gap",
        "glue-cola": f"glue --task cola --data {data}/glue",
        "glue-stsb": f"glue --task stsb --data {data}/glue",
        "classify": f"classify {data}/sms.csv --text v2 --label v1 --seq-len 32 --vocab {VOCAB}",
    }
    found = {}
    for name, words in jobs.items():
        ended = call(f"train {words} {TRAIN} --out {runs / name}")
        events = [path.read_text() for path in sorted((runs / name).rglob("events.jsonl"))]
        found[name] = {
            "exit": ended["exit"],
            "stderr": ended.get("stderr"),
            "losses": re.findall(r'"loss": *([-0-9.e]+)', "\n".join(events)),
            "files": sorted(str(path.relative_to(runs / name)) for path in (runs / name).rglob("*") if path.is_file()),
        }
    return found


def planned(call: Checkout, data: Path, runs: Path) -> dict[str, Any]:
    """Measure a few steps of every task; return the ids of the trials and the columns of the results."""
    one = "--devices 1 --threads 2"
    jobs = {
        "pretrain": f"pretrain --batch-sizes 1 2 --seq-lens 32 --precisions fp32 bf16 {one}",
        "levers": "pretrain --batch-sizes 2 --seq-lens 32 --implementations bertbench hf --levers none auto --rounds 1 "
        + one,
        "squad": f"squad --batch-sizes 2 --data {data}/squad {one}",
        "gap": f"gap --batch-sizes 2 --data {data}/gap --head span {one}",
        "glue": f"glue --batch-sizes 2 --task wnli {one}",
        "classify": f"classify --batch-sizes 2 {one}",
        "two": "pretrain --batch-sizes 2 --seq-lens 32 --devices 2 --strategies ddp fsdp --bucket-mib 1",
    }
    found = {}
    for name, words in jobs.items():
        folder = runs / f"sweep-{name}"
        ended = call(f"throughput {words} {SWEEP} --out {folder}")
        table = folder / "results.csv"
        found[name] = {
            "exit": ended["exit"],
            "stderr": ended.get("stderr"),
            "trials": sorted(path.name for path in (folder / "trials").glob("*")),
            "columns": table.read_text().splitlines()[0] if table.exists() else None,
        }
    return found


def read(call: Checkout, runs: Path) -> dict[str, Any]:
    """Return every reading command's JSON on the public traces and on run directories."""
    traces = SHARED / "traces"
    files = [path for path in sorted(traces.rglob("*")) if path.is_file() and path.name != "README.md"]
    folders = [traces / "kineto/dlrm-8-ranks", traces / "kineto/megatron-8-ranks", traces / "kineto/hta"]
    counted = [path for path in files if {"ncu", "nvprof"} & set(path.parts)]
    calls = [f"analyze {path}" for path in [*files, *folders]] + [f"allreduce {path}" for path in folders]
    calls += [f"core-util {path}" for path in counted]
    calls += [f"report {run}" for run in sorted(runs.glob("*"))]
    calls += [f"compare {runs}/sweep-pretrain {runs}/sweep-levers", f"history {runs}"]
    return {words.replace(str(traces), "").replace(str(runs), "RUNS"): call(f"{words} --json") for words in calls}


def facts(root: Path, out: Path, old: Path | None) -> None:
    """Write OUT/facts.json, as far as it is made, after each part."""
    call, runs = Checkout(root, out), out / "runs"
    sections = (root / "docs/reference/commands.md").read_text().split("\n## ")[1:]
    made: dict[str, Any] = {
        "options": {part.partition("\n")[0]: re.findall(r"^\| `(--[^`]*)`", part, re.M) for part in sections}
    }
    made["prepared"] = prepared(call, out / "data")
    made["trained"] = trained(call, out / "data", runs)
    made["planned"] = planned(call, out / "data", runs)
    made["read"] = read(call, old or runs)
    (out / "facts.json").write_text(json.dumps(made, indent=1, sort_keys=True))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything that is no dict or list."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inside is None:
        yield path, value
        return
    for key, one in inside:
        yield from leaves(one, f"{path}/{key}")


def compare(before: Path, again: Path, after: Path) -> int:
    """Print what differs between two commits and is no noise; return 1 where something does."""
    first, second, third = (
        dict(leaves(json.loads((path / "facts.json").read_text()))) for path in (before, again, after)
    )
    noise = {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}
    different = [path for path in sorted(first.keys() | third.keys()) if first.get(path) != third.get(path)]
    different = [path for path in different if path not in noise]
    for path in different:
        print(f"{path}\n  before {str(first.get(path))[:300]}\n  after  {str(third.get(path))[:300]}")
    print(f"{len(first)} facts, {len(noise)} of them noise, {len(different)} differ")
    return 1 if different else 0


def main() -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one, two = commands.add_parser("facts"), commands.add_parser("compare")
    for name in ("checkout", "out", "--old"):
        one.add_argument(name, type=Path)
    for name in ("before", "again", "after"):
        two.add_argument(name, type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.again, given.after)
    given.out.mkdir(parents=True, exist_ok=True)
    facts(given.checkout.resolve(), given.out.resolve(), given.old.resolve() if given.old else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
