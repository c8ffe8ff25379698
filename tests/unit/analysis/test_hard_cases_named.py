"""The hard cases of the public traces: which test holds each, and those that stand here."""

import ast
import functools
import gzip
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from support import ncu_csv, shared_files
from support.kineto_events import event, write

from analysis.metrics.kernels.core_utilization import core_use
from analysis.names import collective
from analysis.readers.kineto.reader import read
from analysis.readers.ncu.reader import read as read_ncu
from analysis.timeline import Timeline

HERE = Path(__file__).parent
TRACES = shared_files.TRACES / "kineto"

HELD_BY: Mapping[str, tuple[str, ...]] = {
    "kineto: ts whole or with a fraction, 1.7e15 us exact": (
        "kineto_hard_cases.test_absolute_times_with_fractions_are_exact_to_the_nanosecond",
        "kineto_hard_cases.test_fractions_below_2_to_the_43_are_exact_too",
        "hard_cases_named.test_whole_and_fractional_times_of_one_trace_are_of_one_clock",
    ),
    "kineto: baseTimeNanoseconds": ("kineto_reader.test_a_base_time_is_added",),
    "kineto: Kernel and Memcpy of 2021": ("hard_cases_named.test_gpu_work_of_2021_is_that_of_today",),
    "kineto: GPU events of no length": ("hard_cases_named.test_gpu_events_of_no_length_are_kept_and_take_no_time",),
    "kineto: no deviceProperties, distributedInfo, rank; an integer over 2^63": (
        "kineto_reader.test_what_is_missing_or_huge_is_survived",
    ),
    "kineto: Triton operators with a stream": ("kineto_reader.test_triton_operators_with_a_stream_are_no_gpu_work",),
    "kineto: NCCL names in four forms": ("hard_cases_named.test_the_four_forms_of_nccl_s_names",),
    "kineto: an execution trace, a Git LFS pointer": ("kineto_reader.test_a_damaged_or_foreign_file_is_named",),
    "kineto: a bare list": ("kineto_hard_cases.test_a_bare_list_of_events_is_read",),
    "kineto: inf, invalid UTF-8, control characters": (
        "kineto_hard_cases.test_malformed_events_cost_only_themselves",
        "kineto_reader.test_invalid_utf8_and_control_characters_in_names_are_survived",
    ),
    "nsys: 25 to 40 columns, versions, graphs, names of GPUs in three tables": (
        "nsys_reader.test_an_export_of_2020_with_defaults_for_null_and_no_domains",
        "nsys_reader.test_an_export_of_2022_with_domains_payloads_and_two_processes",
        "nsys_reader.test_an_export_of_2024_names_gpus_process_by_process",
        "nsys_reader.test_an_export_of_2026_with_forty_kernel_columns_extended_payloads_and_graphs",
        "nsys_reader.test_a_graph_alone_is_work_of_the_process",
    ),
    "nsys: no kernel table; counts and sums": (
        "nsys_files.test_public_exports_give_instances_and_total_time_of_every_kernel",
        "nsys_calls.test_instances_and_total_time_of_every_kernel_and_call_are_sqlite_s_own",
    ),
    "nsys: text that is not UTF-8": ("nsys_reader.test_text_that_is_not_utf8_and_missing_names_are_survived",),
    "nsys: stats CSVs": (
        "profiler_csv.test_the_old_header_has_its_unit_in_one_column_alone",
        "profiler_csv.test_several_reports_in_one_file_between_lines_of_other_kinds",
        "profiler_csv.test_kernels_by_name_grid_and_block_keep_both",
    ),
    "nsys: the environment is never echoed": (
        "nsys_reader.test_the_recorded_environment_is_never_read",
        "no_secrets_shown.test_what_a_file_holds_beside_its_measurements_is_in_no_output",
    ),
    "ncu: header anywhere, short rows, several forms of values and units": (
        "ncu_reader.test_the_details_page_gives_one_row_per_kernel",
        "ncu_reader.test_rows_shorter_than_the_header_and_rows_of_rules_are_read",
        "ncu_reader.test_values_that_are_no_numbers_are_unknown_and_told",
        "ncu_reader.test_numbers",
        "ncu_reader.test_units_that_differ_by_row_become_one",
        "ncu_reader.test_the_raw_page_is_read_with_its_units_row",
    ),
    "ncu: one metric in two sections, _elapsed and _active": (
        "ncu_reader.test_a_metric_in_two_sections_is_one_column_and_a_label_in_two_sections_is_two",
        "hard_cases_named.test_a_percentage_of_elapsed_cycles_wins_over_one_of_active_ones",
    ),
    "ncu: CP949, mixed line endings, a save without quotes, no kernel": (
        "ncu_reader.test_encodings_are_told_apart",
        "ncu_reader.test_line_endings_do_not_matter",
        "ncu_reader.test_a_save_by_a_spreadsheet_without_quotes_is_read",
        "ncu_reader.test_a_table_without_kernels_gives_an_empty_frame_with_its_columns",
    ),
    "nvprof: units row per file, percents, SQLite or XML": (
        "profiler_csv.test_a_summary_gives_kernels_copies_and_calls_in_nanoseconds",
        "profiler_csv.test_metrics_are_numbers_in_base_units",
        "nvvp_reader.test_a_generated_file_gives_kernels_copies_and_calls",
        "nvvp_reader.test_a_session_of_the_visual_profiler_is_refused_with_what_to_give",
    ),
    "nvidia-smi: padded names, suffixes": (
        "nvidia_smi_reader.test_values_with_their_units_come_in_the_suites_units",
        "nvidia_smi_reader.test_the_real_log_agrees_with_its_columns_read_one_by_one",
    ),
    "HTA: counters of cupti_profiler": ("kineto_reader.test_counters_of_the_range_profiler_are_read",),
    "HTA: nccl_data": ("kineto_reader.test_arguments_of_nccl_kernels_are_read",),
    "HTA: trace_compare": ("kineto_reader.test_steps_and_annotations_have_the_published_times",),
    "HTA: sampled rank 0": ("temporal.test_holistic_trace_analysis_facts_of_rank_0_without_its_last_step",),
    "HTA: cpu_only": ("kineto_reader.test_gloo_on_a_cpu_is_communication",),
    "expected: DLRM, Megatron": (
        "kineto_reader.test_ranks_have_the_published_gpu_events",
        "temporal.test_eight_ranks_agree_with_the_public_values_to_the_microsecond",
    ),
    "expected: TraceLens": (
        "temporal.test_tracelens_gives_the_same_times_when_memsets_are_computation",
        "kernel_tables.test_sums_and_counts_by_kernel_agree_with_tracelens",
    ),
    "every Kineto trace": ("hard_cases_named.test_every_public_trace_has_the_work_that_its_own_json_has",),
}


@functools.cache
def names_in(module: str) -> set[str]:
    tree = ast.parse((HERE / f"test_{module}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("case", HELD_BY)
def test_every_hard_case_has_a_test(case: str) -> None:
    for named in HELD_BY[case]:
        module, _, test = named.partition(".")
        assert test in names_in(module), named


def lengths(found: Timeline) -> list[int]:
    return sorted((found.kernels["end"] - found.kernels["start"]).tolist())


def test_whole_and_fractional_times_of_one_trace_are_of_one_clock(tmp_path: Path) -> None:
    whole, least = 1_700_000_000_000_000, 0.001
    events = [event("a", whole, 1, "kernel"), event("b", whole + 1, least, "kernel")]
    text = write(tmp_path / "a.json", events).read_text().replace(f'"ts": {whole + 1}', f'"ts": {whole + 1}.002')
    (tmp_path / "a.json").write_text(text)
    kernels = read(tmp_path / "a.json").kernels
    assert kernels["start"].tolist() == [whole * 1000, (whole + 1) * 1000 + 2]
    assert kernels["end"].tolist() == [whole * 1000 + 1000, (whole + 1) * 1000 + 3]


def test_gpu_work_of_2021_is_that_of_today(tmp_path: Path) -> None:
    old = [event("gemm", 1, 2, "Kernel"), event("Memcpy HtoD", 4, 1, "Memcpy"), event("Memset", 6, 1, "Memset")]
    new = [{**one, "cat": cat} for one, cat in zip(old, ("kernel", "gpu_memcpy", "gpu_memset"), strict=True)]
    tables = [
        read(write(tmp_path / f"{name}.json", events)).kernels[["name", "kind", "start", "end"]].astype(str)
        for name, events in (("old", old), ("new", new))
    ]
    assert tables[0].equals(tables[1]) and tables[0]["kind"].tolist() == ["kernel", "memcpy", "memset"]


def test_gpu_events_of_no_length_are_kept_and_take_no_time(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.json", [event("a", 1, 0, "kernel"), event("b", 2, 3, "kernel")]))
    assert lengths(found) == [0, 3000]


def test_the_four_forms_of_nccl_s_names() -> None:
    for name in (
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
    ):
        assert collective(name) == "all_reduce", name


def test_a_percentage_of_elapsed_cycles_wins_over_one_of_active_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(ncu_csv.raw())
    counters = read_ncu(path)
    name = f"sm__inst_executed_pipe_fma{ncu_csv.SUFFIX}"
    alone = core_use(counters).pipes["fma"].percent
    counters.kernels[name.replace("_elapsed", "_active")] = 99.0
    assert core_use(counters).pipes["fma"].percent == alone == pytest.approx(10.5)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_every_public_trace_has_the_work_that_its_own_json_has() -> None:
    """Python's own JSON, fractions as decimals, event by event; the eight ranks have their own expected values."""
    seen = 0
    for path in sorted(path for folder in ("hta", "resnet") for path in (TRACES / folder).glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, strict=False)
        kinds = ("kernel", "gpu_memcpy", "gpu_memset")
        expected = [
            round(Decimal(one["dur"]) * 1000)
            for one in document["traceEvents"]
            if one.get("ph") == "X" and str(one.get("cat")).lower() in kinds
        ]
        assert lengths(read(path)) == sorted(expected), path.name
        seen += len(expected)
    assert seen > 1000
