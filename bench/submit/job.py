"""A job of a cluster, as the options of `bertbench submit` describe it."""

import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

from cyclopts import Parameter, validators

from bench.sweep.options import COUNT
from common.errors import UsageError
from common.flags import Positional, flag

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_MOUNT = re.compile(r"(.+):(/[^:,]*?)(:ro)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What a kind of cluster needs and has."""

    template: str
    check: str
    """Command that has the cluster check a file, whose name follows."""
    submit: str
    """Command that submits a file, whose name follows."""
    remedy: str
    """Remedy if the tool is not installed."""
    refused: tuple[str, ...] = ()
    """Options of a job that the cluster does not have."""
    container: bool = True
    """Whether a job needs an image."""

    @property
    def tool(self) -> str:
        """Name of the program."""
        return self.submit.partition(" ")[0]


CLUSTERS = {
    "slurm": Cluster(
        template="slurm.sbatch.jinja",
        check="sbatch --test-only",
        submit="sbatch",
        remedy="write the script with --out FILE for a login node",
        container=False,
    ),
    "kubernetes": Cluster(
        template="jobset.yaml.jinja",
        check="kubectl apply --dry-run=server -f",
        submit="kubectl apply -f",
        remedy="install kubectl and give it access to the cluster",
    ),
    "azureml": Cluster(
        template="azureml.yaml.jinja",
        check="az ml job validate --file",
        submit="az ml job create --file",
        remedy="install the Azure CLI and its extension (az extension add --name ml)",
        refused=("memory_gib", "cpus", "restarts"),
    ),
}


class Mount(NamedTuple):
    """A folder that the nodes share."""

    source: str
    path: str
    read_only: bool


class NodeGroup(NamedTuple):
    """Adjacent nodes with the same number of GPUs."""

    nodes: int
    gpus: int
    first: int
    """Rank of the first node."""
    counts: tuple[int, ...]
    """Processes of one of these nodes, then of each other node of the job in the order of their ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterJob:
    """Resources and environment of a job."""

    cluster: Annotated[Positional[str], Parameter(choices=tuple(CLUSTERS))]
    """Kind of cluster: slurm, kubernetes or azureml."""
    name: str = "bertbench"
    """Name of the job."""
    queue: str | None = None
    """Partition of Slurm, local queue of Kueue on Kubernetes, compute cluster of AzureML; default the cluster's."""
    minutes: Annotated[int | None, COUNT] = None
    """Time limit in min; default the cluster's."""
    restarts: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 0
    """Most times that the job starts again: on Slurm after its time limit, on Kubernetes after any failure."""
    nodes: Annotated[int | None, COUNT] = None
    """Number of nodes; default the number of counts in --gpus-per-node, otherwise 1."""
    gpus_per_node: tuple[int, ...] = ()
    """GPUs per node: one number for all nodes, or on Slurm and Kubernetes one for each; default no GPUs and one
    process per node."""
    cpus: Annotated[int | None, COUNT] = None
    """CPU cores per node; default the cluster's."""
    memory_gib: Annotated[int | None, COUNT] = None
    """Memory per node in GiB; default the cluster's."""
    image: str | None = None
    """Container image with bertbench: of a registry, on Slurm also FILE.sif, on AzureML also azureml:NAME@latest;
    default no container on Slurm."""
    mounts: tuple[str, ...] = ()
    """SOURCE:PATH or SOURCE:PATH:ro. SOURCE is a folder of the node, on Kubernetes also a PersistentVolumeClaim, on
    AzureML the URI of a folder; default none."""
    env: tuple[str, ...] = ()
    """Environment variables NAME=VALUE, in plain text in the file; default none."""
    no_launch: bool = False
    """Run COMMAND once per node, without `bertbench launch`."""

    def __post_init__(self) -> None:
        """Refuse options that the cluster does not have or needs, and values that the files cannot hold."""
        cluster = CLUSTERS[self.cluster]
        for name in cluster.refused:
            if getattr(self, name):
                raise UsageError("option-not-applicable", f"{self.cluster} has no {flag(name)}: omit it")
        if self.image is None and (cluster.container or self.mounts):
            subject = "--mounts" if self.mounts else self.cluster
            raise UsageError("option-missing", f"{subject} needs a container: give --image")
        counts = self.gpus_per_node
        is_unequal = self.cluster == "azureml" and len({*counts}) > 1  # its clusters have equal nodes
        if min(counts, default=0) < 0 or len(counts) not in (0, 1, self.node_count) or is_unequal:
            needed = f"one number for all nodes, or, except on AzureML, one for each of {self.node_count}"
            raise UsageError("option-value", f"--gpus-per-node {' '.join(map(str, counts))}: give {needed}")
        for option, text in (("--name", self.name), ("--queue", self.queue)):
            if text is not None and not _NAME.fullmatch(text):
                raise UsageError("option-value", f"{option} {text!r}: use letters, digits, dots, commas, - and _")
        for pattern, option, words, form in (
            (_VARIABLE, "--env", self.env, "NAME=VALUE"),
            (_MOUNT, "--mounts", self.mounts, "SOURCE:PATH or SOURCE:PATH:ro with an absolute PATH"),
        ):
            for word in words:
                if not pattern.fullmatch(word):
                    raise UsageError("option-value", f"{option} {word!r} is not {form}")

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return self.nodes or max(1, len(self.gpus_per_node))

    @property
    def groups(self) -> list[NodeGroup]:
        """The nodes in the order of their ranks; one process per GPU, or one per node without GPUs."""
        counts = self.gpus_per_node or (0,)
        gpus = list(counts) * self.node_count if len(counts) == 1 else list(counts)
        processes = [max(1, count) for count in gpus]
        groups = []
        for count, ranks in itertools.groupby(range(len(gpus)), key=gpus.__getitem__):
            first, *more = ranks
            others = processes[:first] + processes[first + 1 :]
            groups.append(NodeGroup(1 + len(more), count, first, (processes[first], *others)))
        return groups

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables by name."""
        return dict(word.split("=", 1) for word in self.env)

    @property
    def folders(self) -> list[Mount]:
        """The mounts, taken apart."""
        matches = (_MOUNT.fullmatch(word) for word in self.mounts)
        return [Mount(found[1], found[2], found[3] is not None) for found in matches if found]


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
