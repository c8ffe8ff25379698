"""Kernel families by name, and tables of kernels: hand-worked, and against TraceLens' published sums."""

import csv

import pandas as pd
import pytest
from support import shared_files
from support.timelines import timeline

from analysis.gpu_work import name_codes
from analysis.metrics.kernel_tables import (
    FAMILY_ROW_COLUMNS,
    KERNEL_ROW_COLUMNS,
    family_rows,
    is_communication,
    kernel_rows,
    over_ranks,
)
from analysis.names import family
from analysis.readers.kineto import read

TRACES = shared_files.TRACES / "kineto"
ATEN = "void at::native::"
ELEMENTWISE = ATEN + "vectorized_elementwise_kernel<4, "


@pytest.mark.parametrize(
    ("name", "expected"),
    [
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
        ("triton_poi_fused__to_copy_12", "copy"),
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
    ],
)
def test_families_of_real_kernel_names(name: str, expected: str) -> None:
    assert family(name) == expected


@pytest.mark.timeout(20)
def test_a_huge_name_costs_no_more_than_a_long_one() -> None:
    names = ("cutlass" * 10**6, "triton_poi_fused" + "_to_copy" * 10**6 + "!", "a_mm" * 10**6, "aten::(" * 10**6)
    assert [family(name) for name in names] == ["GEMM", "copy", "GEMM", "elementwise"]


def sample(rank: int = 0, extra: int = 0):
    return timeline(
        rank,
        steps=[(0, 0, 1000), (1, 1000, 2000)],
        kernels=[
            ("sgemm", 7, 100, 400, 1),
            ("sgemm", 7, 1100, 1200 + extra, 2),
            ("ncclDevKernel_AllReduce", 9, 300, 500),
            ("Memcpy HtoD", 7, 600, 650, 3, "memcpy"),
            ("sgemm", 7, 2100, 2400, 4),  # launched in the last step, runs after it
            ("sgemm", 7, 1900, 1950, 5),  # launched before the first step
            ("warm-up", 7, -50, 20),
        ],
        api=[
            ("cudaLaunchKernel", start, start + 5, index + 1) for index, start in enumerate([50, 1050, 590, 1990, -10])
        ],
    )


def test_kernels_count_in_the_steps_that_launched_them() -> None:
    rows = kernel_rows(sample())
    assert list(rows.columns) == list(KERNEL_ROW_COLUMNS)
    assert rows["name"].tolist() == ["sgemm", "ncclDevKernel_AllReduce", "Memcpy HtoD"]
    gemm = rows.iloc[0]
    assert (gemm["rank"], gemm["family"], gemm["calls"], gemm["total_ms"]) == (0, "GEMM", 3, pytest.approx(700e-6))
    assert gemm[["mean_us", "min_us", "max_us"]].tolist() == pytest.approx([0.7 / 3, 0.1, 0.3])
    assert gemm["kernel_time_share"] == pytest.approx(700 / 950) and gemm["window_share"] == pytest.approx(0.35)
    assert "Memcpy HtoD" not in kernel_rows(sample(), copies=False)["name"].tolist()


def test_families_add_up_the_kernels() -> None:
    rows = family_rows(sample()).set_index("family")
    assert rows["total_ms"].to_dict() == pytest.approx({"GEMM": 700e-6, "communication": 200e-6, "copy": 50e-6})
    assert rows["kernel_time_share"].sum() == pytest.approx(1.0) and rows["calls"].to_dict()["GEMM"] == 3


def test_over_ranks_a_rank_without_the_kernel_counts_as_zero() -> None:
    lone = timeline(2, kernels=[("sgemm", 7, 0, 100)])
    table = over_ranks([kernel_rows(sample(0)), kernel_rows(sample(1, extra=300)), kernel_rows(lone)]).set_index("name")
    assert table.loc["sgemm", ["ranks", "calls"]].tolist() == [3, 7]
    assert table.loc["sgemm", ["mean_ms", "min_ms", "max_ms"]].tolist() == pytest.approx([600e-6, 100e-6, 1000e-6])
    assert table.loc["Memcpy HtoD", ["ranks", "mean_ms", "min_ms"]].tolist() == pytest.approx([2, 100e-6 / 3, 0])
    families = over_ranks([family_rows(sample()), family_rows(lone)], by="family")
    assert families["family"].tolist()[0] == "GEMM" and families["kernel_time_share"].sum() == pytest.approx(1.0)
    assert len(over_ranks([])) == 0


def test_categories_and_missing_names_are_read() -> None:
    names = pd.Series(["a", None, "ncclX", "a"], dtype="category")
    codes, found = name_codes(names)
    assert [found[code] for code in codes] == ["a", "", "ncclX", "a"]
    assert is_communication(pd.DataFrame({"name": names})).tolist() == [False, False, True, False]


def test_no_kernels_give_tables_without_rows() -> None:
    assert list(kernel_rows(timeline()).columns) == list(KERNEL_ROW_COLUMNS) and len(kernel_rows(timeline())) == 0
    assert list(family_rows(timeline()).columns) == list(FAMILY_ROW_COLUMNS)
    late = timeline(steps=[(0, 0, 10)], kernels=[("gemm", 7, 50, 60)])
    assert len(kernel_rows(late)) == 0


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_sums_and_counts_by_kernel_agree_with_tracelens() -> None:
    (expected,) = (TRACES / "tracelens").glob("expected__h100*kernel_summary.csv")
    sums: dict[str, list[float]] = {}
    for row in csv.DictReader(expected.open(encoding="utf-8")):
        entry = sums.setdefault(row["Kernel name"], [0.0, 0.0])
        entry[0] += float(row["Kernel duration (µs)_sum"])
        entry[1] += float(row["Kernel duration (µs)_count"])
    (path,) = (TRACES / "tracelens").glob("h100__*.json.gz")
    rows = kernel_rows(read(path)).set_index("name")
    missing = set(sums) - set(rows.index)
    assert not missing
    for name, (total_us, count) in sums.items():
        assert rows.loc[name, "calls"] == count, name
        assert rows.loc[name, "total_ms"] * 1e3 == pytest.approx(total_us, abs=1e-6), name
