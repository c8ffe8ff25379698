"""Scores tools on the truth corpus: ours, and those that install from PyPI and read its files.

    python tests/slow/bench_truth.py [--out DIR] [--seed N]

Writes the corpus with `bertbench truth-corpus`, asks each tool in a process and an environment of its own for what it
knows of the recordings, and scores the answers with `bertbench truth-corpus --score`. An answer is a number that the
tool returns, or a sum or a ratio of such numbers; where a tool has options that make it more exact, they are used. No
tool sees the manifest. Results go to DIR/truth-corpus.json and .md. Ends with 1 where ours has a wrong answer or none.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bench_hta

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.corpus_answers import answers  # noqa: E402

OURS = "bertbench"

HTA = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis

found = {}
for name in ("kineto", "kineto-short", "kineto-queue", "kineto-ranks", "kineto-clocks"):
    trace = TraceAnalysis(trace_dir=sys.argv[1] + "/" + name, include_last_profiler_step=True)
    ranked = len(trace.t.get_all_traces()) > 1
    overlap = trace.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    kernels = trace.get_gpu_kernel_breakdown(visualize=False, duration_ratio=1.0, num_kernels=10**6,
                                             include_memory_kernels=True)[1]
    for row in trace.get_temporal_breakdown(visualize=False).to_dict("records"):
        rank = row["rank"]
        of = f"[rank {rank}]" if ranked else ""
        compute = "launched_compute_ms" if name == "kineto-queue" else "compute_ms"
        found[f"{name}:{compute}{of}"] = row["compute_time(us)"] / 1e3
        own = kernels[kernels["rank"] == rank]
        talk = own[own["kernel_type"] == "COMMUNICATION"]["sum (us)"].sum() / 1e3  # all-reduces do not overlap
        if talk:
            share = overlap[rank] / 100
            found[f"{name}:communication_ms{of}"] = talk
            found[f"{name}:overlapped_ms{of}"] = talk * share
            found[f"{name}:exposed_ms{of}"] = talk * (1 - share)
        if ranked:
            continue
        found[f"{name}:work_span_ms"] = row["kernel_time(us)"] / 1e3
        found[f"{name}:steps"] = len(trace.get_profiler_steps())
        if name == "kineto-queue":
            continue
        found[f"{name}:idle_in_work_span_ms"] = row["idle_time(us)"] / 1e3
        found[f"{name}:overlap_share"] = share
        found[f"{name}:copy_ms"] = own[own["kernel_type"] == "MEMORY"]["sum (us)"].sum() / 1e3
        found[f"{name}:exposed_copy_ms"] = row["non_compute_time(us)"] / 1e3 - talk * (1 - share)
        for kernel in own[own["kernel_type"] != "MEMORY"].to_dict("records"):
            found[f"{name}:kernel_total_ms[{kernel['name']}]"] = kernel["sum (us)"] / 1e3
            found[f"{name}:kernel_calls[{kernel['name']}]"] = round(kernel["sum (us)"] / kernel["mean (us)"])
    if ranked:
        try:
            late = trace.get_potential_stragglers(num_candidates=1)
            found[f"{name}:last_rank"] = float(late[0])
        except Exception as error:
            print(f"{name}: get_potential_stragglers: {type(error).__name__}: {error}", file=sys.stderr)
json.dump(found, sys.stdout)
"""
TENSORBOARD = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from torch_tb_profiler.profiler.data import RunProfileData

found = {}
for name in ("kineto", "kineto-short", "kineto-queue", "kineto-ranks", "kineto-clocks"):
    for rank in range(4 if name in ("kineto-ranks", "kineto-clocks") else 1):
        path = f"{sys.argv[1]}/{name}/rank{rank}.pt.trace.json.gz"
        run = RunProfileData.parse(f"rank{rank}", None, path, sys.argv[2])
        of = f"[rank {rank}]" if name in ("kineto-ranks", "kineto-clocks") else ""
        total = {key: sum(getattr(step, key) for step in run.comm_overlap_costs) / 1e3
                 for key in ("computation", "communication", "overlap")}
        if total["communication"]:
            found[f"{name}:compute_ms{of}"] = total["computation"]
            found[f"{name}:communication_ms{of}"] = total["communication"]
            found[f"{name}:overlapped_ms{of}"] = total["overlap"]
            found[f"{name}:exposed_ms{of}"] = total["communication"] - total["overlap"]
        if of:
            continue
        found[f"{name}:steps"] = len(run.steps_names)
        window = sum(step.costs[-1] for step in run.steps_costs) / 1e3
        found[f"{name}:window_ms"] = window
        if name == "kineto-queue":
            continue
        lengths = sorted(step.costs[-1] for step in run.steps_costs)
        half = len(lengths) // 2
        found[f"{name}:step_time_median_ms"] = (lengths[half] + lengths[~half]) / 2e3
        found[f"{name}:overlap_share"] = total["overlap"] / total["communication"]
        metrics = run.gpu_metrics_parser
        found[f"{name}:kernel_utilization"] = metrics.gpu_utilization[0]
        found[f"{name}:kernel_busy_ms"] = metrics.gpu_utilization[0] * window
        found[f"{name}:sm_weighted_utilization"] = metrics.avg_approximated_sm_efficiency_per_device[0]
        found[f"{name}:exposed_copy_ms"] = sum(step.costs[1] for step in run.steps_costs) / 1e3
        for kernel, row in run.kernel_stat.iterrows():
            found[f"{name}:kernel_calls[{kernel}]"] = int(row["count"])
            found[f"{name}:kernel_total_ms[{kernel}]"] = float(row["sum"]) / 1e3
json.dump(found, sys.stdout)
"""
NSYS_AI = """
import contextlib, json, subprocess, sys
from nsys_ai.overlap import overlap_analysis
from nsys_ai.profile import Profile
from nsys_ai.summary import gpu_summary

def skill(name, path, *more):
    command = [sys.executable, "-m", "nsys_ai", "skill", "run", name, path, "--format", "json", *more]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

found = {}
with contextlib.redirect_stdout(sys.stderr):
    for name in ("nsys", "nsys-short", "nsys-queue"):
        path = f"{sys.argv[1]}/{name}/rank0.sqlite"
        profile = Profile(path)
        parts, summary = overlap_analysis(profile, 0), gpu_summary(profile, 0)
        bubbles = skill("pipeline_bubble_metrics", path)[0]
        found[f"{name}:steps"] = len(skill("iteration_timing", path, "-p", "marker=step"))
        found[f"{name}:work_span_ms"] = bubbles["total_span_ms"]
        if name == "nsys-queue":
            found[f"{name}:launched_compute_ms"] = parts["compute_only_ms"]
            continue
        found[f"{name}:idle_in_work_span_ms"] = bubbles["bubble_ms"]
        copies = skill("memory_transfers", path)[0]
        found[f"{name}:copy_ms"], found[f"{name}:copied_bytes"] = copies["total_ms"], copies["total_mb"] * 1e6
        talk = parts["nccl_only_ms"] + parts["overlap_ms"]
        found[f"{name}:compute_ms"] = parts["compute_only_ms"] + parts["overlap_ms"]
        found[f"{name}:kernel_busy_ms"] = parts["compute_only_ms"] + talk
        found[f"{name}:communication_ms"] = talk
        found[f"{name}:overlapped_ms"] = parts["overlap_ms"]
        found[f"{name}:exposed_ms"] = parts["nccl_only_ms"]
        found[f"{name}:overlap_share"] = parts["overlap_ms"] / talk
        for kernel in summary["top_kernels"]:
            found[f"{name}:kernel_calls[{kernel['name']}]"] = kernel["count"]
            found[f"{name}:kernel_total_ms[{kernel['name']}]"] = kernel["total_ms"]
json.dump(found, sys.stdout)
"""
TOOLS = {
    "HTA 0.5.0": (bench_hta.HTA, HTA),
    "TraceInsight 0.6.1": (("traceinsight==0.6.1", "pandas<3"), HTA),
    "torch-tb-profiler 0.4.3": (("torch-tb-profiler==0.4.3",), TENSORBOARD),
    "nsys-ai 0.3.0": (("nsys-ai==0.3.0",), NSYS_AI),
}
"""Requirements of the environment and program, by tool. TraceInsight is HTA's successor, with the same interface."""

NOTES = {
    "torch-tb-profiler 0.4.3": "It finds the kernel of a collective by the id of the `nccl:all_reduce` annotation. In "
    "traces of PyTorch 2 the kernel has another id, so it counts as computation, and all communication as overlapped.",
    "nsys-ai 0.3.0": "It rounds to 0.01 ms, which is more than 0.1 % of the short recording's times.",
}
"""Causes of wrong answers, from the tools' sources."""


def main() -> None:
    """Write the corpus, score every tool in turn, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/truth-corpus"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="truth-corpus-") as scratch:
        corpus = Path(scratch) / "corpus"
        _bertbench("truth-corpus", corpus, "--seed", given.seed)
        scores = [_scored(OURS, answers(corpus, _bertbench), corpus)]
        for tool, (requirements, program) in TOOLS.items():
            scores.append(_scored(tool, _asked(tool, requirements, program, corpus), corpus))
    about = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "seed": given.seed,
        "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
    }
    document = {"schema_version": 1, "about": about, "scores": scores}
    (given.out / "truth-corpus.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (given.out / "truth-corpus.md").write_text(_markdown(about, scores), encoding="utf-8")
    print(_markdown(about, scores))
    total = scores[0]["total"]
    sys.exit(int(total["right"] < total["facts"]))


def _bertbench(*words: object) -> Any:
    """Run a command in a process of its own, as an outsider would, and return what it prints as JSON."""
    command = [sys.executable, "-m", "bench.cli.main", *map(str, words), "--json"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def _asked(tool: str, requirements: tuple[str, ...], program: str, corpus: Path) -> dict[str, float]:
    """Return the answers of a tool, read by its program in its environment."""
    python = bench_hta.environment(tool.lower().replace(" ", "-"), requirements)
    with tempfile.TemporaryDirectory(prefix="truth-tool-") as scratch:
        copy = Path(scratch) / "corpus"
        subprocess.run(["cp", "-r", str(corpus), str(copy)], check=True)
        (copy / "manifest.json").unlink()
        environment = {**os.environ, "PYTHONPATH": "", "HTA_DISABLE_NS_ROUNDING": "1"}
        done = subprocess.run(
            [python, "-c", program, str(copy), scratch], cwd=scratch, env=environment, capture_output=True, text=True
        )
    print(f"{tool}: exit code {done.returncode}\n{done.stderr[-600:]}", file=sys.stderr)
    done.check_returncode()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _scored(tool: str, given: Mapping[str, float | None], corpus: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="truth-score-") as scratch:
        path = Path(scratch) / "answers.json"
        path.write_text(json.dumps({"tool": tool, "answers": given}))
        found: dict[str, Any] = _bertbench("truth-corpus", corpus, "--score", path)
    found["facts"] = [fact for fact in found["facts"] if fact["verdict"] == "wrong"]
    return found


def _markdown(about: Mapping[str, Any], scores: list[dict[str, Any]]) -> str:
    lines = [
        f"# Scores on the truth corpus, {about['date']}",
        "",
        f"`python tests/slow/bench_truth.py --seed {about['seed']}`, Python {about['python']}. A cell has right / "
        "wrong answers. [Verification of the measurements](../explanation/truth.md) explains the corpus and the rules.",
        "",
        f"| kind of fact | facts | {' | '.join(found['tool'] for found in scores)} |",
        "|---" * (2 + len(scores)) + "|",
    ]
    for place, kind in enumerate([*scores[0]["kinds"], {"kind": "all", **scores[0]["total"]}]):
        rows = [[*found["kinds"], found["total"]][place] for found in scores]
        cells = [f"{row['right']} / {row['wrong']}" for row in rows]
        lines.append(f"| {kind['kind']} | {kind['facts']} | {' | '.join(cells)} |")
    for found in scores:
        if found["facts"]:
            lines += ["", f"## Wrong answers of {found['tool']}", "", NOTES.get(found["tool"], ""), ""]
            lines += ["| fact | unit | truth | answer | error |", "|---|---|---|---|---|"]
        for fact in found["facts"]:
            error = "" if fact["relative_error"] is None else f"{100 * fact['relative_error']:+.2f} %"
            numbers = f"{fact['truth']:.6g} | {fact['answer']:.6g}"
            lines.append(f"| `{fact['id']}` | {fact['unit']} | {numbers} | {error} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
