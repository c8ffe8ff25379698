"""Render the file of a job from a template per cluster."""

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.submit.job import CLUSTERS, ClusterJob

_JOIN_SECONDS = 600
"""Time within which all nodes must have started; one may still pull the image."""


def render(job: ClusterJob, command: Sequence[str]) -> str:
    """Return the file of a job whose nodes run `command`, a program and its arguments."""
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 # nosec B701 # HTML escapes would damage commands
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"sh": shlex.quote, "yaml": _yaml, "no_expansion": lambda text: text.replace("$", "$$")}
    cluster = CLUSTERS[job.cluster]
    return environment.get_template(cluster.template).render(
        job=job, cluster=cluster, line=partial(_node_line, job, command), bin=str(Path(sys.executable).parent)
    )


def _node_line(job: ClusterJob, command: Sequence[str], processes: str, others: str, rank: str) -> str:
    """Return the shell line that runs a command on a node.

    `processes`, `others` and `rank` are shell words; the variables MASTER_ADDR and MASTER_PORT name node 0.
    """
    if job.no_launch:
        return shlex.join(command)
    words = ["bertbench launch --here-gpus", processes]
    if job.node_count > 1:
        words += ["--other-gpus", others, f"--join-timeout {_JOIN_SECONDS}", f'--node-rank "{rank}"']
        words += ['--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"']
    if command[0] != "bertbench" and not command[0].endswith(".py"):
        words.append("--no-python")
    return " ".join([*words, "--", shlex.join(command)])


def _yaml(value: str | list[str]) -> str:
    """Return text, or a list of texts, as YAML in one line that every version of YAML reads as text."""
    import yaml

    return yaml.safe_dump(
        value, default_style='"', default_flow_style=True, width=float("inf"), allow_unicode=True
    ).rstrip("\n")
