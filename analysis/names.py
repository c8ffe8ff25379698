"""Kinds of work, collectives and data types, by the names of kernels and operators."""

import re
from collections.abc import Iterable
from functools import lru_cache

COMMUNICATION = "communication"
OTHER = "other"
MOVES_MEMORY = ("elementwise", "norm", "dropout", "activation", "copy")
"""Families of kernels and operators that only move memory."""

# Names of ATen operators, and of the CUDA, ROCm and Triton kernels behind them, in small letters; the first match wins.
_FAMILIES = tuple(
    (family, re.compile(pattern))
    for family, pattern in (
        # Tensile's names list the options of its generator, which hold other families' words.
        ("GEMM", r"^(?:custom_)?cijk_"),
        ("copy", r"memcpy|memset|^triton_poi_fused(?:_+(?:to_copy|clone|copy|view|permute|transpose|cat))+_*\d*$"),
        # PyTorch's backward pass of an embedding sorts the indices, cuts them into segments, and sums each one's part.
        ("embedding", r"embedding|permute_pooled_embs|bounds_check_indices|linearize_index|krn_partial|segment_offset"),
        ("embedding", r"num_of_(?:partial_)?segments|sum_and_scatter|compute_grad_weight"),
        ("optimizer", r"multi_tensor_apply|adam|adagrad|optimizer|_foreach|clip_grad|fused_sgd|lpnorm|lamb(?!da)"),
        ("optimizer", r"non_finite_check|amp_update_scale|(?<![a-z])sgd"),
        ("norm", r"batch_?norm|rms_?norm|group_?norm|layer_?norm|gammabeta|rowwisemoments|cucomputegradinput"),
        ("norm", r"ln_fwd|ln_bwd|bn_fw|bn_bw"),
        ("attention", r"scaled_dot_product|flash|fmha|attention|mem_eff|attn_fwd|attn_bwd|_sdpa_"),
        ("softmax and loss", r"soft_?max|cross_?entropy|nll_loss|(?<![a-z])loss"),
        ("dropout", r"dropout|bernoulli|distribution_elementwise|masked_scale|\baten::(?:rand|uniform|normal)"),
        # cuDNN convolves large images by Fourier transforms.
        ("convolution", r"convolution|fprop|dgrad|wgrad|winograd|scudnn|convolve|implicit_con|fft2d_(?:r2c|c2r)"),
        ("convolution", r"(?<![a-z])conv(?!ert)"),
        ("GEMM", r"addmm|bmm|matmul|matrixmul|gemv|xmma|wmma|cublas|cutlass|nvjet|mkldnn|einsum|triton_mm"),
        # fbgemm is a library of embeddings.
        ("GEMM", r"(?<!fb)gemm|\bmm\b|_mm(?:_|$)|(?<![a-z])linear\b|splitkreduce"),
        ("activation", r"gelu|relu|tanh|sigmoid|silu"),
        ("embedding", r"index_?select|index_put|index_add|indexfunc|index_elementwise|indexing_backward|\bindex\b"),
        ("embedding", r"gather(?!topk)|scatter"),
        ("pooling", r"max_?pool|avg_?pool|average_pool|pooling|upsample|interpolate"),
        ("elementwise", r"triton_poi|triton_for"),
        ("reduction and sort", r"fill_reverse_indices|write_indices|nonzero|triton_spl|searchsorted|bucketize"),
        ("reduction and sort", r"scan_innermost|scan_outer|histogram|\bflag_kernel"),
        # To convert is to copy into another type, 8 bits with their scale included.
        ("copy", r"copy|fillfunctor|clone|contiguous|nchwtonhwc|nhwctonchw|fill_kernel|fillbuffer|autocast|quantize"),
        # compute_cuda_kernel is PyTorch's repeat_interleave.
        ("copy", r"_qparam|rowwise_to_float|chunk_cat|repeat_interleave|compute_cuda_kernel|transpose\w*_kernel"),
        ("copy", r"batched_transpose|\baten::(?:to|_?cat|stack|fill|zero)|(?<![a-z])(?<!with_)cast(?![a-z])|cupy_fill"),
        # What a compiler has made of several operators, none of which its name tells.
        ("fused", r"^triton_(?:_|unk|fused)|(?:^|_)fusion(?:_\d+)*$"),
        ("reduction and sort", r"reduce_kernel|devicereduce|devicescan|radixsort|triton_red|triton_per|topk"),
        (
            "reduction and sort",
            r"\baten::(?:sum|mean|a?max|a?min|argmax|norm|linalg_vector_norm|cumsum|sort|any|all)\b",
        ),
        ("reduction and sort", r"reduce_1block|dot_kernel|bitonicsort|segmentedsort"),
        # What CUB and thrust do besides sorting, scanning and reducing is to apply a function to every element.
        ("elementwise", r"parallel_?for|for_each|thrust\S*transform"),
        ("reduction and sort", r"cub::|thrust::"),
        # Operators that compute nothing: they make a tensor, or another view of one, or read one value.
        (OTHER, r"^aten::(?:(?:new_)?empty\w*|resize_\w*|set_|item|_local_scalar_dense|is_nonzero|result_type)$"),
        (OTHER, r"^aten::(?:_?unsafe_view|view(?:_as\w*)?|_?reshape(?:_alias|_as)?|as_strided_?|alias|detach_?)$"),
        (OTHER, r"^aten::(?:t|transpose_?|permute|numpy_t|movedim|swap\w+|expand(?:_as)?|(?:un)?squeeze_?|flatten)$"),
        (OTHER, r"^aten::(?:select|slice|narrow|split\w*|chunk|unbind|unflatten|unfold|diagonal|lift\w*|resolve_\w+)$"),
        ("elementwise", r"elementwise|functor|cupy_|triu_tril|^aten::|eigenmetakernel"),
        # Libraries of one purpose: whatever else they name belongs to it.
        ("convolution", r"cudnn|miopen"),
        ("embedding", r"fbgemm_gpu::"),
    )
)
_MOST_READ = 4096  # characters of a name; those of real templates reach 3,000
_FUSED_OPTIMIZER = re.compile(r"_?fused_?(?:adam|sgd|adagrad|lamb)|adamfunctor|lambstage|optimizer_update", re.I)

# Operations by the words of a name that a communication library is known by; the first match wins. PyTorch runs NCCL's
# barrier as "nccl:all_reduce_barrier"; NVSHMEM's reductions and fcollect leave their result on every rank.
_OPERATIONS = tuple(
    (operation, re.compile(pattern, re.IGNORECASE))
    for operation, pattern in (
        ("barrier", r"barrier|\bsync_on_stream|sync_kernel|clean_low_latency_buffer"),
        ("notify", r"notify"),
        ("combine", r"combine"),
        ("dispatch", r"dispatch"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_reduce", r"all_?reduce|cross_device_reduce|\b(?:reduce|rdxn)\w*_on_stream"),
        ("all_gather", r"all_?gather|\bfcollect"),
        ("all_to_all", r"all_?to_?all"),
        ("send_recv", r"send_?recv|[_:]i?send|[_:]i?recv|ncclsend|ncclrecv|coalesced_p2p"),
        ("broadcast", r"broadcast|bcast"),
        ("reduce", r"reduce"),
        ("gather", r"gather"),
        ("scatter", r"scatter"),
    )
)
COLLECTIVES = (*(operation for operation, _ in _OPERATIONS), "other")
"""Collective operations, under one name each whatever library ran them. send_recv is point to point. Of expert
parallelism, dispatch sends tokens to the ranks of their experts, combine brings the results back, and notify tells the
ranks how many tokens come. other is a communication kernel whose name does not say its operation
(`ncclDevKernel_Generic`, RCCL's only one)."""
_LIBRARY = re.compile(r"nccl|rccl|gloo|mscclpp|c10d|\bp?mpi[_:]|\bucc:|\bxccl:|\bhccl:", re.IGNORECASE)
_DEVICE_KERNEL = re.compile(r"\b[nr]ccl(?:Symk)?(?:Dev|Generic)?Kernel|\bncclDev(?!ice)\w*_", re.IGNORECASE)
# Other libraries by a function's own name: DeepEP (deepseek-ai/DeepEP, csrc/; copies have other outer namespaces) and
# its hybrid kernels; kernels of NVSHMEM and rocSHMEM, MSCCL's in RCCL, and those that let the switch add or copy.
_GPU_LIBRARY = re.compile(
    r"ep::(?:internode|intranode|internode_ll)::(?:dispatch|combine|notify|cached_notify)\w*$|"
    r"\b(?:deep|hybrid)_ep::\S*(?:barrier|sync_kernel|clean_low_latency_buffer|notify|combine|dispatch)\w*$|"
    r"\b(?:barrier|sync|alltoall|broadcast|fcollect|reduce|rdxn)\w*_on_stream_kernel|"
    r"\b(?:nv|roc)shmem|\bmscclKernel_|\bmscclpp::|\bmultimem_",
    re.IGNORECASE,
)
# Their work on one rank alone: the layout of a dispatch, the copy out of a buffer, permutations.
_ALONE = re.compile(r"layout|epilogue|permute|prepare|preprocess", re.IGNORECASE)
_WORDS = re.compile(r"nccl|rccl|gloo|all_?reduce|record_param_comms|cross_device_reduce|nvshmem|\bc10d|\bmpi_", re.I)
# What Inductor compiles runs on one GPU; it is named after the operators around it, collectives too.
_COMPILED_BY_INDUCTOR = re.compile(r"triton_(?:[a-z]+_)?fused", re.IGNORECASE)
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")


def has_fused_optimizer(names: Iterable[str]) -> bool:
    """Return whether one of these kernels or operators updates many parameters at once (PyTorch, Apex, bertbench)."""
    return any(_FUSED_OPTIMIZER.search(name) for name in names)


@lru_cache(maxsize=65536)
def family(name: str) -> str:
    """Return which kind of work an operator or kernel does, by its name; "other" if it says nothing, or no work.

    A fused kernel is of the first family whose operator its name tells (Triton lists them): norm before softmax,
    softmax before dropout, dropout before activation, activation before elementwise.
    """
    if communicates(name):
        return COMMUNICATION
    text = name[:_MOST_READ].lower()
    return next((label for label, pattern in _FAMILIES if pattern.search(text)), OTHER)


@lru_cache(maxsize=65536)
def communicates(name: str) -> bool:
    """Return whether work of this name is communication."""
    text = name[:_MOST_READ]
    if _COMPILED_BY_INDUCTOR.match(text):
        return False
    function = _function(name)
    other_library = _GPU_LIBRARY.search(function) and not _ALONE.search(function)
    return collective(name) is not None or bool(other_library or _WORDS.search(text))


@lru_cache(maxsize=65536)
def is_gpu_library(name: str) -> bool:
    """Return whether a range or operator of the host names NCCL or RCCL: its collective runs on a GPU, and the host
    only puts it into a queue."""
    return re.match(r"(?:c10d::)?r?nccl", name, re.IGNORECASE) is not None


def collective(name: str) -> str | None:
    """Return which of COLLECTIVES a kernel, operator or range of NCCL, gloo or MPI is; None where it is none."""
    own = name.partition("(")[0]  # a kernel's parameters say nothing about what it does
    if not _LIBRARY.search(own):
        return None
    return _operation(own) or ("other" if _DEVICE_KERNEL.search(own) else None)


@lru_cache(maxsize=65536)
def kernel_collective(name: str) -> str | None:
    """Return which of COLLECTIVES a kernel of a GPU is; None exactly where its family is not communication."""
    return (collective(name) or _operation(_function(name)) or "other") if communicates(name) else None


def _operation(name: str) -> str | None:
    return next((label for label, pattern in _OPERATIONS if pattern.search(name)), None)


def _function(name: str) -> str:
    """Return a function's name with its namespaces, without its result, its template's arguments and parameters."""
    return re.split(r"[<(]", _UNNAMED.sub("", name[:_MOST_READ]), maxsplit=1)[0].strip().rpartition(" ")[2]


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


_ATTENTION = ("flash", "efficient", "cudnn")
GEMMS = ("mm", "addmm", "bmm", "baddbmm")
ATTENTIONS = tuple(f"_scaled_dot_product_{kind}_attention{way}" for kind in _ATTENTION for way in ("", "_backward"))


def has_roofline(name: str) -> bool:
    """Return whether the work of an operator is known by the sizes of its inputs."""
    return name.startswith("aten::") and name[6:] in (*GEMMS, *ATTENTIONS)


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
