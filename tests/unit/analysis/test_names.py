"""Names as libraries of several years wrote them."""

from pathlib import Path

import pandas as pd
import pytest
from support import shared_files
from support.kineto_events import event, write
from support.ncu_csv import SUFFIX
from support.timelines import timeline

from analysis.counters import KernelCounters
from analysis.diagnose import cores as core_findings
from analysis.diagnose import timelines as timeline_findings
from analysis.diagnose.finding import Finding
from analysis.metrics.kernels.gemm_precision import gemm_time_by_precision
from analysis.names import COLLECTIVES, PRECISIONS, collective, family, precision
from analysis.readers.kineto import reader as kineto
from analysis.sources import open_sources
from analysis.timeline import Timeline


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", "other"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:send 0->1", "send_recv"),
        ("nccl:recv 1<-0", "send_recv"),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("MPI_Allreduce", "all_reduce"),
        ("PMPI_Bcast", "broadcast"),
        ("MPI_Isend", "send_recv"),
        ("MPI_Reduce_scatter_block", "reduce_scatter"),
    ],
)
def test_a_collective_is_told_by_its_name(name: str, kind: str) -> None:
    assert collective(name) == kind
    assert kind in COLLECTIVES


@pytest.mark.parametrize(
    "name",
    [
        "aten::gather",
        "void at::native::reduce_kernel<512, 1>(ncclDevComm*)",
        "record_param_comms",
        "ncclCommInitRank",
        "ncclGroupEnd",
        "MPI_Init",
        "ampere_sgemm_128x64_nn",
        "scatter_add",
        "",
    ],
)
def test_what_is_no_collective_is_none(name: str) -> None:
    assert collective(name) is None


ATEN = "void at::native::"
UNNAMED = ATEN + "(anonymous namespace)::"
ELEMENTWISE = ATEN + "vectorized_elementwise_kernel<4, "


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", "GEMM"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::native_layer_norm_backward", "norm"),
        ("aten::gelu", "activation"),
        ("aten::bernoulli_", "dropout"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::_log_softmax", "softmax and loss"),
        ("aten::copy_", "copy"),
        ("gloo:all_reduce", "communication"),
        ("aten::add", "elementwise"),
        ("mystery", "other"),
        # Kernels.
        ("ampere_sgemm_128x32_nn", "GEMM"),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
            "GEMM",
        ),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)", "GEMM"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "GEMM"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_SLOSS_GELU", "GEMM"),
        ("triton_tem_fused_addmm_7", "GEMM"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, cublasGemvParams<float>>", "GEMM"),
        ("void matrixMulCUDA<int=32>(float*, float*, float*, int, int)", "GEMM"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<>)", "attention"),
        ("attn_fwd", "attention"),
        (ATEN + "(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "norm"),
        (ATEN + "(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>", "norm"),
        ("void (anonymous namespace)::cuApplyLayerNorm<c10::Half, float>", "norm"),
        ("triton_red_fused_native_layer_norm_native_layer_norm_backward_1", "norm"),
        (ATEN + "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<5>, LAMBStage1Functor<float>>", "optimizer"),
        (ELEMENTWISE + "at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >", "elementwise"),
        (ELEMENTWISE + "pow_tensor_scalar_kernel_impl(at::TensorIteratorBase&)::{lambda(float)#1}>", "elementwise"),
        (ATEN + "unrolled_elementwise_kernel<CUDAFunctor_add<float>, memory::LoadWithCast<2>>", "elementwise"),
        ("triton_poi_fused__to_copy_add_mul_3", "elementwise"),
        (ELEMENTWISE + "GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#2}>", "activation"),
        (ATEN + "(anonymous namespace)::fused_dropout_kernel_vec<float>", "dropout"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>", "softmax and loss"),
        (ATEN + "nll_loss_forward_reduce_cuda_kernel_2d<float>", "softmax and loss"),
        (ATEN + "(anonymous namespace)::indexSelectLargeIndex<float, long>", "embedding"),
        ("void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_warp_per_row_1<float>", "embedding"),
        ("bounds_check_indices_kernel<long>(fbgemm_gpu::VarlenArgs)", "embedding"),
        (ATEN + "index_elementwise_kernel<128, 4, gpu_index_kernel>", "embedding"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        ("[CUDA memcpy HtoD]", "copy"),
        ("Memset (Device)", "copy"),
        (ELEMENTWISE + "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>", "copy"),
        (ATEN + "(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>", "copy"),
        (ELEMENTWISE + "at::native::FillFunctor<float>, at::detail::Array<char*, 1> >", "copy"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "communication"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long)", "communication"),
        ("rccl_AllGather", "communication"),
        ("void vllm::cross_device_reduce_1stage<float, 2>", "communication"),
        (ATEN + "reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>", "reduction and sort"),
        ("triton_per_fused_sum_4", "reduction and sort"),
        (ATEN + "sbtopk::gatherTopK<float, unsigned int, 1, false>", "reduction and sort"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "convolution"),
        ("saxpy(double *, double *)", "other"),
        ("", "other"),
        # Templates name how they load and store: that says nothing about what they compute.
        ("void at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >", "elementwise"),
        ("unrolled_elementwise_kernel<BinaryFunctor, LoadWithoutCast, StoreWithoutCast>", "elementwise"),
        ("unrolled_elementwise_kernel<AddFunctor, LoadWithCast<2>, StoreWithCast<1> >", "elementwise"),
        ("void at::native::direct_copy_kernel_cuda", "copy"),
        ("triton_poi_fused__to_copy_0", "copy"),
        ("triton_poi_fused__to_copy_12", "copy"),
        (UNNAMED + "krn_partials_reduce_offset<long>(long*)", "embedding"),
        (UNNAMED + "krn_partial_segment_offset<long>(long*, long const*)", "embedding"),
        (UNNAMED + "compute_grad_weight<c10::BFloat16, long>(long const*)", "embedding"),
        (UNNAMED + "sum_and_scatter<c10::BFloat16, long>(long const*)", "embedding"),
        (UNNAMED + "compute_num_of_partial_segments<long>(long const*)", "embedding"),
        (UNNAMED + "masked_scale_kernel<bool, float>(float*)", "dropout"),
        (UNNAMED + "amp_update_scale_cuda_kernel(float*, int*, float const*)", "optimizer"),
        (ATEN + "lpnorm_cleanup<float, (NormType)1, float>(float const*, int)", "optimizer"),
        (ATEN + "conv_depthwise2d_grad_weight_kernel<1>", "convolution"),
        (UNNAMED + "max_pool_backward_nchw<float, float>(float const*)", "pooling"),
        ("void fft2d_r2c_32x32<float, false, 0u, false>(float2*, cudnn::reduced_divisor, bool)", "convolution"),
        ("void cudnn::ops::scalePackedTensor_kernel<float, float>(long, float*, float)", "convolution"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3_64x128x128", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<1>>>", "attention"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*)", "embedding"),
        ("void fbgemm_gpu::(anonymous namespace)::_compute_FP8_quantize_cuda_kernel<float>(float const*)", "copy"),
        ("void transformer_engine::detail::cast_transpose_optimized_kernel<float>(float const*)", "copy"),
        (ELEMENTWISE.replace("elementwise_kernel", "elementwise_kernel_with_cast"), "elementwise"),
        ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::Agent<1>>", "elementwise"),
        ("void cub::CUB_200_NS::DeviceSelectSweepKernel<1>(cub::ScanTileState<int>)", "reduction and sort"),
        (ATEN + "write_indices<long>(long*)", "reduction and sort"),
        ("triton__0d1d2d3d4de", "fused"),
        ("loop_add_fusion_3", "fused"),
        ("triton_poi_fused_1", "elementwise"),
        ("triton_red_fused_0", "reduction and sort"),
        ("aten::transpose", "elementwise"),
        ("aten::max_pool2d", "pooling"),
        ("_fusion" * 600 + "!", "other"),
    ],
)
def test_families_by_name(name: str, expected: str) -> None:
    assert family(name) == expected


@pytest.mark.timeout(20)
def test_a_huge_name_costs_no_more_than_a_long_one() -> None:
    names = ("cutlass" * 10**6, "triton_poi_fused" + "_to_copy" * 10**6 + "!", "a_mm" * 10**6, "aten::(" * 10**6)
    assert [family(name) for name in names] == ["GEMM", "copy", "GEMM", "elementwise"]


SGEMM, BF16 = "ampere_sgemm_128x64_tn", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn"
FP8, MXFP4 = "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x256x64x1_swiglu"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
NAMES = {
    SGEMM: "fp32",
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(Params)": "fp32",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4": "fp32",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>": "fp32",
    "void matrixMulCUDA<int=32>(float*, float*, float*, int, int)": "fp32",
    "Cijk_Alik_Bljk_SB_MT64x64x16_SN": "fp32",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel": "tf32",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)": "tf32",
    "Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32": "tf32",
    BF16: "bf16",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4": "bf16",
    "nvjet_sm100_tst_64x32_64x16_2x1_2cta_h_bz_TNT": "bf16",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64": "bf16",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false>": "bf16",
    "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn": "fp16",
    "volta_h884gemm_64x64_ldg8_nn": "fp16",
    "maxwell_fp16_sgemm_fp16_128x64_nn": "fp16",
    "Cijk_Ailk_Bjlk_HHS_BH_MT128x128x16": "fp16",
    FP8: "fp8",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128_warpgroupsize1x1x1_execute": "fp8",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168u, 2048u>": "fp8",
    "Custom_Cijk_Alik_Bljk_F8B8BS_BH_Bias_SHB": "fp8",
    "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT": "mxfp8",
    MXFP4: "mxfp4",
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x8x512": "mxfp4",
    "cutlass3x_sm100_bstensorop_s256x256x64gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32_bf16": "nvfp4",
    "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16": "int8",
    "ampere_dgemm_64x64_nn": "fp64",
    "triton_mm_3": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_kernels_tell_the_types(name: str) -> None:
    assert precision(name) == NAMES[name] and precision(name) in PRECISIONS


def families(*made: Timeline) -> Finding:
    return next(one for one in timeline_findings.findings(made) if one.name == "kernel_families")


def test_copies_are_no_kernels() -> None:
    """A copy of 59 of 100 us, GEMMs of 21, GELU of 20: of the kernels' 41 us GEMM takes 51.2 %, not 21 %."""
    made = timeline(
        kernels=[
            ("Memcpy HtoD (Pinned -> Device)", 7, 0, 59, -1, "memcpy"),
            (BF16, 7, 59, 80),
            ("gelu_kernel", 7, 80, 100),
        ]
    )
    found = families(made)
    assert found.table["family"].tolist() == ["GEMM", "activation"]
    assert found.table["kernel_time_share"].tolist() == pytest.approx([21 / 41, 20 / 41])
    assert found.sentence.startswith("GEMM takes 51.2 % of the kernels' time")
    (top,) = [one for one in timeline_findings.findings([made]) if one.name == "top_kernels"]
    assert "Memcpy" not in " ".join(top.table["name"]) and "51.2 %" in top.sentence
    (copies,) = [one for one in timeline_findings.findings([made]) if one.name == "memory_copies"]
    assert copies.table["total_ms"].tolist() == [pytest.approx(59e-6)]


@pytest.mark.parametrize(("name", "ran"), [(BF16, "bf16"), (FP8, "fp8"), (MXFP4, "mxfp4")])
def test_no_reduced_precision_is_advised_for_what_runs_in_it(name: str, ran: str) -> None:
    sentence = families(timeline(kernels=[(name, 7, 0, 100)])).sentence
    assert sentence == f"GEMM takes 100 % of the kernels' time; it runs in {ran}."


def test_reduced_precision_is_advised_where_most_of_the_time_is_fp32() -> None:
    """60 of 100 us in fp32, 40 in bf16; then 40 and 60."""
    sentence = families(timeline(kernels=[(SGEMM, 7, 0, 60), (BF16, 7, 60, 100)])).sentence
    assert "fp32 (60 % of its time), bf16 (40 % of its time): " in sentence and "tf32" in sentence
    sentence = families(timeline(kernels=[(SGEMM, 7, 0, 40), (BF16, 7, 40, 100)])).sentence
    assert sentence.endswith("runs in bf16 (60 % of its time), fp32 (40 % of its time).")


def test_advice_on_communication_is_not_attached_to_gemm() -> None:
    """36 us of GEMM, 30 of an all-reduce, 34 of others: both are said, each with its own."""
    others = [("gelu_kernel", 7, 66, 83), ("softmax_warp_forward", 7, 83, 100)]
    sentence = families(timeline(kernels=[(BF16, 7, 0, 36), (NCCL, 9, 36, 66), *others])).sentence
    first, second, third = sentence.split("; ")
    assert first == "GEMM takes 36.0 % of the kernels' time"
    assert second == "it runs in bf16"
    assert third.startswith("communication takes 30.0 %") and "exposed" in third


def mm(tid: int, start: int, types: list[str] | None) -> dict[str, object]:
    args = {} if types is None else {"Input type": types, "Input Dims": [[8, 8], [8, 8]]}
    return event("aten::mm", start, 20, args=args, tid=tid)


def test_input_types_tell_what_a_kernel_s_name_does_not(tmp_path: Path) -> None:
    """Two kernels without a type in their names: one launched by a product of bf16 on thread 2, one by none."""
    events = [
        mm(1, 0, ["float", "float"]),
        mm(2, 0, ["c10::BFloat16", "c10::BFloat16"]),
        event("cudaLaunchKernel", 5, 2, "cuda_runtime", args={"correlation": 1}, tid=2),
        event("cudaLaunchKernel", 50, 2, "cuda_runtime", args={"correlation": 2}, tid=1),
        event("triton_mm_3", 60, 30, "kernel", args={"device": 0, "stream": 7, "correlation": 1}),
        event("triton_mm_4", 90, 10, "kernel", args={"device": 0, "stream": 7, "correlation": 2}),
    ]
    trace = kineto.read(write(tmp_path / "trace-rank0.json", events))
    assert trace.operators["precision"].astype(str).tolist() == ["fp32", "bf16"]
    assert gemm_time_by_precision([trace]) == {"bf16": 30_000, "": 10_000}


@pytest.mark.parametrize(
    ("types", "said", "advised"),
    [(["c10::BFloat16", "c10::BFloat16"], "runs in bf16", False), (["float", "float"], "runs in fp32", True)],
)
def test_on_a_cpu_the_operators_inputs_decide(tmp_path: Path, types: list[str], said: str, advised: bool) -> None:
    trace = kineto.read(write(tmp_path / "trace-rank0.json", [mm(1, 0, types)]))
    sentence = timeline_findings.operator_findings([trace])[0].sentence
    assert said in sentence and ("avx512_bf16" in sentence) == advised
    untold = kineto.read(write(tmp_path / "bare-rank0.json", [mm(1, 0, None)]))
    assert (
        "precision" not in untold.operators and "bf16" not in timeline_findings.operator_findings([untold])[0].sentence
    )


@pytest.mark.parametrize(("types", "named"), [("c10::BFloat16", True), ("float", False), (None, False)])
def test_casts_to_bf16_are_spoken_of_where_it_ran(tmp_path: Path, types: str | None, named: bool) -> None:
    """80 us of copies, 20 of a product: copies may be casts only where something ran in another type."""
    events = [event("aten::copy_", 100, 80), mm(1, 0, None if types is None else [types, types])]
    (families, _) = timeline_findings.operator_findings([kineto.read(write(tmp_path / "trace-rank0.json", events))])
    assert "only move memory 80.0 %" in families.sentence and ("bf16" in families.sentence) == named


@pytest.mark.public
@pytest.mark.parametrize("gpu", ["h100", "mi300"])
def test_public_bert_runs_in_bf16_are_not_told_to_use_it(gpu: str) -> None:
    """TraceLens' inputs list c10::BFloat16 for every product; its kernel_summary.csv says the same."""
    (path,) = (shared_files.TRACES / "kineto" / "tracelens").glob(f"{gpu}__*.json.gz")
    made = open_sources(path).timelines
    assert set(gemm_time_by_precision(made)) == {"bf16"} and set(made[0].operators["precision"]) <= {"", "bf16"}
    assert "runs in bf16." in families(*made).sentence and "tf32" not in families(*made).sentence


@pytest.mark.parametrize(
    ("kernel", "advised"), [("ampere_sgemm_128x64_tn", True), ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16", False)]
)
def test_bf16_is_advised_for_idle_tensor_cores_only_where_the_products_run_in_more(kernel: str, advised: bool) -> None:
    # 90 of 100 us are products, and no instruction went to the tensor cores.
    counted = pd.DataFrame(
        {
            "process": 1, "kernel_id": [0, 1], "name": [kernel, "elementwise_kernel"], "device": 0,
            "duration_ns": [90_000.0, 10_000.0], "cycles": [9_000.0, 1_000.0],
            f"sm__inst_executed_pipe_tensor{SUFFIX}": [0.0, 0.0], f"sm__inst_executed_pipe_fma{SUFFIX}": [50.0, 5.0],
        }
    )  # fmt: skip
    sentence = core_findings.findings(KernelCounters(counted, {}, "A100", (8, 0), ()))[0].sentence
    assert "90.0 % of the time" in sentence
    assert ("train in bf16" in sentence) is advised
    assert ("100 % of that runs in narrower types" in sentence) is not advised


def test_the_four_forms_of_nccl_s_names() -> None:
    for name in (
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    ):
        assert collective(name) == "all_reduce", name
