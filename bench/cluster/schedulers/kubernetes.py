"""Kubernetes: a TrainJob of Kubeflow Trainer (v2), or a JobSet, which also supports unequal nodes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from bench.cluster.schedulers.base import Group, JobOptions, Rendered, checked_groups
from bench.cluster.schedulers.words import kubernetes_memory, program, to_yaml
from common.errors import UsageError
from common.flags import Groups

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_CLAIM = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?):(/[^:]*)")
# Name of the training node in Kubeflow Trainer's runtimes; the JobSet here uses the same name.
_JOB = "node"
_PORT = 29500


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesOptions(JobOptions):
    """Write a manifest for Kubeflow Trainer or JobSet.

    Examples:
        bertbench submit kubernetes --nodes 2 --gpus-per-node 8 --image IMAGE -- bertbench train pretrain --data /data
    """

    GROUPS: ClassVar[Groups] = {
        **JobOptions.GROUPS,
        "cluster": ("kind", "namespace", "runtime", "queue", "max_restarts"),
        "pod": ("shared_memory", "gpu_resource", "claim", "interface"),
    }

    kind: Literal["trainjob", "jobset"] = "trainjob"
    """trainjob requires Kubeflow Trainer 2.2 or newer; jobset requires only the JobSet controller."""
    namespace: str | None = None
    """Namespace; default that of the kubectl context."""
    runtime: str = "torch-distributed"
    """ClusterTrainingRuntime of a TrainJob."""
    shared_memory: str = "16G"
    """Maximum size of /dev/shm; it counts toward the memory of the container."""
    gpu_resource: str = "nvidia.com/gpu"
    """Resource name of a GPU in the cluster."""
    claim: tuple[str, ...] = ()
    """PersistentVolumeClaims and their mount paths, NAME:/PATH; default none."""
    interface: str = "eth0"
    """Network interface of the pods for NCCL and gloo."""
    max_restarts: int = 0
    """Maximum restarts of a JobSet after a failure; a command that can resume continues from the last checkpoint."""
    queue: str | None = None
    """Queue of Kueue; default none."""

    def __post_init__(self) -> None:
        """Refuse values that the cluster rejects."""
        JobOptions.__post_init__(self)
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                "option-value",
                f"--name {self.name!r}: use at most 40 lowercase letters, digits and -, starting with a letter",
            )
        for name in ("namespace", "runtime", "queue"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", value):
                raise UsageError("option-value", f"--{name} {value!r}: use lowercase letters, digits, dots and -")
        if not re.fullmatch(r"[A-Za-z0-9./_-]+", self.gpu_resource):
            raise UsageError(
                "option-value", f"--gpu-resource {self.gpu_resource!r}: give a resource name, such as nvidia.com/gpu"
            )
        for claim in self.claim:
            if not _CLAIM.fullmatch(claim):
                raise UsageError("option-value", f"--claim {claim!r} is not NAME:/PATH, such as data:/data")
        kubernetes_memory(self.shared_memory)
        if self.max_restarts < 0:
            raise UsageError("option-value", f"--max-restarts {self.max_restarts} must be at least 0")


class Kubernetes:
    """Renders manifests."""

    options = KubernetesOptions
    tool = "kubectl"
    remedy = "install kubectl and give it access to the cluster, or write the manifest with --out FILE"

    def render(self, options: KubernetesOptions, command: Sequence[str]) -> Rendered:
        """Return the manifest. Raises UsageError."""
        groups = checked_groups(options, command)
        if options.image is None:
            raise UsageError(
                "option-missing",
                "Kubernetes needs a container: give --image, such as that of build_image.sh in a registry",
            )
        job = _train_job(options, groups, command) if options.kind == "trainjob" else _job_set(options, groups, command)
        notes = [] if options.claim else ["without --claim the output of COMMAND is deleted with its pods"]
        header = "Written by `bertbench submit kubernetes`; submit it with kubectl create -f."
        return Rendered(text=to_yaml([job], header), suffix=".yaml", notes=tuple(notes))

    def submission(self, options: KubernetesOptions, path: Path) -> list[str]:
        """Return kubectl's command."""
        return ["kubectl", "create", "-f", str(path)]


def _train_job(options: KubernetesOptions, groups: Sequence[Group], command: Sequence[str]) -> dict[str, Any]:
    """Return a TrainJob; the runtime's torch policy sets nodes, processes, rank and address of torchrun (PET_*)."""
    if len(groups) > 1:
        raise UsageError(
            "unsupported-combination",
            "a TrainJob has the same number of GPUs on every node: use --kind jobset for unequal nodes",
        )
    if options.max_restarts:
        raise UsageError(
            "option-not-applicable",
            "--max-restarts is defined by the runtime of a TrainJob: set it there, or use --kind jobset",
        )
    (group,) = groups
    trainer: dict[str, Any] = {"image": options.image, "numNodes": group.nodes}
    if options.launcher == "torchrun":
        trainer["numProcPerNode"] = group.processes
        words = ["-m", "torch.distributed.run", *program(command, options.module, options.no_python)]
        trainer |= {"command": [options.python or "python3"], "args": _literal(words)}
    else:
        trainer["command"] = _literal(command)
    trainer |= {"env": _environment(options, group), "resourcesPerNode": _resources(options, group)}
    pod = {
        **_pod(options, group),
        "containers": [{"name": _JOB, "volumeMounts": _mounts(options)}],
    }
    patch = {
        "template": {"spec": {"replicatedJobs": [{"name": _JOB, "template": {"spec": {"template": {"spec": pod}}}}]}}
    }
    spec: dict[str, Any] = {"runtimeRef": {"name": options.runtime}}
    if options.seconds is not None:
        spec["activeDeadlineSeconds"] = options.seconds
    spec |= {"trainer": trainer, "runtimePatches": [{"manager": "bertbench.io/submit", "trainingRuntimeSpec": patch}]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(options),
        "spec": spec,
    }


def _job_set(options: KubernetesOptions, groups: Sequence[Group], command: Sequence[str]) -> dict[str, Any]:
    """Return a JobSet with one replicated job per kind of node; its headless service has the name of the job."""
    names = [_JOB] if len(groups) == 1 else [f"{_JOB}{number}" for number in range(len(groups))]
    jobs = []
    for name, group in zip(names, groups, strict=True):
        container = {
            "name": _JOB,
            "image": options.image,
            **_entry(options, groups, group, f"{options.name}-{names[0]}-0-0.{options.name}", command),
            "env": _environment(options, group),
            "resources": _resources(options, group),
            "volumeMounts": _mounts(options),
        }
        pod = {"restartPolicy": "Never", **_pod(options, group), "containers": [container]}
        job: dict[str, Any] = {
            "completionMode": "Indexed",
            "parallelism": group.nodes,
            "completions": group.nodes,
            "backoffLimit": 0,
        }
        if options.seconds is not None:
            job["activeDeadlineSeconds"] = options.seconds
        jobs.append({"name": name, "replicas": 1, "template": {"spec": {**job, "template": {"spec": pod}}}})
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": options.max_restarts},
        "replicatedJobs": jobs,
    }
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(options), "spec": spec}


def _entry(
    options: KubernetesOptions, groups: Sequence[Group], group: Group, address: str, command: Sequence[str]
) -> dict[str, Any]:
    """Return the command of a pod of a JobSet; its rank is that of the first node of its kind plus its index."""
    if options.launcher == "none":
        return {"command": _literal(command)}
    launcher = (
        f'exec "$0" -m torch.distributed.run --nnodes {sum(each.nodes for each in groups)} '
        f"--node-rank $(({group.first} + JOB_COMPLETION_INDEX)) --nproc-per-node {group.processes} "
        f'--master-addr {address} --master-port {_PORT} "$@"'
    )
    words = [options.python or "python3", *program(command, options.module, options.no_python)]
    return {"command": _literal(["sh", "-c", launcher]), "args": _literal(words)}


def _literal(words: Sequence[str]) -> list[str]:
    """Escape words, since Kubernetes replaces $(NAME) in commands; $$ means $."""
    return [word.replace("$", "$$") for word in words]


def _metadata(options: KubernetesOptions) -> dict[str, Any]:
    found: dict[str, Any] = {"name": options.name}
    if options.namespace is not None:
        found["namespace"] = options.namespace
    if options.queue is not None:
        found["labels"] = {"kueue.x-k8s.io/queue-name": options.queue}
    return found


def _environment(options: KubernetesOptions, group: Group) -> list[dict[str, str]]:
    variables = {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": options.interface,
        "GLOO_SOCKET_IFNAME": options.interface,
        "PYTHONUNBUFFERED": "1",
        # Only torchrun receives the SIGTERM of a pod; it forwards the signal and by default waits 30 s.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, options.stop_seconds - 5)),
    }
    if options.cpus and group.processes:
        # By default torchrun gives each process one thread.
        variables["OMP_NUM_THREADS"] = str(max(1, options.cpus // group.processes))
    variables |= options.variables
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()]


def _resources(options: KubernetesOptions, group: Group) -> dict[str, Any]:
    limits = {options.gpu_resource: str(group.gpus)} if group.gpus else {}
    asked = {"cpu": str(options.cpus)} if options.cpus else {}
    if options.memory:
        limits["memory"] = asked["memory"] = kubernetes_memory(options.memory)
    return {key: value for key, value in (("limits", limits), ("requests", {**asked, **limits})) if value}


def _pod(options: KubernetesOptions, group: Group) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": kubernetes_memory(options.shared_memory)}}
    ]
    for number, claim in enumerate(options.claim):
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim.partition(":")[0]}})
    tolerations = [{"key": options.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}] if group.gpus else []
    return {
        "terminationGracePeriodSeconds": options.stop_seconds,
        **({"tolerations": tolerations} if tolerations else {}),
        "volumes": volumes,
    }


def _mounts(options: KubernetesOptions) -> list[dict[str, Any]]:
    claims = [{"name": f"claim-{n}", "mountPath": claim.partition(":")[2]} for n, claim in enumerate(options.claim)]
    return [{"name": "shm", "mountPath": "/dev/shm"}, *claims]  # noqa: S108 # nosec B108 # a mount
