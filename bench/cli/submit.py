"""`bertbench submit CLUSTER ... -- COMMAND`: write the file of a job for Slurm, Kubernetes or AzureML."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from bench.cli.result import Result
from bench.submit.job import CLUSTERS, ClusterJob, render
from common.atomic import write_text
from common.errors import UsageError
from common.flags import Positional
from common.redact import redact_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitOptions:
    """Write the file of a job for Slurm, Kubernetes (JobSet) or AzureML: `submit CLUSTER [options] -- COMMAND`.

    Every node runs COMMAND under `bertbench launch`, one process per GPU. The file is yours to edit; the tools of the
    cluster check and submit it.

    Examples:
        bertbench submit slurm --nodes 2 --gpus-per-node 8 --minutes 60 -- bertbench train pretrain --data shards
        bertbench submit slurm --gpus-per-node 4 8 8 --out job.sbatch -- train.py  # unequal nodes
        bertbench submit kubernetes --image IMAGE --mounts claim:/data -- bertbench train squad --data /data/squad
    """

    job: ClusterJob
    command: Positional[tuple[str, ...]]
    """Program and its arguments."""
    out: Path | None = None
    """File to write; default the terminal."""


OPTIONS = {"submit CLUSTER -- COMMAND": SubmitOptions}


def run(options: SubmitOptions) -> Result:
    """Print the file or write it; the notes say how to check and submit it."""
    out, job = options.out, options.job
    text = render(job, options.command)
    shown = redact_environment(job.variables)
    secrets = [name for name, value in job.variables.items() if shown[name] != value]
    notes = [f"--env {name} looks like a secret, and the file shows it: use the cluster's store" for name in secrets]
    if out is None:
        return Result(raw=text, notes=notes)
    if out.exists():
        raise UsageError("folder-occupied", f"{out} exists: give another --out, or remove it")
    write_text(out, text)
    cluster, file = CLUSTERS[job.cluster], shlex.quote(str(out))
    notes += [f"check it: {cluster.check} {file}", f"submit it: {cluster.submit} {file}"]
    return Result(written=[out], notes=notes)
