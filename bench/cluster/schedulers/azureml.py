"""Azure Machine Learning: a command job (CLI v2), or a sweep job over its hyperparameters."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from bench.cluster.schedulers.base import Group, JobOptions, Rendered, checked_groups
from bench.cluster.schedulers.words import assignments, fill, places, program, to_yaml
from common.errors import UsageError
from common.flags import Groups

_SCHEMAS = "https://azuremlschemas.azureedge.net/latest"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?"
_RANGE = re.compile(rf"(uniform|loguniform)\(({_NUMBER}),({_NUMBER})\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class AzureMLOptions(JobOptions):
    """Write an AzureML command job, or a sweep job with --sweep.

    Examples:
        bertbench submit azureml --compute gpu-cluster --image IMAGE -- bertbench train squad --data synthetic
    """

    GROUPS: ClassVar[Groups] = {
        **JobOptions.GROUPS,
        "workspace": ("compute", "experiment", "workspace", "resource_group"),
        "environment": ("environment", "code", "input", "output", "shared_memory", "services", "tensorboard_dir"),
        "sweep job": ("sweep", "sampling", "objective", "max_trials", "at_once", "early_stop"),
    }

    compute: str | None = None
    """Compute cluster; required."""
    environment: str | None = None
    """Environment instead of --image, NAME@latest or NAME:VERSION."""
    code: Path | None = None
    """Folder to upload, in which COMMAND runs; default none."""
    experiment: str | None = None
    """Experiment of the job; default that of the workspace."""
    input: tuple[str, ...] = ()
    """NAME=PATH of input data: a folder, a datastore path or azureml:NAME:VERSION. {NAME} in COMMAND becomes its path;
    default none."""
    output: tuple[str, ...] = ()
    """Names of output folders to keep. {NAME} in COMMAND becomes the path; default none."""
    shared_memory: str = "16G"
    """Size of /dev/shm."""
    services: tuple[Literal["tensorboard", "jupyter", "vscode"], ...] = ()
    """Services to open in the browser while the job runs; default none."""
    tensorboard_dir: str = "outputs"
    """Log folder of TensorBoard."""
    sweep: tuple[str, ...] = ()
    """NAME=A,B,C or uniform(A,B) or loguniform(A,B), with plain bounds. {NAME} in COMMAND becomes the value; default no
    sweep."""
    sampling: Literal["random", "grid", "bayesian"] = "random"
    """Sampling of a sweep."""
    objective: str | None = None
    """Objective of a sweep, maximize:METRIC or minimize:METRIC, as COMMAND logs it to MLflow."""
    max_trials: int = 16
    """Maximum jobs of a sweep."""
    at_once: int = 4
    """Maximum jobs of a sweep at the same time."""
    early_stop: bool = False
    """Stop jobs of a sweep that are worse than the median of the others."""
    workspace: str | None = None
    """Workspace for --submit; default that of `az configure`."""
    resource_group: str | None = None
    """Resource group of the workspace; default that of `az configure`."""

    def __post_init__(self) -> None:
        """Refuse values that the service rejects."""
        JobOptions.__post_init__(self)
        if not _NAME.fullmatch(self.name):
            raise UsageError("option-value", f"--name {self.name!r}: use letters, digits, - and _")
        if self.image is not None and self.environment is not None:
            raise UsageError(
                "option-conflict", "--image and --environment exclude each other: an environment includes an image"
            )
        if not re.fullmatch(r"\d+[MG]", self.shared_memory):
            raise UsageError(
                "option-value", f"--shared-memory {self.shared_memory!r}: give a number with M or G, such as 16G"
            )
        if self.sweep and not re.fullmatch(r"(maximize|minimize):\S+", self.objective or ""):
            raise UsageError("option-missing", "--sweep needs --objective maximize:METRIC or minimize:METRIC")
        if self.objective and not self.sweep:
            raise UsageError(
                "option-missing", "--objective needs --sweep: give the options to vary, or omit --objective"
            )
        if self.max_trials < 1 or self.at_once < 1:
            raise UsageError("option-value", "--max-trials and --at-once must be at least 1")


class AzureML:
    """Renders jobs for `az ml job create`."""

    options = AzureMLOptions
    tool = "az"
    remedy = "install the Azure CLI and its extension (az extension add --name ml), or write the job with --out FILE"

    def render(self, options: AzureMLOptions, command: Sequence[str]) -> Rendered:
        """Return the job. Raises UsageError."""
        groups = checked_groups(options, command)
        if len(groups) > 1:
            raise UsageError(
                "unsupported-combination",
                "all nodes of an AzureML cluster are equal: give one number of GPUs for all nodes",
            )
        if options.compute is None:
            raise UsageError(
                "option-missing", "AzureML needs --compute, the name of a compute cluster (see az ml compute list)"
            )
        if options.image is None and options.environment is None:
            raise UsageError("option-missing", "AzureML needs a container: give --image, or --environment NAME@latest")
        inputs = assignments("--input", options.input)
        space = {name: _distribution(name, text) for name, text in assignments("--sweep", options.sweep).items()}
        values = _values(options, inputs, space, command)
        job = _job(options, groups[0], inputs, _shell(options, groups[0], command, values))
        if space:
            job = _sweep_job(options, job, space)
        header = "Written by `bertbench submit azureml`; submit it with az ml job create --file."
        notes = _notes(options)
        return Rendered(text=to_yaml([job], header), suffix=".yaml", notes=notes)

    def submission(self, options: AzureMLOptions, path: Path) -> list[str]:
        """Return the Azure CLI's command."""
        where = {"--workspace-name": options.workspace, "--resource-group": options.resource_group}
        words = [word for name, value in where.items() if value is not None for word in (name, value)]
        return ["az", "ml", "job", "create", "--file", str(path), *words]


def _values(
    options: AzureMLOptions, inputs: dict[str, str], space: dict[str, Any], command: Sequence[str]
) -> dict[str, str]:
    """Return AzureML's expression for each placeholder in the command. Raises UsageError for bad or missing names."""
    found: dict[str, str] = {}
    for kind, names in (("inputs", inputs), ("outputs", options.output), ("search_space", space)):
        for name in names:
            if name in found or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
                raise UsageError(
                    "option-value",
                    f"{name!r} is in use or is not of lowercase letters, digits and _: give every input, output and "
                    "swept value a unique name",
                )
            found[name] = f"${{{{{kind}.{name}}}}}"
    idle = sorted(set(found) - places(command))
    if idle:
        raise UsageError("option-value", f"COMMAND does not use {{{idle[0]}}}: add it to COMMAND, or omit the option")
    return found


def _shell(options: AzureMLOptions, group: Group, command: Sequence[str], values: dict[str, str]) -> str:
    words = list(command)
    start = ["exec"]
    if options.launcher == "torchrun":
        words = program(command, options.module, options.no_python)
        meeting = (
            ["--standalone"]
            if group.nodes == 1
            else ["--node-rank", '"$NODE_RANK"', "--master-addr", '"$MASTER_ADDR"', "--master-port", '"$MASTER_PORT"']
        )
        start += [_quote(options.python or "python"), "-m", "torch.distributed.run", "--nnodes", str(group.nodes)]
        start += ["--nproc-per-node", str(group.processes), *meeting]
    return " ".join([*start, *(fill(word, list(values), _quote, lambda name: f'"{values[name]}"') for word in words)])


def _quote(text: str) -> str:
    """Quote for bash; AzureML expressions in the words of the user remain text."""
    return shlex.quote(text).replace("${{", "$''{{")


def _job(options: AzureMLOptions, group: Group, inputs: dict[str, str], line: str) -> dict[str, Any]:
    job: dict[str, Any] = {"$schema": f"{_SCHEMAS}/commandJob.schema.json", "type": "command"}
    job |= {"display_name": options.name, "experiment_name": options.experiment or options.name, "command": line}
    if options.code is not None:
        job["code"] = str(options.code.absolute())
    job["environment"] = {"image": options.image} if options.image else f"azureml:{options.environment}"
    job["compute"] = f"azureml:{options.compute}"
    if options.launcher == "torchrun" or group.nodes > 1:
        # One launcher per node; torchrun starts the processes, as on the other schedulers.
        job["distribution"] = {"type": "pytorch", "process_count_per_instance": 1}
    job["resources"] = {"instance_count": group.nodes, "shm_size": options.shared_memory.lower()}
    if options.variables:
        job["environment_variables"] = options.variables
    if inputs:
        job["inputs"] = {
            name: {"type": "uri_folder", "path": path, "mode": "ro_mount"} for name, path in inputs.items()
        }
    if options.output:
        job["outputs"] = {name: {"type": "uri_folder", "mode": "rw_mount"} for name in options.output}
    if options.seconds is not None:
        job["limits"] = {"timeout": options.seconds}
    services = {
        "tensorboard": {"type": "tensor_board", "log_dir": options.tensorboard_dir},
        "jupyter": {"type": "jupyter_lab"},
        "vscode": {"type": "vs_code"},
    }
    if options.services:
        job["services"] = {name: services[name] for name in options.services}
    return job


def _sweep_job(options: AzureMLOptions, job: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    """Return the sweep over a command job: common fields move to the sweep, the others stay in the trial."""
    goal, _, metric = (options.objective or "").partition(":")
    trial = ("command", "code", "environment", "distribution", "resources", "environment_variables")
    whole = ("display_name", "experiment_name", "compute", "inputs", "outputs")
    limits = {"max_total_trials": options.max_trials, "max_concurrent_trials": min(options.at_once, options.max_trials)}
    if options.seconds is not None:
        limits["trial_timeout"] = options.seconds
    sweep: dict[str, Any] = {
        "$schema": f"{_SCHEMAS}/sweepJob.schema.json",
        "type": "sweep",
        **{name: job[name] for name in whole if name in job},
        "sampling_algorithm": options.sampling,
        "search_space": space,
        "objective": {"goal": goal, "primary_metric": metric},
        "limits": limits,
        "trial": {name: job[name] for name in trial if name in job},
    }
    if options.early_stop:
        sweep["early_termination"] = {"type": "median_stopping", "evaluation_interval": 1}
    return sweep


def _distribution(name: str, text: str) -> dict[str, Any]:
    """Return a part of the search space. AzureML expects natural logarithms as limits of loguniform."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None:
        values = text.split(",")
        if "(" in text or "" in values:
            raise UsageError(
                "option-value", f"--sweep {name}={text}: give values A,B,C, uniform(A,B) or loguniform(A,B)"
            )
        if set(text) & set('"$`\\\n'):  # AzureML inserts values unquoted; these characters would end the quotes
            raise UsageError(
                "option-value", f'--sweep {name}={text!r}: values must not contain " $ ` \\ or a line break'
            )
        return {"type": "choice", "values": [_number(value) for value in values]}
    low, high = float(match[2]), float(match[3])
    if low >= high or (match[1] == "loguniform" and low <= 0):
        raise UsageError(
            "option-value", f"--sweep {name}={text}: give the smaller number first, above 0 for loguniform"
        )
    if match[1] == "loguniform":
        import math

        low, high = math.log(low), math.log(high)
    return {"type": match[1], "min_value": low, "max_value": high}


def _number(text: str) -> int | float | str:
    """Return a number if its text is unchanged by the conversion, else the text: 0.10 would become 0.1."""
    if re.fullmatch(r"-?(0|[1-9]\d*)", text):
        return int(text)
    if not re.fullmatch(_NUMBER, text):
        return text
    return float(text) if "e" in text.lower() or repr(float(text)) == text else text


def _notes(options: AzureMLOptions) -> tuple[str, ...]:
    notes = []
    if options.time_limit is not None:
        notes.append(
            "AzureML cancels the job at --time-limit, and --stop-seconds has no effect: to save before, give COMMAND a "
            "limit of its own (`bertbench train --max-seconds`)"
        )
    if options.sweep:
        notes.append(
            f"AzureML reads {options.objective} from MLflow, so COMMAND must log it (`bertbench train`: eval/f1)"
        )
        if options.services:
            notes.append("trials of a sweep have no services, so --services is ignored")
    if options.cpus or options.memory:
        notes.append("the compute cluster defines the size of its nodes: --cpus and --memory have no effect")
    return tuple(notes)
