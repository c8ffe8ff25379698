"""The table of devices: published peaks of arithmetic, memory and links.

All rates are dense: data sheets also give rates "with sparsity", twice as high, which BERT does not reach. GEMMs of
16- and 8-bit types accumulate in fp32, at half the rate on GeForce cards. What no source says is None or absent.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from analysis.counters import Summary
from analysis.timeline import ProcessGroup, Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One kind of GPU."""

    name: str
    flops: Mapping[str, float]
    """FLOP/s by type: fp32, fp64, fp16 outside the tensor cores, tensor_<type of the inputs> inside."""
    bytes_per_second: float | None
    """Of its memory."""
    link: "LinkRate | None"
    """All links of one GPU in one direction, half of what data sheets give; None where only pairs have a bridge."""
    source: str
    """URL of the maker's figures."""


class LinkRate(NamedTuple):
    """What a link carries."""

    gb_s: float
    """1e9 bytes/s, as bus bandwidths."""
    source: str
    """Such as "measured (nccl-tests, 8 ranks)" or "published (NVLink 3)"."""


_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_PAPERS = "https://images.nvidia.com/aem-dam/"
_HGX, _ADA = f"{_NVIDIA}hgx/", f"{_PAPERS}Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_GB202 = f"{_PAPERS}Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_TURING = (
    f"{_PAPERS}en-zz/Solutions/design-visualization/technologies/turing-architecture/"
    "NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_GRACE_HOPPER, _MI300 = f"{_NVIDIA}grace-hopper-superchip/", "https://www.amd.com/en/products/accelerators/instinct/"
_NVLINK = {generation: (rate, f"NVLink {generation}") for generation, rate in enumerate((80, 150, 300, 450, 900), 1)}
_INFINITY = (448, "Infinity Fabric, 7 links")
_PCIE = {generation: (rate, f"PCIe {generation}") for generation, rate in ((3, 16), (4, 32), (5, 64))}

# TFLOP/s; tensor_16: fp16 and bf16.
_HOPPER = {"fp64": 33.5, "fp32": 66.9, "fp16": 133.8, "tensor_fp64": 66.9, "tensor_tf32": 494.7, "tensor_16": 989.4,
           "tensor_fp8": 1978.9}  # fmt: skip
_AMPERE = {"fp64": 9.7, "fp32": 19.5, "fp16": 78.0, "tensor_fp64": 19.5, "tensor_tf32": 156.0, "tensor_16": 312.0}
_GRACE = {"fp64": 34, "fp32": 67, "tensor_fp64": 67, "tensor_tf32": 494, "tensor_16": 990, "tensor_fp8": 1979}
_V100, _P100 = {"tensor_fp16": 125.0, "fp64": 7.8, "fp32": 15.7, "fp16": 31.4}, {"fp64": 4.7, "fp32": 9.3, "fp16": 18.7}


def _device(
    name: str, source: str, gb_s: float | None = None, link: tuple[float, str] | None = None,
    tera: Mapping[str, float] = MappingProxyType({}), /, **more: float,
) -> Device:  # fmt: skip
    flops = {kind: value * 1e12 for kind, value in {**tera, **more}.items()}
    if (both := flops.pop("tensor_16", None)) is not None:
        flops |= {"tensor_fp16": both, "tensor_bf16": both}
    return Device(
        name=name,
        flops=flops,
        bytes_per_second=None if gb_s is None else gb_s * 1e9,
        link=LinkRate(link[0], f"published ({link[1]})") if link else None,
        source=source,
    )


# NVIDIA publishes no data sheet of the H20.
# By the driver's name, without the maker's; it must fit as a whole, so that a variant nobody listed is unknown.
_DEVICES: tuple[tuple[str, Device], ...] = (
    (r"B300(?: SXM6 AC)?", _device("B300", _HGX, 8000, _NVLINK[5], fp64=1.25, fp32=75, tensor_fp64=1.25,
                                   tensor_tf32=1125, tensor_16=2250, tensor_fp8=4500)),
    (r"B200", _device("B200", _HGX, 8000, _NVLINK[5], fp64=37, fp32=75, tensor_fp64=37, tensor_tf32=1125,
                      tensor_16=2250, tensor_fp8=4500)),
    (r"GB200", _device("GB200", f"{_NVIDIA}gb200-nvl72/", 8000, _NVLINK[5], fp64=40, fp32=80, tensor_fp64=40,
                       tensor_tf32=1250, tensor_16=2500, tensor_fp8=5000)),
    (r"GB300", _device("GB300", f"{_NVIDIA}gb300-nvl72/", None, _NVLINK[5])),
    (r"H200", _device("H200 SXM", f"{_NVIDIA}h200/", 4800, _NVLINK[4], _HOPPER)),
    (r"H100 80GB HBM3", _device("H100 SXM", f"{_NVIDIA}h100/", 3350, _NVLINK[4], _HOPPER)),
    (r"H100 PCIe", _device("H100 PCIe", f"{_NVIDIA}h100/", 2039, fp64=25.6, fp32=51.2, fp16=102.4,
                           tensor_fp64=51.2, tensor_tf32=378.0, tensor_16=756.0, tensor_fp8=1513.0)),
    (r"H100 NVL", _device("H100 NVL", f"{_NVIDIA}h100/", 3900, fp64=30, fp32=60, tensor_fp64=60,
                          tensor_tf32=417.5, tensor_16=835.5, tensor_fp8=1670.5)),
    (r"H20", _device("H20", _HGX, None, _NVLINK[4])),
    (r"H20-3e", _device("H20 141 GB", _HGX, None, _NVLINK[4])),
    (r"H800", _device("H800", _HGX, None, (200, "NVLink 4"))),
    (r"GH200(?: \d+GB)?", _device("GH200", _GRACE_HOPPER, 4000, _NVLINK[4], _GRACE)),
    (r"GH200 144G HBM3e", _device("GH200 144 GB", _GRACE_HOPPER, 4900, _NVLINK[4], _GRACE)),
    (r"A100-SXM4-80GB", _device("A100 SXM 80 GB", f"{_NVIDIA}a100/", 2039, _NVLINK[3], _AMPERE)),
    (r"A100-SXM4-40GB", _device("A100 SXM 40 GB", f"{_NVIDIA}a100/", 1555, _NVLINK[3], _AMPERE)),
    (r"A100 80GB PCIe", _device("A100 PCIe 80 GB", f"{_NVIDIA}a100/", 1935, None, _AMPERE)),
    (r"A100-PCIE-40GB", _device("A100 PCIe 40 GB", f"{_NVIDIA}a100/", 1555, None, _AMPERE)),
    (r"A800-SXM4-\d+GB", _device("A800 SXM", f"{_NVIDIA}a100/", None, (200, "NVLink 3"))),
    (r"V100-SXM2-(?:16|32)GB", _device("V100 SXM2", f"{_NVIDIA}v100/", 900, _NVLINK[2], _V100)),
    (r"V100-SXM3-\d+GB", _device("V100 SXM3", f"{_NVIDIA}v100/", None, _NVLINK[2])),
    (r"V100-PCIE-(?:16|32)GB", _device("V100 PCIe", f"{_NVIDIA}v100/", 900, fp64=7.0, fp32=14.0, fp16=28.0,
                                       tensor_fp16=112.0)),
    (r"P100-SXM2-16GB", _device("P100 SXM2", f"{_NVIDIA}tesla-p100/", 732, _NVLINK[1], fp64=5.3, fp32=10.6,
                                fp16=21.2)),
    (r"P100-PCIE-16GB", _device("P100 PCIe 16 GB", f"{_NVIDIA}tesla-p100/", 732, None, _P100)),
    (r"P100-PCIE-12GB", _device("P100 PCIe 12 GB", f"{_NVIDIA}tesla-p100/", 549, None, _P100)),
    (r"L40S", _device("L40S", f"{_NVIDIA}l40s/", 864, _PCIE[4], fp32=91.6, tensor_tf32=183.0, tensor_16=362.05,
                      tensor_fp8=733.0)),
    (r"L4", _device("L4", f"{_NVIDIA}l4/", 300, _PCIE[4], fp32=30.3, tensor_tf32=60.0, tensor_16=121.0,
                    tensor_fp8=242.5)),
    (r"A40", _device("A40", f"{_NVIDIA}a40/", 696, fp32=37.4, tensor_tf32=74.8, tensor_16=149.7)),
    (r"RTX A6000", _device("RTX A6000", _GA102, 768, fp32=38.7, fp16=38.7, tensor_tf32=77.4, tensor_16=154.8)),
    (r"A10", _device("A10", f"{_NVIDIA}products/a10-gpu/", 600, _PCIE[4], fp32=31.2, tensor_tf32=62.5,
                     tensor_16=125.0)),
    (r"T4", _device("T4", f"{_NVIDIA}tesla-t4/", 320, _PCIE[3], fp32=8.1, tensor_fp16=65.0)),
    (r"GeForce RTX 5090", _device("GeForce RTX 5090", _GB202, 1792, _PCIE[5], fp32=104.8, fp16=104.8,
                                  tensor_tf32=104.8, tensor_16=209.5, tensor_fp8=419)),
    (r"GeForce RTX 4090", _device("GeForce RTX 4090", _ADA, 1008, _PCIE[4], fp32=82.6, fp16=82.6,
                                  tensor_tf32=82.6, tensor_16=165.2, tensor_fp8=330.3)),
    (r"GeForce RTX 3090", _device("GeForce RTX 3090", _GA102, 936, fp32=35.6, fp16=35.6, tensor_tf32=35.6,
                                  tensor_16=71.0)),
    (r"GeForce RTX 2080 Ti", _device("GeForce RTX 2080 Ti", _TURING, 616, fp32=13.4, fp16=26.9, tensor_fp16=53.8)),
    (r"MI300X(?: OAM)?", _device("MI300X", f"{_MI300}mi300/mi300x.html", 5300, _INFINITY,
                                 fp64=81.7, fp32=163.4, tensor_fp64=163.4, tensor_tf32=653.7, tensor_16=1307.4,
                                 tensor_fp8=2614.9)),
    (r"MI325X(?: OAM)?", _device("MI325X", f"{_MI300}mi300/mi325x.html", None, _INFINITY)),
)  # fmt: skip


def device_of(driver_name: str | None) -> Device | None:
    """Return a GPU by what the driver calls it; None for one not in the table, a slice of a GPU (MIG) included."""
    name = re.sub(r"^(?:NVIDIA|Tesla|AMD|Instinct|\s)+", "", (driver_name or "").strip(), flags=re.IGNORECASE)
    return next((device for pattern, device in _DEVICES if re.fullmatch(pattern, name, re.IGNORECASE)), None)


# GPUs without tensor cores, and those whose tensor cores know 16-bit floats alone, that are not in the table.
_WITHOUT_TENSOR_CORES = r"\bGTX\b|\b[KMP]\d{1,3}(?:c|m|s|X|Xm)?\b|TITAN (?:X|Xp|Z|Black)\b|Quadro [KMP]"
_ONLY_FP16 = r"\bV100|\bT4G?\b|GeForce RTX 20\d\d|TITAN (?:V|RTX)\b|Quadro (?:RTX|GV)"
_FASTER = 1.5


def faster_types(driver_name: str) -> tuple[str, ...] | None:
    """Return the types in which a GPU's GEMMs are much faster than in fp32, of fp16, bf16, tf32; None: not known."""
    device = device_of(driver_name)
    if device and device.flops:
        rates = {kind.removeprefix("tensor_"): rate for kind, rate in device.flops.items()}
        return tuple(kind for kind in ("fp16", "bf16", "tf32") if rates.get(kind, 0) >= _FASTER * rates["fp32"])
    if re.search(_WITHOUT_TENSOR_CORES, driver_name, re.IGNORECASE):
        return ()
    return ("fp16",) if re.search(_ONLY_FP16, driver_name, re.IGNORECASE) else None


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bus bandwidths of links: measured ones by collective, number of ranks and size, else published ones."""

    measured: Mapping[tuple[str, int], Sequence[tuple[int, float]]]
    """Size in bytes and the best bus bandwidth at it, 1e9 bytes/s, in order of size."""
    sources: Mapping[tuple[str, int], str]

    @classmethod
    def of(cls, summaries: Iterable[Summary] = (), rows: Iterable[Mapping[str, Any]] = ()) -> "LinkRates":
        """Return what tests measured; those without a number of ranks, or with wrong results, count for nothing.

        Args:
            summaries: of files; those of nccl-tests are taken, for collectives that `rows` does not have.
            rows: of `collectives.by_size`, of the suite's own trials.
        """
        best: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        sources: dict[tuple[str, int], str] = {}
        tests: list[tuple[Mapping[Any, Any], int, str]] = [(row, int(row["ranks"]), "bertbench comm") for row in rows]
        for one in summaries:
            if one.source == "nccl-tests" and one.facts.get("ranks"):
                tests += [(row, int(one.facts["ranks"]), "nccl-tests") for row in one.table.to_dict("records")]
        for row, ranks, source in tests:
            rate, size, key = row["busbw_gb_s"], int(row["size_bytes"]), (str(row["collective"]), ranks)
            if rate and rate > 0 and size > 0 and not row["wrong"] > 0 and sources.setdefault(key, source) == source:
                best[key][size] = max(float(rate), best[key].get(size, 0.0))
        return cls({key: sorted(sizes.items()) for key, sizes in best.items()}, sources)

    def rate(self, timeline: Timeline, collective: str, group: ProcessGroup, size_bytes: float) -> LinkRate | None:
        """Return what the links carry for a collective of one group; None where nothing says it.

        Between two measured sizes it is interpolated in the logarithm of the size; beyond the largest it is that of
        the largest, and below the smallest unknown. Published rates hold inside one node only.
        """
        points = self.measured.get((collective, group.size), ())
        if points and size_bytes >= points[0][0]:
            sizes, rates = (np.array(values, dtype=float) for values in zip(*points, strict=True))
            rate = float(np.interp(np.log(size_bytes), np.log(sizes), rates))
            return LinkRate(rate, f"measured ({self.sources[collective, group.size]}, {group.size} ranks)")
        names = set(timeline.devices.values())
        device = device_of(names.pop()) if len(names) == 1 and in_one_node(timeline, group) else None
        return device.link if device else None


def in_one_node(timeline: Timeline, group: ProcessGroup) -> bool:
    """Return whether a group is within one node, as far as a trace says: all of the job is, or, with ranks in the
    order of nodes, its ranks are in one block of as many as the trace has GPUs."""
    visible = len(timeline.devices)
    if timeline.world_size is not None and timeline.world_size <= visible:
        return True
    return visible > 1 and len(group.ranks) > 0 and len({rank // visible for rank in group.ranks}) == 1
