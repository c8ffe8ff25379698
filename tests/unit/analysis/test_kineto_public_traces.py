"""Real traces with published facts; see shared/README.md beside the checkout."""

import csv

import pytest
from support import shared_files

from analysis.counters import KernelCounters
from analysis.readers.kineto.reader import read, read_many, read_ranks, recognises
from analysis.readers.registry import read_head

TRACES = shared_files.TRACES / "kineto"
HTA = TRACES / "hta"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")


@pytest.mark.parametrize("folder", ["dlrm-8-ranks", "megatron-8-ranks"])
def test_ranks_have_the_published_gpu_events(folder: str) -> None:
    ranks = read_ranks(sorted((TRACES / folder).glob("*.gz")))
    with (TRACES / folder / "expected.csv").open() as file:
        expected = list(csv.DictReader(file))
    assert [found.rank for found in ranks] == [int(row["rank"]) for row in expected]
    for found, row in zip(ranks, expected, strict=True):
        assert len(found.kernels) == int(row["gpu_events"])
        assert found.kernels["end"].max() - found.kernels["start"].min() == float(row["span_us"]) * 1000
        assert found.problems == () and found.world_size == 8
        # Some kernels were launched before the recording began.
        assert len(set(found.kernels["correlation_id"]) & set(found.api["correlation_id"])) > 200


def test_tensor_parallel_all_reduces_carry_their_number_and_size() -> None:
    ranks = [found.collectives for found in read_ranks(sorted((TRACES / "megatron-8-ranks").glob("*.gz")))]
    for found in ranks:
        assert len(found) == 84 and set(found["collective"]) == {"all_reduce"} and set(found["group_size"]) == {8}
        assert found["bytes"].iloc[0] == 4 * 2048 * 4096 * 2 and found["dtype"].iloc[0] == "c10::Half"
        assert found["seq"].tolist() == ranks[0]["seq"].tolist() and found["seq"].is_unique
        assert (found["bytes"] > 0).all()


def test_an_all_to_all_is_told_from_sends_by_the_host() -> None:
    found = read(next((TRACES / "dlrm-8-ranks").glob("worker0*"))).collectives
    assert found["collective"].tolist().count("all_to_all") == 5 and found["bytes"].iloc[0] == 6144 * 4
    assert found.loc[found["collective"] == "all_reduce", "bytes"].tolist()[0] == 394_241 * 4


def test_arguments_of_nccl_kernels_are_read() -> None:
    found = read(HTA / "nccl_parser_config__nccl_data.json.gz")
    assert len(found.collectives) == 21 and (found.rank, found.world_size) == (0, 2)
    first = found.collectives[found.collectives["collective"] == "all_reduce"].iloc[0]
    assert (first["bytes"], first["dtype"], first["group"], first["group_size"]) == (2_049_000 * 4, "Float", "0", 2)


def test_gloo_on_a_cpu_is_communication() -> None:
    found = read(HTA / "cpu_only__rank-34.old_b8cce2cd.json.gz")
    assert not len(found.kernels) and found.rank == 34 and found.world_size == 300
    assert len(found.collectives) == 10 and set(found.collectives["device"]) == {-1}
    first = found.collectives.iloc[0]
    assert (first["collective"], first["bytes"]) == ("all_reduce", 321_271 * 4)
    assert first["start"] == 1719853884000000000 + 1212075548353304 and first["end"] - first["start"] == 173_209_713


def test_steps_and_annotations_have_the_published_times() -> None:
    found = read(HTA / "trace_compare__test__test.json.gz")
    other = read(HTA / "trace_compare__base__base.json.gz")
    steps = other.steps.set_index("step")
    assert steps.loc[1010, "end"] - steps.loc[1010, "start"] == 122_149_000
    spans = [span for table in (found.ranges, other.ranges) for span in table.to_dict("records")]
    assert 67_000 in [span["end"] - span["start"] for span in spans if span["name"] == "nccl:all_reduce"]


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank_unavailable__rank_not_found", None), ("distributed_info_unavailable__distributed_info_not_found", None),
     ("large_integer_trace__rank-70.Mar_25_20_48_12.2861.pt.trace", 70)],
)  # fmt: skip
def test_what_is_missing_or_huge_is_survived(name: str, rank: int | None) -> None:
    found = read(HTA / f"{name}.json.gz")
    assert found.rank == rank and len(found.operators)


def test_triton_operators_with_a_stream_are_no_gpu_work() -> None:
    found = read(HTA / "triton_example__triton_example.json.gz")
    assert len(found.kernels) == 1 and len(found.operators) == 3 and found.api["name"].iloc[0] == "cuLaunchKernel"
    assert found.kernels["correlation_id"].tolist() == [35] and found.kernels["blocks_per_sm"].iloc[0] > 0


def test_counters_of_the_range_profiler_are_read() -> None:
    paths = [HTA / "cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz",
             HTA / "trace_compare__test__test.json.gz"]  # fmt: skip
    (found,) = (content for _, content in read_many(paths) if isinstance(content, KernelCounters))
    assert len(found.kernels) == 77 and found.device_name == "NVIDIA A100-PG509-200"
    assert found.kernels["smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"].iloc[5] == 86_114_304
    assert found.compute_capability == (8, 0) and found.kernels["duration_ns"].isna().all()


def test_every_public_trace_is_recognised_and_read_whole() -> None:
    for path in sorted(TRACES.glob("*/*.json.gz")):
        assert recognises(read_head(path)), path.name
    for kind, stream in (("h100", 7), ("mi300", 0)):
        found = read(next((TRACES / "tracelens").glob(f"{kind}*")))
        assert len(found.kernels) == 61 and stream in set(found.kernels["stream"]) and found.problems == ()
