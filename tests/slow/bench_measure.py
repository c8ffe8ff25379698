"""How exact `bertbench measure` is, and what it costs the script.

    python tests/slow/bench_measure.py accuracy           step times beside those of the scripts' own clocks
    python tests/slow/bench_measure.py overhead [rounds]  the same loop with and without `measure`, in turn
    python tests/slow/bench_measure.py hook [steps]       CPU time of a step with and without the hook, in one process
    python tests/slow/bench_measure.py cost [steps]       CPU time inside the hook's functions

The scripts are those of tests/support, unchanged. `overhead` compares medians of the script's own clock, of wall time
and of CPU time (other work on the machine moves the first far more). Intervals are those of 2,000 resamples: of the
paired ratios of rounds, or of the steps.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SUPPORT = Path(__file__).resolve().parents[1] / "support"
BERTBENCH = [sys.executable, "-m", "bench.cli.main"]
LOOP = [sys.executable, str(SUPPORT / "script_plain_loop.py")]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(SUPPORT.parents[1]), os.environ.get("PYTHONPATH")])),
}


def run(words: list[str], folder: str) -> str:
    """Run a command in a folder; return its output."""
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return done.stdout


def measured(script: list[str], folder: str) -> dict[str, Any]:
    """Measure a script; return the result."""
    found: dict[str, Any] = json.loads(run([*BERTBENCH, "measure", "--json", "--out", "run", "--", *script], folder))
    return found


def clock(folder: str) -> list[list[float]]:
    """Return the times after each step that the script itself took, one list per clock."""
    times = json.loads((Path(folder) / "own.json").read_text())
    return times if isinstance(times[0], list) else [times]


def accuracy() -> None:
    """Print a table of step times."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    trainer = [
        sys.executable, str(SUPPORT / "script_mlm_trainer.py"), "--train_file", "lines.txt", "--output_dir", "out",
        "--max_steps", "200", "--per_device_train_batch_size", "16", "--report_to", "none", "--save_strategy", "no",
        "--disable_tqdm", "true", "--clock_file", "own.json",
    ]  # fmt: skip
    loop = ["--steps", "200", "--batch", "16", "--threads", "1", "--clock", "own.json"]
    lightning = [sys.executable, str(SUPPORT / "script_lightning.py"), *loop]
    scripts = {
        "plain loop": [*LOOP, *loop],
        "Hugging Face's Trainer": [*trainer, "--threads", "1"],
        "Trainer, 4 micro-steps": [*trainer, "--threads", "1", "--gradient_accumulation_steps", "4"],
        "torchrun, 2 ranks": [*torchrun, *LOOP[1:], *loop],
        "Lightning's Trainer": lightning,
    }
    if subprocess.run([sys.executable, "-c", "import lightning"], env=ENVIRONMENT, capture_output=True).returncode:
        print("Lightning is not installed: left out")
        del scripts["Lightning's Trainer"]
    print(f"{'script':24}{'steps':>6}{'own clock ms':>14}{'measure ms':>12}{'of medians %':>14}{'of means %':>12}")
    for name, script in scripts.items():
        with tempfile.TemporaryDirectory() as folder:
            words = np.random.default_rng(0).integers(0, 300, (2000, 24))
            Path(folder, "lines.txt").write_text("\n".join(" ".join(f"w{word}" for word in row) for row in words))
            result = measured(script, folder)
            own = 1000 * np.diff(clock(folder)[0])
            (steps,) = Path(folder).glob("run/trials/*/steps-0.csv")
            found = np.genfromtxt(steps, delimiter=",", names=True)["step_time_ms"][1:]
            assert len(own) == len(found)
            window = slice(max(result["window_start"] - 1, 0), result["window_stop"] - 1)
            medians, means = (100 * (of(found[window]) / of(own[window]) - 1) for of in (np.median, np.mean))
            print(
                f"{name:24}{len(own[window]):6}{np.median(own[window]):14.3f}{np.median(found[window]):12.3f}"
                f"{medians:14.3f}{means:12.3f}",
                flush=True,
            )


def overhead(rounds: int) -> None:
    """Print the ratio of step times with and without `measure`."""
    script = [*LOOP, "--steps", "150", "--batch", "16", "--threads", "1", "--clock", "own.json"]
    found: dict[bool, list[list[float]]] = {True: [], False: []}
    for number in range(rounds):
        for hooked in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                if hooked:
                    measured(script, folder)
                else:
                    run(script, folder)
                found[hooked].append([1000 * float(np.median(np.diff(times)[20:])) for times in clock(folder)])
    generator = np.random.default_rng(0)
    for place, name in enumerate(("wall time", "CPU time")):
        one, other = (np.array([values[place] for values in found[hooked]]) for hooked in (True, False))
        ratios = one / other
        resampled = np.median(ratios[generator.integers(0, rounds, (2000, rounds))], axis=1)
        low, high = np.percentile(resampled, [2.5, 97.5])
        print(
            f"{name}: {np.median(one):.3f} ms with, {np.median(other):.3f} ms without; ratio {np.median(ratios):.4f} "
            f"(95 % interval {low:.4f} to {high:.4f}), {rounds} rounds"
        )


def hook(steps: int) -> None:
    """Print CPU times of single steps with and without the hook, in turn, in one process on one thread."""
    from bench.run.script_hook.on_path.sitecustomize import install
    from records.schema import STEP_COLUMNS

    with tempfile.TemporaryDirectory() as folder:
        install({"folder": folder, "columns": list(STEP_COLUMNS), "schema_version": 1})
        import torch
        from torch.optim import optimizer as optimizers
        from torch.utils.data import DataLoader, TensorDataset, dataloader

        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(64, 2, 256, batch_first=True)  # the model of script_plain_loop.py
        model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        kept = [dict(found) for found in hooks]
        following = dataloader._BaseDataLoaderIter.__next__
        batches = iter(DataLoader(TensorDataset(torch.randn(16 * steps, 32, 64)), batch_size=16))
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(steps):
            hooked = number % 4 in {0, 3}  # with, without, without, with
            for found, own in zip(hooks, kept, strict=True):
                found.clear()
                found.update(own if hooked else {})
            dataloader._BaseDataLoaderIter.__next__ = following if hooked else following.__wrapped__
            began = time.thread_time()
            (x,) = next(batches)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            times[hooked].append(1000 * (time.thread_time() - began))
        one, other = (np.array(times[hooked][20:]) for hooked in (True, False))
        ratios = one / other  # of neighbours: the speed of the machine changes over seconds
        drawn = np.random.default_rng(0).integers(0, len(ratios), (2000, len(ratios)))
        low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
        print(
            f"CPU time of a step: {np.median(one):.3f} ms with, {np.median(other):.3f} ms without; ratio of neighbours "
            f"{np.median(ratios):.4f} (95 % interval {low:.4f} to {high:.4f}), {steps} steps"
        )


def cost(steps: int) -> None:
    """Print the CPU time inside the hook's functions as a share of that of the steps, in one process on one thread."""
    from bench.run.script_hook.on_path.sitecustomize import install
    from records.schema import STEP_COLUMNS

    with tempfile.TemporaryDirectory() as folder:
        kind = type(install({"folder": folder, "columns": list(STEP_COLUMNS), "schema_version": 1}).recorder)
        spent = [0]

        def timed(function: Any) -> Any:
            def call(*args: Any) -> None:
                began = time.thread_time_ns()
                function(*args)
                spent[0] += time.thread_time_ns() - began

            return call

        for name in ("before_step", "after_step", "batch"):
            setattr(kind, name, timed(getattr(kind, name)))
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(64, 2, 256, batch_first=True)  # the model of script_plain_loop.py
        model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        rows = []
        for (x,) in DataLoader(TensorDataset(torch.randn(16 * steps, 32, 64)), batch_size=16):
            began = time.thread_time_ns()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            rows.append((spent[0] / 1e3, (time.thread_time_ns() - began) / 1e3))
            spent[0] = 0
        own, whole = np.array(rows[20:]).T
        drawn = np.random.default_rng(0).integers(0, len(own), (2000, len(own)))
        low, high = np.percentile(100 * own[drawn].sum(axis=1) / whole[drawn].sum(axis=1), [2.5, 97.5])
        print(
            f"{own.mean():.0f} us (median {np.median(own):.0f}) of {whole.mean():.0f} us per step are the hook's: "
            f"{100 * own.sum() / whole.sum():.2f} % (95 % interval {low:.2f} to {high:.2f} %), {len(own)} steps"
        )


if __name__ == "__main__":
    parts = {"accuracy": accuracy, "overhead": overhead, "hook": hook, "cost": cost}
    name, *numbers = sys.argv[1:] or ["accuracy"]
    defaults = {"overhead": [20], "hook": [3000], "cost": [300]}.get(name, [])
    parts[name](*([int(number) for number in numbers] or defaults))  # type: ignore[operator]
