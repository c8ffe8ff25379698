"""Measures training speed beside the tools that others would use: Hugging Face's Trainer and optimum-benchmark.

    python benchmarks/trainers.py [--out DIR] [--rounds N] [--preset NAME] [--batch-size N] [--precision NAME]

All sides train BertForSequenceClassification of the same shape with random weights, full sequences of random words, the
same batch size and AdamW, on one device. Each round runs every side in a new process: one trial of `bertbench
throughput classify` per implementation, a script with Trainer, and optimum-benchmark by its Python interface, which
gets an environment of its own because it needs an older transformers; of it the times of steps are taken. Ends in
DIR/trainers.md and DIR/trainers.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from traces import environment  # noqa: E402

from bert.model.config import preset  # noqa: E402

OPTIMUM = ("optimum-benchmark==0.6.0", "transformers>=4.57,<5", "huggingface-hub<1", "torch>=2.10,<2.14")
WARMUP_STEPS = 5
MODEL = """
import json, sys
from transformers import BertConfig, BertForSequenceClassification
given = json.loads(sys.argv[1])
model = BertForSequenceClassification(BertConfig(**given["shape"]))
"""
TRAINER = (
    MODEL
    + """
import statistics, time, torch
from transformers import Trainer, TrainerCallback, TrainingArguments

class Clock(TrainerCallback):
    ends = []

    def on_step_end(self, *arguments, **options):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

count = given["batch_size"] * given["steps"]
words = torch.randint(1000, given["shape"]["vocab_size"], (count, given["length"]))
mask = torch.ones(given["length"], dtype=torch.int64)
rows = [{"input_ids": row, "attention_mask": mask, "labels": place % 2} for place, row in enumerate(words)]
arguments = TrainingArguments(
    output_dir=given["scratch"], per_device_train_batch_size=given["batch_size"], max_steps=given["steps"],
    use_cpu=given["device"] == "cpu", bf16=given["precision"] == "bf16", report_to="none", save_strategy="no",
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Clock()]).train()
times = [end - begin for begin, end in zip(Clock.ends, Clock.ends[1:])][given["warmup_steps"] - 1:]
print(json.dumps(given["batch_size"] / statistics.median(times)))
"""
)
BY_OPTIMUM = (
    MODEL
    + """
model.save_pretrained(given["scratch"])
from optimum_benchmark import Benchmark, BenchmarkConfig, InlineConfig, PyTorchConfig, TrainingConfig

backend = PyTorchConfig(
    model=given["scratch"], task="text-classification", library="transformers", model_type="bert",
    device=given["device"],
)
scenario = TrainingConfig(
    max_steps=given["steps"], warmup_steps=given["warmup_steps"],
    dataset_shapes={"dataset_size": given["batch_size"] * given["steps"], "sequence_length": given["length"]},
    training_arguments={
        "per_device_train_batch_size": given["batch_size"], "max_steps": given["steps"],
        "bf16": given["precision"] == "bf16", "output_dir": given["scratch"],
    },
)
config = BenchmarkConfig(name="side", launcher=InlineConfig(), scenario=scenario, backend=backend)
# Its own samples/s divide the samples of all steps by the mean time of one, so they grow with the number of steps.
print(json.dumps(given["batch_size"] / Benchmark.launch(config).train.latency.mean))
"""
)
IMPLEMENTATIONS = ("bertbench", "hf", "hf-trainer")
SIDES = {
    "bertbench": "bertbench",
    "hf": "Hugging Face's model in bertbench's loop",
    "hf-trainer": "Trainer, measured by bertbench",
    "trainer": "Trainer, measured by a script",
    "optimum": "optimum-benchmark",
}


def of_bertbench(implementation: str, options: argparse.Namespace, scratch: Path) -> float:
    """Return samples/s of one trial."""
    command = [
        sys.executable, "-m", "bench.cli.main", "throughput", "classify", "--preset", options.preset,
        "--implementations", implementation, "--batch-sizes", str(options.batch_size),
        "--seq-lens", str(options.length),
        "--precisions", options.precision, "--devices", "1", "--device", options.device, "--padding", "fixed",
        "--rounds", "1", "--start", str(WARMUP_STEPS), "--stop", str(options.steps), "--out", str(scratch), "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    (row,) = json.loads(done.stdout)["rows"]
    return float(row["samples_per_second"])


def of_program(python: str, program: str, options: argparse.Namespace, scratch: Path) -> float:
    """Return samples/s that the last line of a program says."""
    shape = preset(options.preset)
    given = {
        "shape": {
            "vocab_size": shape.vocab_size, "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
            "intermediate_size": shape.intermediate_size,
        },
        "batch_size": options.batch_size, "length": options.length, "steps": options.steps, "device": options.device,
        "precision": options.precision, "warmup_steps": WARMUP_STEPS, "scratch": str(scratch),
    }  # fmt: skip
    command = [python, "-c", program, json.dumps(given)]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a side ended with {done.returncode}:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def measured(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return samples/s of every side and round."""
    optimum = environment("optimum-benchmark-0.6.0", OPTIMUM)
    found = defaultdict(list)
    for number in range(options.rounds):
        for side in SIDES:
            with tempfile.TemporaryDirectory() as folder:
                scratch = Path(folder)
                if side in IMPLEMENTATIONS:
                    speed = of_bertbench(side, options, scratch / "run")
                elif side == "trainer":
                    speed = of_program(sys.executable, TRAINER, options, scratch)
                else:
                    speed = of_program(optimum, BY_OPTIMUM, options, scratch)
            found[side].append(speed)
            print(f"round {number + 1} of {options.rounds}: {side} {speed:.2f} samples/s", flush=True)
    return found


def table(found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return a row per side: the median over rounds, its range, and the median of bertbench's ratio to it per round."""
    rows = []
    for side, speeds in found.items():
        ratios = [own / other for own, other in zip(found["bertbench"], speeds, strict=True)]
        rows.append({"side": SIDES[side], "samples_per_second": statistics.median(speeds), "low": min(speeds),
                     "high": max(speeds), "bertbench_ratio": statistics.median(ratios)})  # fmt: skip
    return rows


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bench-trainers"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preset", default="mini")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    rows = table(measured(options))
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    lines = [
        "| side | samples/s | lowest to highest | bertbench is faster by |", "|---|---|---|---|",
        *(f"| {row['side']} | {row['samples_per_second']:.2f} | {row['low']:.2f} to {row['high']:.2f} | "
          f"{row['bertbench_ratio']:.2f} x |" for row in rows),
    ]  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "trainers.json").write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
    (options.out / "trainers.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
