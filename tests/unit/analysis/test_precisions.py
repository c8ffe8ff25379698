"""Shares are of kernels alone, and advice follows the types that ran. Names are those of public traces."""

from pathlib import Path

import pandas as pd
import pytest
from support import shared_files
from support.ncu_csv import SUFFIX
from support.timelines import timeline
from test_kineto_reader import event, write

from analysis.counters import KernelCounters
from analysis.diagnose import cores as core_findings
from analysis.diagnose import operators as operator_findings
from analysis.diagnose import timelines as timeline_findings
from analysis.diagnose.finding import Finding
from analysis.metrics.kernels.gemm_precision import gemm_time_by_precision
from analysis.names import PRECISIONS, precision
from analysis.readers.kineto import reader as kineto
from analysis.sources import open_sources
from analysis.timeline import Timeline

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
    assert first == "GEMM takes 36 % of the kernels' time"
    assert second == "it runs in bf16"
    assert third.startswith("communication takes 30 %: ") and "hide" in third


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
    sentence = operator_findings.findings([trace])[0].sentence
    assert said in sentence and ("avx512_bf16" in sentence) == advised
    untold = kineto.read(write(tmp_path / "bare-rank0.json", [mm(1, 0, None)]))
    assert "precision" not in untold.operators and "bf16" not in operator_findings.findings([untold])[0].sentence


@pytest.mark.parametrize(("types", "named"), [("c10::BFloat16", True), ("float", False), (None, False)])
def test_casts_to_bf16_are_spoken_of_where_it_ran(tmp_path: Path, types: str | None, named: bool) -> None:
    """80 us of copies, 20 of a product: copies may be casts only where something ran in another type."""
    events = [event("aten::copy_", 100, 80), mm(1, 0, None if types is None else [types, types])]
    (families, _) = operator_findings.findings([kineto.read(write(tmp_path / "trace-rank0.json", events))])
    assert "only move memory 80 %" in families.sentence and ("bf16" in families.sentence) == named


@pytest.mark.skipif(not shared_files.TRACES.is_dir(), reason="the shared traces are not beside this checkout")
@pytest.mark.parametrize("gpu", ["h100", "mi300"])
def test_public_bert_runs_in_bf16_are_not_told_to_use_it(gpu: str) -> None:
    """TraceLens' inputs list c10::BFloat16 for every product; its kernel_summary.csv says the same."""
    (path,) = (shared_files.TRACES / "kineto" / "tracelens").glob(f"{gpu}__*.json.gz")
    made = open_sources(path).timelines
    assert set(gemm_time_by_precision(made)) == {"bf16"} and set(made[0].operators["precision"]) <= {"", "bf16"}
    assert "runs in bf16." in families(*made).sentence and "tf32" not in families(*made).sentence


@pytest.mark.skipif(not shared_files.TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_a_public_gpu_trace_of_nvprof_has_copies_apart() -> None:
    """One kernel, 301 times, and three copies: all of the kernels' time is GEMM's, not 82.1 %."""
    (path,) = (shared_files.TRACES / "nvprof").glob("*matrixMul_trace.csv")
    found = families(*open_sources(path).timelines)
    assert found.table[["family", "calls", "kernel_time_share"]].to_numpy().tolist() == [["GEMM", 301, 1.0]]


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
    assert "90 % of the time" in sentence
    assert ("train in bf16" in sentence) is advised
    assert ("100 % of that runs in bf16" in sentence) is not advised
