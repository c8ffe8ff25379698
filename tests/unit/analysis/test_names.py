"""Names as libraries of several years wrote them."""

from pathlib import Path

import pytest
from support.timelines import call, event, kernel, write

from analysis.metrics.kernels.operator_roofline import gemm_time_by_precision
from analysis.names import COLLECTIVES, PRECISIONS, collective, family, kernel_collective, precision
from analysis.readers.kineto import reader as kineto


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:send 0->1", "send_recv"),
        ("gloo:all_reduce", "all_reduce"),
        ("PMPI_Bcast", "broadcast"),
        ("MPI_Isend", "send_recv"),
        ("MPI_Reduce_scatter_block", "reduce_scatter"),
    ],
)
def test_a_collective_is_told_by_its_name(name: str, kind: str) -> None:
    assert collective(name) == kind and kind in COLLECTIVES


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*)", "notify"),
        ("void dpsk::ep::internode::combine<(bool)0, c10::BFloat16>(int4*, float*)", "combine"),
        ("void deep_ep::intranode::barrier<8>(int**, int)", "barrier"),
        ("nvshmemi_proxy_quiet_entrypoint()", "other"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(Params)", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "other"),
        ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "other"),
        # What only resembles them, and one rank's own work by the same library.
        ("void my_model::combine<8>(float*)", None),
        ("void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>(Params)", None),
        ("void dpsk::ep::internode::get_dispatch_layout<256>(long const*)", None),
        ("void my_kernel<8>(deep_ep::internode::dispatch*)", None),
        ("triton_poi_fused_add_all_reduce_4", None),
        ("__amd_rocclr_fillBufferAligned", None),
    ],
)
def test_kernels_of_other_libraries_communicate_too(name: str, kind: str | None) -> None:
    assert kernel_collective(name) == kind and (family(name) == "communication") == (kind is not None)


@pytest.mark.parametrize(
    "name",
    [
        "aten::gather",
        "void at::native::reduce_kernel<512, 1>(ncclDevComm*)",
        "record_param_comms",
        "ncclCommInitRank",
        "ampere_sgemm_128x64_nn",
        "scatter_add",
        "",
    ],
)
def test_what_is_no_collective_is_none(name: str) -> None:
    assert collective(name) is None


ATEN = "void at::native::"
UNNAMED = ATEN + "(anonymous namespace)::"
VIEWS = ("empty", "view", "item", "_local_scalar_dense", "t", "detach", "as_strided", "expand", "transpose")
ELEMENTWISE = ATEN + "vectorized_elementwise_kernel<4, "


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::native_layer_norm_backward", "norm"),
        ("aten::gelu", "activation"),
        ("aten::bernoulli_", "dropout"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::_log_softmax", "softmax and loss"),
        ("gloo:all_reduce", "communication"),
        ("mystery", "other"),
        # Kernels.
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
            "GEMM",
        ),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)", "GEMM"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256_SLOSS_GELU", "GEMM"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, cublasGemvParams<float>>", "GEMM"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<>)", "attention"),
        (ATEN + "(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "norm"),
        (ATEN + "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<5>, LAMBStage1Functor<float>>", "optimizer"),
        (ELEMENTWISE + "at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >", "elementwise"),
        ("triton_poi_fused__to_copy_add_mul_3", "elementwise"),
        (ELEMENTWISE + "GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#2}>", "activation"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>", "softmax and loss"),
        (ATEN + "nll_loss_forward_reduce_cuda_kernel_2d<float>", "softmax and loss"),
        (ATEN + "index_elementwise_kernel<128, 4, gpu_index_kernel>", "embedding"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        (ELEMENTWISE + "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>", "copy"),
        (ATEN + "(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>", "copy"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "communication"),
        ("void vllm::cross_device_reduce_1stage<float, 2>", "communication"),
        (ATEN + "reduce_kernel<512, 1, at::native::ReduceOp<float, MeanOps<float>>>", "reduction and sort"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", "convolution"),
        ("saxpy(double *, double *)", "other"),
        ("", "other"),
        # Templates name how they load and store: that says nothing about what they compute.
        ("unrolled_elementwise_kernel<AddFunctor, LoadWithCast<2>, StoreWithCast<1> >", "elementwise"),
        ("triton_poi_fused__to_copy_12", "copy"),
        (UNNAMED + "compute_grad_weight<c10::BFloat16, long>(long const*)", "embedding"),
        (UNNAMED + "masked_scale_kernel<bool, float>(float*)", "dropout"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3_64x128x128", "attention"),
        ("void fbgemm_gpu::(anonymous namespace)::_compute_FP8_quantize_cuda_kernel<float>(float const*)", "copy"),
        (ELEMENTWISE.replace("elementwise_kernel", "elementwise_kernel_with_cast"), "elementwise"),
        ("void cub::CUB_200_NS::DeviceSelectSweepKernel<1>(cub::ScanTileState<int>)", "reduction and sort"),
        ("triton__0d1d2d3d4de", "fused"),
        ("loop_add_fusion_3", "fused"),
        *((f"aten::{view}", "other") for view in VIEWS),
        ("aten::transpose_copy", "copy"),
        ("_fusion" * 600 + "!", "other"),
    ],
)
def test_families_by_name(name: str, expected: str) -> None:
    assert family(name) == expected


NAMES = {
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(Params)": "fp32",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4": "fp32",
    "void matrixMulCUDA<int=32>(float*, float*, float*, int, int)": "fp32",
    "Cijk_Alik_Bljk_SB_MT64x64x16_SN": "fp32",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel": "tf32",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)": "tf32",
    "Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32": "tf32",
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn": "bf16",
    "nvjet_sm100_tst_64x32_64x16_2x1_2cta_h_bz_TNT": "bf16",
    "Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64": "bf16",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false>": "bf16",
    "volta_h884gemm_64x64_ldg8_nn": "fp16",
    "maxwell_fp16_sgemm_fp16_128x64_nn": "fp16",
    "Cijk_Ailk_Bjlk_HHS_BH_MT128x128x16": "fp16",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128_warpgroupsize1x1x1_execute": "fp8",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168u, 2048u>": "fp8",
    "Custom_Cijk_Alik_Bljk_F8B8BS_BH_Bias_SHB": "fp8",
    "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT": "mxfp8",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x256x64x1_swiglu": "mxfp4",
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x8x512": "mxfp4",
    "cutlass3x_sm100_bstensorop_s256x256x64gemm_block_scaled_ue4m3xe2m1_ue4m3xe2m1_f32_bf16": "nvfp4",
    "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16": "int8",
    "ampere_dgemm_64x64_nn": "fp64",
    "triton_mm_3": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_kernels_tell_the_types(name: str) -> None:
    assert precision(name) == NAMES[name] and precision(name) in PRECISIONS


def mm(tid: int, start: int, types: list[str] | None) -> dict[str, object]:
    args = {} if types is None else {"Input type": types, "Input Dims": [[8, 8], [8, 8]]}
    return event("aten::mm", start, 20, args=args, tid=tid)


def test_input_types_tell_what_a_kernel_s_name_does_not(tmp_path: Path) -> None:
    """Two kernels without a type in their names: one launched by a product of bf16 on thread 2, one by none."""
    events = [
        mm(1, 0, ["float", "float"]),
        mm(2, 0, ["c10::BFloat16", "c10::BFloat16"]),
        call(5, 2, 1) | {"tid": 2},
        call(50, 2, 2),
        kernel("triton_mm_3", 60, 30, correlation=1),
        kernel("triton_mm_4", 90, 10, correlation=2),
    ]
    trace = kineto.read(write(tmp_path / "trace-rank0.json", events))
    assert trace.operators["precision"].astype(str).tolist() == ["fp32", "bf16"]
    assert gemm_time_by_precision([trace]) == {"bf16": 30_000, "": 10_000}
