"""What the names of kernels and operators say: the kind of work, and which collective a communication kernel is."""

import re
from functools import lru_cache

COMMUNICATION = "communication"
OTHER = "other"

# First match wins; names of ATen operators, and of the CUDA kernels behind them.
_FAMILIES: tuple[tuple[str, str], ...] = (
    (COMMUNICATION, r"nccl|gloo|c10d|all_?reduce|record_param_comms"),
    ("optimizer", r"adam|lamb|sgd|optimizer|multi_tensor|_foreach|clip_grad"),
    ("attention", r"scaled_dot_product|flash|fmha|attention|cutlass.*attn|mem_eff"),
    ("matrix product", r"\bmm\b|addmm|bmm|matmul|linear|gemm|mkldnn|xmma|cutlass|cublas|einsum"),
    ("normalisation", r"layer_?norm|batch_?norm|rms_?norm"),
    ("dropout", r"dropout|bernoulli|philox|rand"),
    ("activation", r"gelu|relu|tanh|sigmoid"),
    ("softmax and loss", r"softmax|nll|cross_entropy|loss"),
    ("embedding", r"embedding|index|gather|scatter"),
    ("copy and cast", r"copy|\bto\b|_to_copy|cast|memcpy|clone|contiguous|cat\b|memset|fill|zero"),
)

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
    "barrier",
)
"""Collective operations, under one name each whatever library ran them; send_recv is point to point."""

# A communication name holds one of these libraries' names; what follows it is the operation.
_LIBRARY = re.compile(r"nccl|rccl|gloo|mscclpp|c10d|\bmpi", re.IGNORECASE)
_OPERATIONS: tuple[tuple[str, str], ...] = (
    ("all_reduce", r"all_?reduce"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"),
    ("send_recv", r"send_?recv|\bsend|\brecv|[_:]send|[_:]recv|coalesced_p2p"),
    ("broadcast", r"broadcast"),
    ("barrier", r"barrier"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)


@lru_cache(maxsize=65536)
def family(name: str) -> str:
    """Return which kind of work an operator or kernel does, by its name; "other" where the name does not say."""
    for label, pattern in _FAMILIES:
        if re.search(pattern, name, re.IGNORECASE):
            return label
    return "elementwise" if name.startswith("aten::") or "elementwise" in name else OTHER


@lru_cache(maxsize=65536)
def collective(name: str) -> str | None:
    """Return which of COLLECTIVES a kernel, operator or range is; None where it is none.

    Takes NCCL's four forms (ncclKernel_AllReduce_..., ncclDevKernel_AllReduce_..., ncclDev..., ncclAllReduce...Kernel),
    PyTorch's ("nccl:all_reduce", "gloo:all_reduce") and MPI's ("MPI_Allreduce").
    """
    if not _LIBRARY.search(name):
        return None
    for label, pattern in _OPERATIONS:
        if re.search(pattern, name, re.IGNORECASE):
            return label
    return None
