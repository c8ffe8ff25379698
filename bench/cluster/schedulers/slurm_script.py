"""The text of a Slurm batch script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.cluster.schedulers.base import Group
from bench.cluster.schedulers.words import PATIENT_SIGNALS, PATIENT_TORCHRUN, quote


@dataclass(frozen=True, slots=True)
class Array:
    """The indices of a job array."""

    indices: str
    """As sbatch takes them."""
    grid: Mapping[str, tuple[str, ...]]
    """Values by name, whose combinations the indices count; empty for a plain array."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What a batch script does."""

    directives: Sequence[str]
    """Options of sbatch, in order."""
    groups: Sequence[Group]
    gpu_type: str | None
    cpus: int | None
    folder: str
    """Where it runs."""
    variables: Mapping[str, str]
    setup: Sequence[str]
    words: Sequence[str]
    """The command, in shell text."""
    array: Array | None
    torchrun: bool
    """Whether torchrun starts the processes of a node."""
    python: str
    prefix: Sequence[str]
    """Words in front of the launcher, those of a container."""
    srun: Sequence[str]
    stops: bool
    """Whether the job is told before its time ends."""
    requeues: int
    """How often it may go back into the queue then."""


def script_text(script: Script) -> str:
    """Return the script."""
    parts = [
        ["#!/usr/bin/env bash", "# Written by `bertbench submit slurm`; hand it over with sbatch."],
        [f"#SBATCH {line}" for line in script.directives],
        [""],
        ["set -euo pipefail"],
        [f"cd {quote(script.folder)}"],
        [f"export {name}={quote(value)}" for name, value in script.variables.items()],
        # What conda and modules run reads variables that are not set.
        ["set +u", *script.setup, "set -u"] if script.setup else [],
        _array_lines(script),
        ["", f"command=({' '.join(script.words)})"],
        _launcher_lines(script),
        _run_lines(script),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def _array_lines(script: Script) -> list[str]:
    if script.array is None:
        return []
    if not script.array.grid:
        return ["", "array_index=$SLURM_ARRAY_TASK_ID", "export array_count=$SLURM_ARRAY_TASK_COUNT"]
    lines = [
        "",
        "# Every combination once; the values of the last name change fastest.",
        "array_index=$SLURM_ARRAY_TASK_ID",
    ]
    divisor = 1
    for name, values in reversed(list(script.array.grid.items())):
        chosen = f"${{values[array_index / {divisor} % {len(values)}]}}"
        lines += [
            f"values=({' '.join(map(quote, values))})",
            f'sweep_{name}="{chosen}"',
            f'echo "{name}: $sweep_{name}"',
        ]
        divisor *= len(values)
    return [*lines, f"export array_count={divisor}"]


def _launcher_lines(script: Script) -> list[str]:
    prefix = [quote(word) for word in script.prefix]
    if not script.torchrun:
        return [
            f"launcher=({' '.join(prefix)})",
            r"""node=exec$(printf ' %q' "${launcher[@]}" "${command[@]}")""",
        ]
    nodes = sum(group.nodes for group in script.groups)
    stub = [
        *prefix,
        quote(script.python),
        "-c",
        quote(PATIENT_TORCHRUN),
        *map(_in_quotes, PATIENT_SIGNALS),
        "--nnodes",
        str(nodes),
    ]
    return [
        "",
        "# The first node is where the others meet; NodeAddr is the address by which Slurm itself reaches it.",
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        r"""address=$(scontrol show node "${hosts[0]}" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')""",
        "port=$((15000 + SLURM_JOB_ID % 15000))  # below the ports that systems hand out, and another one for each job",
        f"launcher=({' '.join(stub)})",
        'launcher+=(--master-addr "${address:-${hosts[0]}}" --master-port "$port")',
        "# What a node runs; $1 is how many processes it starts. SLURM_NODEID counts over all components of a job.",
        *_threads(script),
        r"""node+=exec$(printf ' %q' "${launcher[@]}")""",
        "node+=' --node-rank $SLURM_NODEID --nproc-per-node $1'",
        r"""node+=$(printf ' %q' "${command[@]}")""",
    ]


def _threads(script: Script) -> list[str]:
    """Share the cores of a node among its processes: torchrun gives each a single thread where nothing is said."""
    if not script.cpus or "OMP_NUM_THREADS" in script.variables:
        return ["node=''"]
    return [f"node='export OMP_NUM_THREADS=$(({script.cpus} > $1 ? {script.cpus} / $1 : 1)); '"]


def _run_lines(script: Script) -> list[str]:
    srun = "srun " + " \\\n  : ".join(_component(script, number) for number in range(len(script.groups)))
    if not script.stops:
        return ["", srun]
    job = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if script.array else "$SLURM_JOB_ID"
    lines = [
        "",
        "# USR1 comes before the time limit: the processes get SIGTERM, save and end.",
        "stopped='' interrupted=''",
        "stop() {",
        "    stopped=yes interrupted=yes",
        '    echo "the time limit is near: SIGTERM to all processes"',
        f'    scancel --signal=TERM "{job}" || true',
        "}",
        "trap stop USR1",
        f"{srun} &",
        "step=$!",
        "while true; do",
        "    interrupted='' status=0",
        '    wait "$step" || status=$?',
        "    [[ -n $interrupted ]] || break",
        "done",
    ]
    if script.requeues:
        lines += [
            f"if [[ -n $stopped && $status == 0 ]] && ((${{SLURM_RESTART_COUNT:-0}} < {script.requeues})); then",
            '    echo "back into the queue"',
            f'    scontrol requeue "{job}"',
            "fi",
        ]
    return [
        *lines,
        'if [[ -n $stopped ]]; then echo "stopped before the time limit, exit code $status"; fi',
        'exit "$status"',
    ]


def _in_quotes(word: str) -> str:
    """Commas between the elements of an array look like a slip where they are not quoted."""
    return f'"{word}"' if "," in word else word


def _component(script: Script, number: int) -> str:
    """The options and the program of one component of srun's command."""
    group = script.groups[number]
    words = [f"--het-group={number}"] if len(script.groups) > 1 else []
    words += [f"--nodes={group.nodes}", f"--ntasks={group.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    if group.gpus:
        words.append(quote(f"--gpus-per-node={script.gpu_type + ':' if script.gpu_type else ''}{group.gpus}"))
    words += [f"--cpus-per-task={script.cpus}"] if script.cpus else []
    words += [quote(word) for word in script.srun]
    return " ".join([*words, "bash", "-c", '"$node"', "node", str(group.processes)])
