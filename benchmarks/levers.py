"""Measures what each lever of our own model gives, alone and with the others, beside Hugging Face's model.

    python benchmarks/levers.py [--out DIR] [--rounds N] [--seconds N] [--only NAME] [--precision NAME]
        [--levers TEXT ...]

For each row of ROWS one sweep of `bertbench throughput pretrain` in interleaved rounds: every set of levers, `hf`, and
`torch-encoder`. Ends in DIR/levers.md and DIR/levers.json: samples/s, ratios to no levers and to
`hf`, MFU. A call with the same DIR continues.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bert.speed.registry import AUTO, LEVERS, NONE, levers_text, resolve_levers  # noqa: E402

ROWS = {
    "base-128": ("base", 128, 8, "synthetic"),
    "small-512": ("small", 512, 4, "synthetic:mean254"),
}
"""Name -> preset, sequence length, batch, data."""
OTHERS = ("hf", "torch-encoder")


def sets_of_levers(device: str) -> list[str]:
    """None; those on by default each alone, each left out, and all together."""
    best = sorted(resolve_levers(AUTO, device) - {"balance"})  # one process has nothing to divide
    return [NONE, *best, *(levers_text(set(best) - {name}) for name in best), AUTO]


def sweep(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the sweep of one row; return its trials."""
    preset, length, batch, data = ROWS[name]
    command = [
        sys.executable, "-m", "bench.cli.main", "throughput", "pretrain", "--presets", preset,
        "--seq-lens", str(length), "--batch-sizes", str(batch), "--data", data, "--precisions", arguments.precision,
        "--implementations", "bertbench", *OTHERS, "--levers", *arguments.levers,
        "--rounds", str(arguments.rounds), "--max-seconds", str(arguments.seconds),
        "--out", str(arguments.out / name), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}; the same call continues")
    return list(json.loads(done.stdout)["rows"])


def summed_up(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What each competitor reached in a step: medians over the rounds, of ratios within each round."""
    speeds: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        if row["status"] == "ok":
            name = row["implementation"] if row["implementation"] in OTHERS else row["levers"] or AUTO
            speeds[name][row["round"]] = row
    for name, own in speeds.items():
        found = {"name": name, "rounds": len(own)}
        found["precision"] = next(iter(own.values()))["precision"]
        for key in ("samples_per_second", "mfu", "peak_memory_bytes"):
            found[key] = statistics.median(row[key] for row in own.values())
        for reference in (NONE, "hf"):
            other = speeds.get(reference, {})
            ratios = [own[n]["samples_per_second"] / other[n]["samples_per_second"] for n in own.keys() & other.keys()]
            found[f"to_{reference}"] = statistics.median(ratios) if ratios else None
            found[f"to_{reference}_each"] = sorted(ratios)
        yield found


def table(name: str, found: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of one row, fastest first."""
    preset, length, batch, data = ROWS[name]
    precision = found[0]["precision"] if found else "no result"
    lines = [f"## {preset}, {length} tokens, batch {batch}, {precision}, lengths `{data}`", ""]
    lines += ["| levers | samples/s | x none | x hf | of each round | MFU | peak RSS, MiB |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for each in sorted(found, key=lambda one: -one["samples_per_second"]):
        ratios = [f"{each[key]:.2f}" if each[key] else "-" for key in ("to_none", "to_hf")]
        rounds = " ".join(f"{ratio:.2f}" for ratio in each["to_hf_each"])
        cells = [f"`{each['name']}`", f"{each['samples_per_second']:.2f}", *ratios, rounds]
        cells += [f"{100 * each['mfu']:.1f} %", f"{each['peak_memory_bytes'] / 2**20:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the tables after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs/bench-levers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--precision", default="auto", help="auto: bf16 where the processor has it, else fp32")
    parser.add_argument("--levers", nargs="+", default=sets_of_levers("cpu"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    legend = "".join(f"- `{name}`: {lever.does}\n" for name, lever in LEVERS.items())
    parts, values = ["# Levers\n", legend], {}
    for name in [arguments.only] if arguments.only else list(ROWS):
        values[name] = list(summed_up(sweep(name, arguments)))
        parts.append(table(name, values[name]))
        (arguments.out / "levers.md").write_text("\n".join(parts), encoding="utf-8")
        (arguments.out / "levers.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        print(parts[-1], flush=True)


if __name__ == "__main__":
    main()
