"""Options of Nsight Systems and Nsight Compute by version, with their allowed values, as NVIDIA's manuals list them.

Only what this suite may pass. A set holds the allowed values; a list is allowed if each of its parts is. None allows
any value, "" stands for no value. Sources: docs.nvidia.com/nsight-systems and /nsight-compute, the manuals of the
command lines of each version.
"""

from typing import TypeAlias

Options: TypeAlias = dict[str, frozenset[str] | None]


def _one_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FLAG, _SWITCH = frozenset({""}), _one_of("true false")
_APIS = "cuda nvtx osrt cublas cublas-verbose cudnn cusparse cusolver mpi openacc openmp opengl oshmem ucx vulkan none"
_NSYS: Options = {
    "--trace": _one_of(_APIS),
    "--sample": _one_of("process-tree system-wide none"),
    "--cpuctxsw": _one_of("process-tree system-wide none"),
    "--capture-range": _one_of("none cudaProfilerApi hotkey nvtx"),
    "--capture-range-end": _one_of("none stop stop-shutdown repeat repeat-shutdown"),
    "--nvtx-capture": None,
    "--cuda-graph-trace": _one_of("graph node"),
    "--cuda-memory-usage": _SWITCH,
    "--kill": _one_of("none sigkill sigterm"),
    "--force-overwrite": _SWITCH,
    "--output": None,
}
# From 2025 on the granularity of graphs may name where they were launched from.
_GRAPHS = _one_of("graph node graph:host-only node:host-only graph:host-and-device node:host-and-device")
_LATER_APIS = _one_of(f"{_APIS} cuda-hw cudla python-gil gds openxr")
NSYS: dict[str, Options] = {
    "2022.4": _NSYS,
    "2023.1": {**_NSYS, "--trace": _one_of(f"{_APIS} cudla python-gil")},
    "2024.1": {**_NSYS, "--trace": _one_of(f"{_APIS} cudla python-gil gds openxr")},
    "2025.1": {**_NSYS, "--trace": _LATER_APIS, "--cuda-graph-trace": _GRAPHS},
    "2025.6": {**_NSYS, "--trace": _LATER_APIS, "--cuda-graph-trace": _GRAPHS},
}

_ON_OFF = _one_of("on off yes no")
_NCU: Options = {
    "--target-processes": _one_of("application-only all"),
    "--profile-from-start": _ON_OFF,
    "--nvtx": _FLAG,
    "--nvtx-include": None,
    "--replay-mode": _one_of("kernel application range"),
    "--launch-skip": None,
    "--launch-count": None,
    "--devices": None,
    "--cache-control": _one_of("all none"),
    "--clock-control": _one_of("base none"),
    "--apply-rules": _ON_OFF,
    "--force-overwrite": _FLAG,
    "--export": None,
    "--import": None,
    "--csv": _FLAG,
    "--page": _one_of("details raw source session"),
    "--print-units": _one_of("auto base"),
    "--kernel-name": None,
    "--kernel-name-base": _one_of("function demangled mangled"),
    "--metrics": None,
    "--query-metrics": _FLAG,
    "--list-sections": _FLAG,
    "--section": None,
}
_RANGES: Options = {**_NCU, "--replay-mode": _one_of("kernel application range app-range")}
NCU: dict[str, Options] = {
    "2022.4": _NCU,
    "2023.3": {**_RANGES, "--clock-control": _one_of("base none reset")},
    "2024.3": {**_RANGES, "--clock-control": _one_of("base none reset")},
    "2025.4": {**_RANGES, "--clock-control": _one_of("base boost force-boost none reset")},
}
