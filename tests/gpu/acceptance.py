"""Everything that needs a CUDA device, in one run under nine minutes: `make gpu-acceptance OUT=<folder>`.

Writes <folder>/acceptance.json (versions, and per step: command, seconds, outcome, figures), the run directory with its
report, and small profiles. A step that fails is a row; the others still run. Exit code 1 when one failed, 2 without a
GPU.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOTAL_SECONDS = 525.0
KEPT_BYTES = 8 * 2**20

LENGTHS = "synthetic:mean254"
# Name, options, longest seconds. A lever that has not been measured on a GPU is off unless it is named.
ROWS: tuple[tuple[str, list[str], float], ...] = (
    (
        "large 512",
        [
            "--preset", "large", "--seq-lens", "512", "--batch-sizes", "32", "--data", LENGTHS,
            "--levers", "auto", "unpad", "fp8+unpad", "--implementations", "bertbench", "hf", "hf-compiled",
        ],
        130,
    ),
    (
        "large 128",
        [
            "--preset", "large", "--seq-lens", "128", "--batch-sizes", "128",
            "--levers", "auto", "compile", "fp8", "--implementations", "bertbench", "hf", "hf-compiled",
        ],
        130,
    ),
    (
        "base",
        [
            "--preset", "base", "--seq-lens", "128", "512", "--batch-sizes", "32",
            "--implementations", "bertbench", "hf", "torch-encoder",
        ],
        80,
    ),
)  # fmt: skip

Step = tuple[str, list[str], float]


def steps(run: Path) -> list[Step]:
    """Return (name, command, longest seconds) of every step, the quickest and most telling first."""
    cli = [sys.executable, "-m", "bench.cli.main"]
    trial = ["--device", "cuda", "--devices", "1"]
    window = ["--start", "10", "--stop", "13"]
    profile = [*cli, "profile", "pretrain", *trial, "--timeout-seconds", "90", "--json"]
    base = ["--preset", "base", "--precisions", "bf16", "--batch-sizes", "32"]
    mini = ["--preset", "mini", "--precisions", "bf16", "--batch-sizes", "16"]
    sweep = [*cli, "throughput", "pretrain", *trial, "--precisions", "bf16", "--rounds", "1", "--max-seconds", "4"]
    sweep += ["--out", str(run), "--json"]
    light = [*cli, "speed-of-light", "pretrain", "--device", "cuda", "--preset", "large", "--precision", "bf16"]
    light += ["--seq-len", "512", "--data", LENGTHS, "--batch-size", "32", "--max-seconds", "20"]
    return [
        ("doctor", [*cli, "doctor", "--json"], 60),
        *((f"throughput {name}", [*sweep, *options], limit) for name, options, limit in ROWS),
        ("speed-of-light", [*light, "--levers", "unpad", "--out", str(run)], 60),
        ("profile torch", [*profile, *base, *window, "--profiler", "torch", "--out", str(run)], 100),
        ("profile nsys", [*profile, *mini, *window, "--profiler", "nsys", "--out", str(run)], 100),
        ("profile ncu", [*profile, *mini, "--start", "3", "--stop", "5", "--profiler", "ncu", "--out", str(run)], 120),
        (
            "profile nvtx emit",
            [*profile, *mini, *window, "--profiler", "nvtx", "--nvtx", "emit", "--out", str(run)],
            60,
        ),
        ("report", [*cli, "report", str(run)], 60),
        ("tests", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"], 240),
    ]


def main(argv: list[str]) -> int:
    """Run every step into the folder argv[0]."""
    if len(argv) != 1 or not argv[0]:
        sys.stderr.write("usage: make gpu-acceptance OUT=<folder>\n")
        return 2
    import torch

    if not torch.cuda.is_available():
        sys.stderr.write("gpu-acceptance needs a CUDA device, and torch finds none here: `bertbench doctor` says why\n")
        return 2
    out = Path(argv[0]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    record: dict[str, Any] = {"command": "make gpu-acceptance", "versions": versions(), "steps": []}
    for name, command, limit in steps(out / "run"):
        left = TOTAL_SECONDS - (time.monotonic() - began)
        record["steps"].append(run_step(name, command, min(limit, left), out / "logs"))
        record["seconds"] = time.monotonic() - began
        (out / "acceptance.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(f"{name}: {record['steps'][-1]['outcome']} in {record['steps'][-1]['seconds']:.0f} s\n")
        sys.stdout.flush()
    keep_small_profiles(out)
    return 1 if any(step["outcome"] not in ("ok", "absent") for step in record["steps"]) else 0


def run_step(name: str, command: list[str], limit: float, logs: Path) -> dict[str, Any]:
    """Run one step; its standard output, where it is JSON, is its figures."""
    logs.mkdir(exist_ok=True)
    began = time.monotonic()
    outcome, figures, code, output, errors = "not reached", None, None, "", ""
    if limit > 1:
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False, errors="replace"
            )
            code, output, errors = done.returncode, done.stdout, done.stderr
            # 2 with "not on PATH": the tool is not installed on this machine, which is no failure of ours.
            outcome = "ok" if code == 0 else "absent" if code == 2 and "not on PATH" in errors else "failed"
        except subprocess.TimeoutExpired as error:
            outcome, errors = "timeout", str(error)
    if outcome == "ok" and name.startswith("profile ") and (lacking := complaint(name, output)):
        outcome, errors = "failed", f"{errors}\n{lacking}"
    (logs / f"{name.replace(' ', '-')}.txt").write_text(f"{output}\n{errors}\n", encoding="utf-8")
    try:
        figures = json.loads(output)
    except ValueError:
        figures = output.strip().splitlines()[-3:]
    return {
        "name": name,
        "command": command[1:],
        "outcome": outcome,
        "exit_code": code,
        "seconds": time.monotonic() - began,
        "said": errors.strip().splitlines()[-5:],
        "figures": figures,
    }


def complaint(name: str, output: str) -> str:
    """Return what a profile lacks although its command ended well; "" where it lacks nothing."""
    profiles = json.loads(output)["profiles"]
    if name == "profile nvtx emit":
        return ""
    for found in profiles:
        if found["problems"]:
            return f"problems: {found['problems']}"
        rows = found["core_utilization"] if name == "profile ncu" else found["compute_utilization"]
        if not rows:
            return "no row of utilisation"
        for row in rows:
            if name == "profile ncu" and not row.get("kernels"):
                return f"no kernel was counted: {row}"
            if name != "profile ncu" and (row["counted"] != "GPU kernels" or not row["compute_utilization"]):
                return f"no GPU kernels: {row}"
    return ""


def versions() -> dict[str, Any]:
    """Return what the figures depend on."""
    import torch

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "gpus": driver.stdout.strip().splitlines(),
        "commit": commit.stdout.strip(),
    }


def keep_small_profiles(out: Path) -> None:
    """Copy the profiles that are small enough to travel into <out>/profiles."""
    for file in sorted((out / "run").glob("trials/profile-*/profile/**/*")):
        # An .nsys-rep holds the environment of the run; the export beside it does not.
        if file.is_file() and file.suffix != ".nsys-rep" and file.stat().st_size <= KEPT_BYTES:
            target = out / "profiles" / file.relative_to(out / "run" / "trials")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
