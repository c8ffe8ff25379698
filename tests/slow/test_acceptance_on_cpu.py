"""Every step of gpu-acceptance, run for real with the CPU and the smallest model in place of the GPU and its models."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import support.acceptance_steps
from support.acceptance_script import acceptance
from support.acceptance_steps import FP8, LENGTHS, Step, steps

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2400)]
# What a CPU lacks (FP8), or is compiled for minutes there. With one model, batch and data most sweeps ask for trials
# that have ended already: that a part can be repeated is seen too, and the whole takes some minutes.
IN_PLACE = {
    "cuda": "cpu", FP8: "unpad", "unpad+compile": "auto", "hf-compiled": "hf",
    LENGTHS: "synthetic", "bf16": "fp32",
}  # fmt: skip
VALUES = {
    "--preset": ["tiny"], "--batch-size": ["4"], "--max-seconds": ["1"],
    "--timeout-seconds": ["300"], "--seq-lens": ["128"], "--seq-len": ["128"],
}  # fmt: skip


def on_cpu(step: Step) -> Step:
    """Return the step with another device, the smallest model and more time; all other words are as they are."""
    words: list[str] = []
    option = ""
    for word in step.command:
        if word.startswith("--"):
            option = word
            words.append(word)
            if word in VALUES:
                words += VALUES[word]
            continue
        if option in VALUES:
            continue
        if option == "--batch-sizes":
            word = "32" if step.name == "max batch" else "4"
        words.append(IN_PLACE.get(word, word))
    if step.name == "max batch":
        words += ["--memory-limit-gib", "0.9"]
    if set(words) & {"throughput", "profile", "speed-of-light"}:
        words += ["--threads", "1"]
    if step.name.startswith("throughput"):
        words += ["--start", "1", "--stop", "4"]
    if step.name == "correctness":
        words += ["--device", "cpu"]
        words[words.index("--seconds") + 1] = "900"
    return step._replace(command=words, limit=900, expected=0)


def test_every_step_runs_and_lacks_only_what_a_cpu_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support.acceptance_steps, "TOTAL_SECONDS", 3600.0)
    out = tmp_path / "out"
    about = {"python": "3", "torch": "2", "cuda": None, "gpus": [], "commit": "c"}
    assert acceptance().run_all(out, [on_cpu(step) for step in steps(out / "run")], about) == 1
    record = json.loads((out / "acceptance.json").read_text())
    found = {step["name"]: step for step in record["steps"]}
    why = {name: step["why"] for name, step in found.items()}
    codes = {name: step["exit_code"] for name, step in found.items()}

    for name in [name for name in found if name.startswith("throughput")]:
        rows = found[name]["figures"]["rows"]
        assert codes[name] == 0 and {row["status"] for row in rows} == {"ok"}, why[name]
        lacking = [row for row in rows if row["joules_per_sample"] is None]
        assert why[name].count("joules_per_sample") == len(lacking), "energy is missed with its reason, and only it"
        assert why[name].count(": no ") == len(lacking)
    measured = {row["trial_id"] for name in found if "throughput" in name for row in found[name]["figures"]["rows"]}
    assert len(record["throughput"]) == len(measured) == 3, "with one preset the parts share their trials"

    (search,) = found["max batch"]["figures"]["max_batch"]
    assert found["max batch"]["outcome"] == "ok", why["max batch"]
    assert [search["fails_at"], "oom"] in search["tried"] and search["fails_at"] - search["micro_batch_size"] <= 32
    for name in ("speed-of-light bf16", "speed-of-light fp8"):
        assert found[name]["outcome"] == "ok", why[name]

    assert codes["profile torch"] == 0 and why["profile torch"].startswith("no GPU kernels"), why["profile torch"]
    assert found["profile ncu"]["outcome"] in ("absent", "failed") and codes["profile ncu"] == 2
    if shutil.which("nsys") is None:
        assert found["profile nsys"]["outcome"] == "absent"
    else:
        assert codes["profile nsys"] in (0, 2) and why["profile nsys"]
    assert "nvtx" in why["profile nvtx emit"].lower() or found["profile nvtx emit"]["outcome"] == "ok"
    assert found["doctor"]["outcome"] == found["report"]["outcome"] == "ok"
    checks = found["correctness"]["figures"]
    assert found["correctness"]["outcome"] == "ok" and "attention fp32" in checks["passed"] and not checks["failed"]
    assert "cuda graph replay" in checks["skipped"] and found["tests"]["outcome"] == "apart"
    assert (out / "run/report/report.html").is_file()
    with tarfile.open(out / "acceptance.tar.gz") as tar:
        names = tar.getnames()
    assert {"acceptance.json", "run/report/report.html", "run/results.csv"} <= set(names) and record["left_out"] == []
    assert any(name.endswith(".json.gz") for name in names) and (out / "acceptance.tar.gz").stat().st_size < 16 * 2**20
    page = (out / "acceptance.md").read_text()
    assert (
        "| bertbench unpad | tiny 128 |" in page
        and "## Commands" in page
        and "out of memory" not in page.split("## The largest batch")[0]
    )
