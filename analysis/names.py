"""What the names of kernels and operators say: the kind of work, which collective a communication kernel is, and the
data types of a GEMM.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape

COMMUNICATION = "communication"
OTHER = "other"
MOVES_MEMORY = ("elementwise", "norm", "dropout", "activation", "copy")
"""Families of kernels and operators that only move memory."""

_FUSED_OPTIMIZER = re.compile(r"_?fused_?(?:adam|sgd|adagrad|lamb)|adamfunctor|lambstage|adamw_update|lamb_apply", re.I)

# First match wins; names of ATen operators, and of the CUDA, ROCm and Triton kernels behind them. Words are looked for
# in the name in small letters, several times faster than patterns; patterns are for what a word cannot tell.
_FAMILIES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        COMMUNICATION,  # stays the first: see `communicates`
        ("nccl", "rccl", "gloo", "allreduce", "all_reduce", "record_param_comms", "cross_device_reduce", "nvshmem"),
        r"\bc10d|\bmpi_",
    ),
    # Tensile's names list the options of its generator, which hold other families' words.
    ("GEMM", (), r"^(?:custom_)?cijk_"),
    ("copy", ("memcpy", "memset"), r"^triton_poi_fused(?:_+(?:to_copy|clone|copy|view|permute|transpose|cat))+_*\d*$"),
    # Its backward pass in PyTorch sorts the indices, cuts them into segments, and sums the gradient of each.
    (
        "embedding",
        ("embedding", "permute_pooled_embs", "bounds_check_indices", "linearize_index", "krn_partial"),
        r"num_of_(?:partial_)?segments|segment_offset|sum_and_scatter|compute_grad_weight",
    ),
    (
        "optimizer",
        (
            "multi_tensor_apply",
            "adam",
            "adagrad",
            "optimizer",
            "_foreach",
            "clip_grad",
            "fused_sgd",
            "lpnorm",
            "non_finite_check",
            "amp_update_scale",
        ),
        r"lamb(?!da)|(?<![a-z])sgd",
    ),
    (
        "norm",
        ("batch_norm", "batchnorm", "rms_norm", "rmsnorm", "group_norm", "groupnorm", "gammabeta", "rowwisemoments"),
        r"layer_?norm|cucomputegradinput|ln_fwd|ln_bwd|bn_fw|bn_bw",
    ),
    (
        "attention",
        ("scaled_dot_product", "flash", "fmha", "attention", "mem_eff", "attn_fwd", "attn_bwd", "_sdpa_"),
        "",
    ),
    ("softmax and loss", ("softmax", "soft_max", "cross_entropy", "crossentropy", "nll_loss"), r"(?<![a-z])loss"),
    (
        "dropout",
        ("dropout", "bernoulli", "distribution_elementwise", "masked_scale"),
        r"\baten::(?:rand|uniform|normal)",
    ),
    (
        "convolution",
        ("convolution", "fprop", "dgrad", "wgrad", "winograd", "scudnn", "convolve", "implicit_con"),
        r"(?<![a-z])conv(?!ert)|fft2d_(?:r2c|c2r)",  # cuDNN convolves large images by Fourier transforms
    ),
    (
        "GEMM",
        (
            "addmm",
            "bmm",
            "matmul",
            "matrixmul",
            "gemv",
            "xmma",
            "wmma",
            "cublas",
            "cutlass",
            "nvjet",
            "mkldnn",
            "einsum",
            "triton_mm",
        ),
        r"(?<!fb)gemm|\bmm\b|_mm(?:_|$)|(?<![a-z])linear\b|splitkreduce|einsum",  # fbgemm is a library of embeddings
    ),
    ("activation", ("gelu", "relu", "tanh", "sigmoid", "silu"), ""),
    (
        "embedding",
        ("index_select", "indexselect", "index_put", "index_add", "indexfunc", "index_elementwise"),
        r"indexing_backward|\bindex\b|gather(?!topk)|scatter",
    ),
    (
        "pooling",
        ("max_pool", "avg_pool", "average_pool", "maxpool", "avgpool", "pooling", "upsample", "interpolate"),
        "",
    ),
    ("elementwise", ("triton_poi", "triton_for"), ""),
    (
        "reduction and sort",
        (
            "fill_reverse_indices",
            "write_indices",
            "nonzero",
            "triton_spl",
            "searchsorted",
            "bucketize",
            "scan_innermost",
            "scan_outer",
            "histogram",
        ),
        r"\bflag_kernel",
    ),
    # To convert is to copy into another type, 8 bits with their scale included.
    (
        "copy",
        (
            "copy",
            "fillfunctor",
            "clone",
            "contiguous",
            "nchwtonhwc",
            "nhwctonchw",
            "fill_kernel",
            "fillbuffer",
            "autocast",
            "quantize",
            "_qparam",
            "rowwise_to_float",
            "chunk_cat",
            "repeat_interleave",
            "compute_cuda_kernel",  # what PyTorch calls the kernel of repeat_interleave
        ),
        r"transpose\w*_kernel|batched_transpose",
    ),
    ("copy", (), r"\baten::(?:to|_?cat|stack|fill|zero)|(?<![a-z])(?<!with_)cast(?![a-z])|cupy_fill"),
    # What a compiler has made of several operators, none of which its name tells.
    ("fused", (), r"^triton_(?:_|unk|fused)|(?:^|_)fusion(?:_\d+)*$"),
    (
        "reduction and sort",
        ("reduce_kernel", "devicereduce", "devicescan", "radixsort", "triton_red", "triton_per", "topk"),
        r"\baten::(?:sum|mean|a?max|a?min|argmax|norm|linalg_vector_norm|cumsum|sort|any|all)\b|reduce_1block|dot_kernel|"
        r"bitonicsort|segmentedsort",
    ),
    # What CUB and thrust do besides sorting, scanning and reducing is to apply a function to every element.
    ("elementwise", (), r"parallel_?for|for_each|thrust\S*transform"),
    ("reduction and sort", ("cub::", "thrust::"), ""),
    ("elementwise", ("elementwise", "functor", "cupy_", "triu_tril"), r"^aten::|eigenmetakernel"),
    # Libraries of one purpose: whatever else they name belongs to it.
    ("convolution", ("cudnn", "miopen"), ""),
    ("embedding", ("fbgemm_gpu::",), ""),
)
_COMPILED = tuple((label, words, re.compile(pattern) if pattern else None) for label, words, pattern in _FAMILIES)
_MOST_READ = 4096  # characters of a name; those of real templates reach 3,000

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
    "dispatch",
    "combine",
    "notify",
    "other",
)
"""Collective operations, under one name each whatever library ran them. send_recv is point to point. Of expert
parallelism, dispatch sends tokens to the ranks of their experts, combine brings the results back, and notify tells the
ranks how many tokens come. other is a communication kernel whose name does not say its operation
(`ncclDevKernel_Generic`, RCCL's only one)."""

# A communication name holds one of these libraries' names; what follows it is the operation.
_LIBRARY = re.compile(r"nccl|rccl|gloo|mscclpp|c10d|\bp?mpi[_:]|\bucc:|\bxccl:|\bhccl:", re.IGNORECASE)
_OPERATIONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (label, re.compile(pattern, re.IGNORECASE))
    for label, pattern in (
        ("barrier", r"barrier"),  # first: PyTorch runs NCCL's as "nccl:all_reduce_barrier"
        ("all_reduce", r"all_?reduce"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_gather", r"all_?gather"),
        ("all_to_all", r"all_?to_?all"),
        ("send_recv", r"send_?recv|[_:]i?send|[_:]i?recv|ncclsend|ncclrecv|coalesced_p2p"),
        ("broadcast", r"broadcast|bcast"),
        ("reduce", r"reduce"),
        ("gather", r"gather"),
        ("scatter", r"scatter"),
    )
)
_DEVICE_KERNEL = re.compile(r"\b[nr]ccl(?:Symk)?(?:Dev|Generic)?Kernel|\bncclDev(?!ice)\w*_", re.IGNORECASE)

# GPU kernels of libraries other than NCCL, by the function's own name. DeepEP (deepseek-ai/DeepEP, csrc/), its hybrid
# kernels, MORI (ROCm/mori) and TensorRT-LLM exchange the tokens of experts. What they compute on one rank alone (the
# layout of a dispatch, the copy out of a buffer, permutations) is no communication. PyTorch's all-to-alls over NVSHMEM
# exchange the sizes first; pplx-garden's kernels send and receive apart.
_EXCHANGE = re.compile(
    r"\b(?:deep|hybrid)_ep::(?:\w+::)*(\w+)$|\bmoeA2A(\w+Kernel)$|\b(Ep(?:Dispatch|Combine)\w*Kernel\w*)$|"
    r"\b(a2a_(?:dispatch|combine)_\w+)$|\b(exchangeSplitAndOffset\w*)$",
    re.IGNORECASE,
)
_EXCHANGE_OPERATIONS: tuple[tuple[str | None, re.Pattern[str]], ...] = tuple(
    (label, re.compile(pattern, re.IGNORECASE))
    for label, pattern in (
        (None, r"layout|epilogue|permute|prepare|preprocess"),
        ("barrier", r"barrier|sync_kernel|clean_low_latency_buffer"),
        ("notify", r"notify|exchangeSplit"),
        ("combine", r"combine"),
        ("dispatch", r"dispatch"),
        ("send_recv", r"(?:^|_)(?:send|recv)(?:_|$)"),
    )
)
# Kernels of NVSHMEM (nvshmem/src/host/stream/coll) and rocSHMEM, MSCCL's in RCCL, AITER's, and those that let the
# switch add or copy (multimem).
_OTHERS = re.compile(
    r"\b(?:barrier|sync|alltoall|broadcast|fcollect|reduce|rdxn)\w*_on_stream_kernel|\b(?:nv|roc)shmem|\bmscclKernel_|"
    r"\bmscclpp::|\bmultimem_|cross_device_store|\ballToAllV(?:_2d\w*|Push|Kernel)?$|\bmoeAllToAll\w*Kernel",
    re.IGNORECASE,
)
_KERNEL_OPERATIONS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    # Of vLLM, SGLang and AITER; of NVSHMEM, whose reductions and fcollect leave their result on every rank.
    ("all_reduce", re.compile(r"cross_device_reduce|\b(?:reduce|rdxn)\w*_on_stream", re.IGNORECASE)),
    ("all_gather", re.compile(r"\bfcollect", re.IGNORECASE)),
    ("barrier", re.compile(r"\bsync_on_stream", re.IGNORECASE)),
    *_OPERATIONS,
)
# What Inductor compiles runs on one GPU; it is named after the operators around it, collectives too.
_COMPILED_BY_INDUCTOR = re.compile(r"triton_(?:[a-z]+_)?fused")
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")


def has_fused_optimizer(names: Iterable[str]) -> bool:
    """Return whether one of these kernels or operators updates many parameters at once (PyTorch, Apex, bertbench)."""
    return any(_FUSED_OPTIMIZER.search(name) for name in names)


@lru_cache(maxsize=65536)
def family(name: str) -> str:
    """Return which kind of work an operator or kernel does, by its name; "other" where the name does not say.

    A fused kernel is of the first family whose operator its name tells (Triton lists them): norm before softmax,
    softmax before dropout, dropout before activation, activation before elementwise.
    """
    if communicates(name):
        return COMMUNICATION
    text = name[:_MOST_READ].lower()
    return next((label for label, words, pattern in _COMPILED[1:] if _tells(text, words, pattern)), OTHER)


@lru_cache(maxsize=65536)
def communicates(name: str) -> bool:
    """Return whether work of this name is communication: whether that is its family, in less time."""
    text = name[:_MOST_READ].lower()
    if _COMPILED_BY_INDUCTOR.match(text):
        return False
    return collective(name) is not None or _other_library(name) is not None or _tells(text, *_COMPILED[0][1:])


def _tells(text: str, words: Sequence[str], pattern: re.Pattern[str] | None) -> bool:
    return any(word in text for word in words) or (pattern is not None and pattern.search(text) is not None)


@lru_cache(maxsize=65536)
def is_gpu_library(name: str) -> bool:
    """Return whether a range or operator of the host names NCCL or RCCL: its collective runs on a GPU, and the host
    only puts it into a queue."""
    return re.match(r"(?:c10d::)?r?nccl", name, re.IGNORECASE) is not None


def collective(name: str) -> str | None:
    """Return which of COLLECTIVES a kernel, operator or range is; None where it is none.

    Takes NCCL's four forms (ncclKernel_AllReduce_..., ncclDevKernel_AllReduce_..., ncclDev..., ncclAllReduce...Kernel),
    PyTorch's ("nccl:all_reduce", "gloo:all_reduce") and MPI's ("MPI_Allreduce").
    """
    own = name.partition("(")[0]  # a kernel's parameters say nothing about what it does
    if not _LIBRARY.search(own):
        return None
    for label, pattern in _OPERATIONS:
        if pattern.search(own):
            return label
    return "other" if _DEVICE_KERNEL.search(own) else None


@lru_cache(maxsize=65536)
def kernel_collective(name: str) -> str | None:
    """Return which of COLLECTIVES a kernel of a GPU is; None exactly where its family is not communication.

    Takes what `collective` takes, and the kernels of DeepEP, MORI, NVSHMEM, MSCCL, PyTorch's symmetric memory and the
    all-reduces of vLLM, SGLang, FlashInfer and TensorRT-LLM.
    """
    if not communicates(name):
        return None
    return collective(name) or _other_library(name) or _operation(_own_name(name))


def _other_library(name: str) -> str | None:
    own = _own_name(name)
    if match := _EXCHANGE.search(own):
        function = next(filter(None, match.groups()))
        return next((label for label, pattern in _EXCHANGE_OPERATIONS if pattern.search(function)), None)
    return _operation(own) if _OTHERS.search(own) else None


def _operation(own: str) -> str:
    return next((label for label, pattern in _KERNEL_OPERATIONS if pattern.search(own)), "other")


def _own_name(name: str) -> str:
    """A function's name with its namespaces, without what it returns, its template's arguments and its parameters."""
    own = re.split(r"[<(]", _UNNAMED.sub("", name[:_MOST_READ]), maxsplit=1)[0].strip()
    return own.rpartition(" ")[2]


def bus_factor(collective: str, ranks: int) -> float | None:
    """Return busbw / algbw of a collective over n ranks, as nccl-tests has it (doc/PERFORMANCE.md).

    None where nccl-tests has none, or the number of ranks is not known (below 1).
    """
    if ranks < 1:
        return None
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0 if collective in ("broadcast", "reduce", "send_recv") else None


# Words of the names that Megatron, DeviceMesh ("mesh_dp"), torchtitan and FSDP give to process groups.
_PARALLELISMS = {
    "tensor": ("tensor", "tp", "etp", "tensorparallel"),
    "data": ("data", "dp", "ddp", "fsdp", "hsdp", "edp", "efsdp", "shard", "replicate", "dataparallel"),
    "pipeline": ("pipeline", "pp", "embedding", "pipelineparallel"),
    "expert": ("expert", "ep", "etp", "edp", "efsdp", "moe", "expertparallel"),
    "context": ("context", "cp", "contextparallel"),
    "sequence": ("sequence", "sp", "ulysses"),
}


@lru_cache(maxsize=4096)
def parallelism(description: str) -> str:
    """Return what a process group is for, by its description; "" where that does not say.

    One of tensor, data, pipeline, expert, context and sequence, several joined by "+" ("expert+data"), or model (all
    ranks of one copy of the model).
    """
    words = re.findall(r"[a-z]+", description[:_MOST_READ].lower())
    found = [kind for kind, known in _PARALLELISMS.items() if any(word in known for word in words)]
    found.sort(key=lambda kind: next(i for i, word in enumerate(words) if word in _PARALLELISMS[kind]))
    return "+".join(found) or ("model" if "model" in words and "parallel" in words else "")


def is_like(name: str, pattern: str) -> bool:
    """Return whether a whole name fits a pattern in which * stands for any text; no pattern takes long."""
    return fnmatchcase(name, escape(pattern).replace("[*]", "*"))


ROOFLINES = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"), "GEMM"),
    **dict.fromkeys(
        (
            f"_scaled_dot_product_{kind}_attention{way}"
            for kind in ("flash", "efficient", "cudnn")
            for way in ("", "_backward")
        ),
        "attention",
    ),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), "norm"),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), "norm"),
}
"""ATen operators that are compared with the roofline, and what they are."""


def has_roofline(name: str) -> bool:
    """Return whether the work of an operator is known by the sizes of its inputs."""
    return name.startswith("aten::") and name[6:] in ROOFLINES


PRECISIONS = ("", "mxfp4", "nvfp4", "fp4", "mxfp8", "fp8", "int4", "int8", "bf16", "fp16", "tf32", "fp64", "fp32")
"""What `precision` returns; "" where a name does not tell."""

# cuBLAS' nvjet kernels begin with letters for the types: q FP8 (with a scale per block: mxfp8), t bf16, h fp16.
_NVJET = re.compile(r"^nvjet_(?:sm\d+_)?([a-z]+)_")
_NVJET_TYPES = {"q": "fp8", "t": "bf16", "h": "fp16"}
# Tensile's begin with the layout of the product, then letters for the types: Cijk_Alik_Bljk_BBS_BH_..., .._F8BS_...
_TENSILE = re.compile(r"^(?:custom_)?cijk_[a-z]+_[a-z]+_(f4|f8|b8|i8|[bhsd])([a-z0-9]*)_(m?x_)?")
_TENSILE_TYPES = {
    "f4": "mxfp4", "f8": "fp8", "b8": "fp8", "i8": "int8", "b": "bf16", "h": "fp16", "s": "fp32", "d": "fp64",
}  # fmt: skip
# The narrowest type decides, so it comes first: of a product of bf16 with weights in MXFP4 the weights' type.
_NAMED = tuple(
    (label, re.compile(pattern))
    for label, pattern in (
        ("mxfp4", r"mx_?fp4|mx_float4|mxe2m1|ue8m0xe2m1"),
        ("nvfp4", r"nv_?fp4|nv_float4|ue4m3xe2m1"),
        ("fp4", r"e2m1|(?<![a-z])fp4|float4_e"),
        ("mxfp8", r"mx_?fp8|mx_float8|mxe[45]m[32]|ue8m0xe[45]m[32]"),
        ("fp8", r"e4m3|e5m2|(?<![a-z])fp8|float8"),
        ("int4", r"(?<![a-z])u?int4(?!\d)|w4a16"),
        ("int8", r"(?:^|_)i\d{3,6}gemm|imma|igemm|(?<![a-z])u?int8(?!\d)|s8s8|signed char"),
        ("bf16", r"bf16|bfloat16"),
        ("fp16", r"(?<![a-z])f(?:p|loat)?16|\d{2}f16|(?:^|_)h\d*gemm|__half|(?<![a-z])half(?![a-z])"),
        ("tf32", r"tf32|tfloat32|tensorop_s\d+gemm|xf32"),
        ("fp64", r"(?:^|_)d\d*gemm|(?<![a-z])double(?![a-z])|f64f64"),
        ("fp32", r"(?:^|_)sgemm|f32f32|(?<![a-z])fp32|(?<![a-z_])float(?![a-z0-9_])|simt_s"),
    )
)


@lru_cache(maxsize=65536)
def precision(name: str) -> str:
    """Return the precision of a GEMM, one of PRECISIONS; "" if the name does not have it.

    Args:
        name: a kernel's name, or the types of a product's inputs as PyTorch names them ("c10::BFloat16").
    """
    text = name[:_MOST_READ].lower()
    if found := _NVJET.match(text):
        label = _NVJET_TYPES.get(found[1][0], "")
        return "mxfp8" if label == "fp8" and "ue8m0" in text else label
    if found := _TENSILE.match(text):
        return "tf32" if found[3] and found[1] == "s" else _TENSILE_TYPES[found[1]]
    return next((label for label, pattern in _NAMED if pattern.search(text)), "")
