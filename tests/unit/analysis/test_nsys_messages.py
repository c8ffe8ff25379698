"""Why an export of nsys holds no GPU work: said in the words of its own messages, without what they should not show."""

import gzip
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.refusals import refused
from test_nsys_reader import NVTX_2022, Export, nvtx, only

from analysis.metrics.kernels.utilization import compute_utilization
from analysis.readers.nsys.reader import read
from analysis.sources import open_sources

TRACES = shared_files.TRACES / "nsys"
NOT_STARTED = "CUDA profiling might have not been started correctly."
NO_EVENTS = "No CUDA events collected. Does the process use CUDA?"
SAMPLING = "Unable to configure the collection of CPU IP/backtrace samples."
INFO, WARNING, ERROR = 1, 2, 3
COLUMNS_2024 = "timestamp timestampType source severity text globalPid"

Message = tuple[int | None, Any]


def export(
    path: Path, messages: Sequence[Message], columns: str = COLUMNS_2024, ranges: bool = True, gpu: bool = True
) -> Path:
    """Write an export without GPU work: (severity, text) of its messages, in order."""
    made = Export(path)
    rows = [dict(zip(("severity", "text"), message, strict=True)) for message in messages]
    made.table("DIAGNOSTIC_EVENT", columns, [{k: v for k, v in row.items() if k in columns.split()} for row in rows])
    made.table("NVTX_EVENTS", NVTX_2022, [nvtx(1, 2, text="a")] if ranges else [])
    made.table("TARGET_INFO_GPU", "id name", [{"id": 0, "name": "A100"}] if gpu else [])
    return made.done()


def note(path: Path) -> str:
    (problem,) = only(read(path)).problems
    return problem


def test_the_reason_is_said_most_severe_first_each_once_with_its_number(tmp_path: Path) -> None:
    messages = [(INFO, "CUDA injection initialized successfully."), (WARNING, NOT_STARTED), (WARNING, NO_EVENTS),
                (WARNING, NOT_STARTED), (ERROR, "CUPTI could not be loaded."), (ERROR, SAMPLING)]  # fmt: skip
    said = note(export(tmp_path / "a.sqlite", messages))
    assert said.startswith("no kernel or copy was recorded on a machine with a GPU: nsys says: error: CUPTI could not")
    assert said.index("CUPTI") < said.index(NOT_STARTED.rstrip(".")) < said.index("No CUDA events collected")
    assert "started correctly (2 times)" in said and said.count(NOT_STARTED.rstrip(".")) == 1
    assert "initialized" not in said and "samples" not in said  # no news, and not of the GPU
    found = compute_utilization(only(read(tmp_path / "a.sqlite")))
    assert found.compute_utilization is None and found.reason == said


def test_where_none_speaks_of_the_gpu_the_others_are_said(tmp_path: Path) -> None:
    said = note(export(tmp_path / "a.sqlite", [(WARNING, "Scheduling information is absent."), (ERROR, SAMPLING)]))
    assert "error: Unable to configure" in said and said.index("error") < said.index("warning: Scheduling")


@pytest.mark.parametrize("columns", ["severity text", "timestamp severity text source globalPid extra", COLUMNS_2024])
def test_columns_differ_by_version(tmp_path: Path, columns: str) -> None:
    assert "started correctly" in note(export(tmp_path / "a.sqlite", [(WARNING, NOT_STARTED)], columns))


@pytest.mark.parametrize("column", ["text", "textId"])
def test_a_text_may_be_the_number_of_one_in_the_table_of_texts(tmp_path: Path, column: str) -> None:
    path = export(tmp_path / "a.sqlite", [], f"severity {column}")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE DIAGNOSTIC_EVENT")
        connection.execute(f"CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, {column} INTEGER)")
        connection.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (2, 9), (3, 10)")
        connection.execute("INSERT INTO StringIds VALUES (9, ?)", (NOT_STARTED,))
    connection.close()
    assert f"nsys says: warning: {NOT_STARTED.rstrip('.')}" in note(path)


def test_messages_without_severity_or_text_leave_the_general_hint(tmp_path: Path) -> None:
    hint = "was CUDA traced (-t cuda,nvtx)?"
    for number, (columns, message) in enumerate([("text", (None, NOT_STARTED)), (COLUMNS_2024, (WARNING, None)),
                                                 (COLUMNS_2024, (INFO, "Profiling has started."))]):  # fmt: skip
        assert note(export(tmp_path / f"{number}.sqlite", [message], columns)).endswith(hint)


def test_a_run_on_a_machine_without_a_gpu_is_told_only_where_cuda_was_traced(tmp_path: Path) -> None:
    others = [(INFO, "Profiling has started."), (ERROR, SAMPLING)]
    assert only(read(export(tmp_path / "a.sqlite", others, gpu=False))).problems == ()
    said = note(export(tmp_path / "b.sqlite", [(WARNING, NO_EVENTS)], gpu=False))
    assert "No CUDA events collected" in said and "with a GPU" not in said


def test_a_gpu_that_worked_needs_no_reason(tmp_path: Path) -> None:
    from test_nsys_reader import KERNEL_2022, kernel

    made = Export(tmp_path / "a.sqlite").strings(i3="gemm")
    made.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_2022, [kernel(1, 2, 3)])
    made.table("DIAGNOSTIC_EVENT", COLUMNS_2024, [{"severity": WARNING, "text": NOT_STARTED}])
    assert only(read(made.done())).problems == ()


SECRETS = ("hush", "hf_abcdefghijklmnopqrstuvwxyz0123456789", "alice", "s3cret", "wonder")


@pytest.mark.parametrize(
    "text",
    [
        "CUDA process launched with --password hush TOKEN=s3cret",
        "GPU trace: command line python train.py --user alice",
        "The environment variable CUDA_TOKEN is s3cret",
        "CUDA injection failed for HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 --key=s3cret",
        "CUDA libraries are read from /home/alice/wonder/lib and '/home/alice/x'",
        'CUDA failed in "python train.py --user alice"',
        "GPU access was denied, see https://alice:s3cret@host/x",
    ],
)
def test_what_messages_quote_is_never_shown(tmp_path: Path, text: str) -> None:
    for ranges in (True, False):
        path = export(tmp_path / f"{ranges}.sqlite", [(ERROR, text), (WARNING, NOT_STARTED)], ranges=ranges)
        said = note(path) if ranges else refusal(path)
        assert "started correctly" in said and not [secret for secret in SECRETS if secret in said]


def test_long_and_many_messages_are_cut(tmp_path: Path) -> None:
    messages = [(ERROR, f"CUDA {number} " + "x" * 5000) for number in range(10)]
    said = note(export(tmp_path / "a.sqlite", messages))
    assert len(said) < 800 and said.endswith("and 7 more")


def refusal(path: Path) -> str:
    with refused("trace-without-work", path) as caught:
        open_sources(path)
    return str(caught.value)


def test_an_export_with_nothing_at_all_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", [(WARNING, NOT_STARTED)], ranges=False)
    said = refusal(path)
    assert said.startswith(str(path)) and "started correctly" in said and "nsys profile --trace=cuda,nvtx" in said


def test_beside_a_good_file_such_an_export_is_a_problem_with_its_reason(tmp_path: Path) -> None:
    export(tmp_path / "a.sqlite", [(WARNING, NOT_STARTED)], ranges=False)
    export(tmp_path / "b.sqlite", [], gpu=False)
    source = open_sources(tmp_path)
    assert len(source.timelines) == 1 and any(
        "a.sqlite" in text and "started correctly" in text for text in source.problems
    )


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_the_messages_of_a_public_export_are_its_reason_once_its_gpu_work_is_gone(tmp_path: Path) -> None:
    """It says of ten of its processes, which used no GPU, that CUDA profiling was not started."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(gzip.decompress((TRACES / "result_2_7B_nvtx.sqlite.gz").read_bytes()))
    with sqlite3.connect(path) as connection:
        (count,) = connection.execute("SELECT count(*) FROM DIAGNOSTIC_EVENT WHERE text = ?", (NOT_STARTED,)).fetchone()
        for table in ("KERNEL", "MEMCPY", "RUNTIME"):
            connection.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
    connection.close()
    said = " ".join(problem for found in read(path) for problem in found.problems)
    assert count == 10 and f"warning: {NOT_STARTED.rstrip('.')} (10 times)" in said
    assert "/tmp/" not in said and "REDACTED" not in said
