"""Which kind of work a name says."""

import pytest

from analysis.names import family

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
