"""Damaged files of nsys and nvprof give a result or an InputError. How many: support.mutate."""

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import test_nsys_calls as exports
import test_nsys_csv as texts
import test_nvvp_reader as nvvps
from support.mutate import count_from_environment

from analysis.readers import nvvp
from analysis.readers.nsys import reader as nsys
from analysis.readers.nsys import summary_csv as nsys_csv
from analysis.readers.nsys import trace_csv as nsys_trace_csv
from analysis.readers.registry import read_head
from common.errors import InputError

INPUTS = count_from_environment()
MOST_SECONDS = 20.0
MODULES = (nsys, nsys_csv, nsys_trace_csv, nvvp)


def an_export(path: Path) -> Path:
    names = exports.strings("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gemm", "cudaLaunchKernel_v7000")
    ranges: list[dict[str, Any]] = [exports.DOMAIN]
    kernels, calls = [], []
    for number in range(60):
        start = 1000 * number
        ranges.append(exports.nccl(start, start + 900, "ncclAllReduce", **{exports.SIZE: 64}))
        ranges.append(exports.nvtx(start, start + 900, f"step {number}"))
        calls.append(exports.call(start + 5, start + 9, 2, number))
        kernels.append(exports.kernel(start + 20, start + 500, number % 2, number))
    gpus = [{"id": 0, "cuDevice": 0, "name": "A100", "smCount": 108}]
    return exports.export(
        path,
        StringIds=names,
        NVTX_EVENTS=ranges,
        CUPTI_ACTIVITY_KIND_RUNTIME=calls,
        CUPTI_ACTIVITY_KIND_KERNEL=kernels,
        CUPTI_ACTIVITY_KIND_MEMCPY=[{**exports.kernel(1, 2, 0, 1), "bytes": 4, "copyKind": 1}],
        TARGET_INFO_GPU=gpus,
        ANALYSIS_DETAILS=[{"duration": 100_000}],
    )


def mutated(data: bytes, random_: random.Random, words: list[bytes]) -> bytes:
    content = bytearray(data)
    for _ in range(random_.choice([1, 1, 2, 5, 40])):
        if not content:
            break
        at = random_.randrange(len(content))
        kind = random_.randrange(7)
        if kind == 0:
            content[at] = random_.randrange(256)
        elif kind == 1:
            content[at] ^= 1 << random_.randrange(8)
        elif kind == 2:
            length = random_.randrange(1, 64)
            content[at : at + length] = bytes(random_.choice((0, 255, random_.randrange(256))) for _ in range(length))
        elif kind == 3:
            del content[at : at + random_.randrange(1, 200)]
        elif kind == 4:
            content[at:at] = content[: random_.randrange(1, 300)]
        elif kind == 5:
            word = random_.choice(words)
            content[at : at + len(word)] = word
        else:
            del content[at + 1 :]
    return bytes(content)


def kept_whole(data: bytes, random_: random.Random) -> bytes:
    """A database of the same size, so that damage inside the pages is met and not only the check of the size."""
    content = bytearray(data)
    for _ in range(random_.choice([1, 3, 10])):
        page = random_.randrange(len(content) // 4096) * 4096
        kind = random_.randrange(4)
        if kind == 0:  # the page's head and its list of cells
            content[page + random_.randrange(100 if page == 0 else 0, 140)] = random_.randrange(256)
        elif kind == 1:
            other = random_.randrange(1, len(content) // 4096) * 4096
            content[max(page, 100) : page + 4096] = content[other + max(page, 100) - page : other + 4096]
        else:  # inside the records
            content[page + random_.randrange(100, 4096)] = random_.choice((0, 7, 13, 127, 128, 255))
    return bytes(content)


WORDS = [b"nan", b"1e999", b"-1", b"99999999999999999999", b'"', b",", b"\n", b"(ns)", b"==1== ", b"\xff\xfe", b"\x00"]
TEXTS: list[tuple[ModuleType, str]] = [
    (nsys_csv, texts.SEVERAL),
    (nsys_csv, texts.KERNELS_2020),
    (nsys_trace_csv, f"{texts.GPU_TRACE}\n{texts.PUSH_POP}"),
]


def survives(module: ModuleType, path: Path, data: bytes) -> bool:
    """Whether something was read; fails the test for anything but a result or an InputError."""
    path.write_bytes(data)
    begin = time.process_time()
    try:
        head = read_head(path)
        assert all(isinstance(other.recognises(head), bool) for other in MODULES)
        found = module.read(path)
    except InputError:
        found = None
    assert time.process_time() - begin < MOST_SECONDS
    for item in found if isinstance(found, list) else [found] if found is not None else []:
        if hasattr(item, "kernels"):
            for table in (item.kernels, item.api, item.ranges, item.collectives, item.steps):
                assert (table["end"].to_numpy(dtype=np.int64) >= table["start"].to_numpy(dtype=np.int64)).all()
    return bool(found)


@pytest.mark.parametrize(("module", "text"), TEXTS, ids=[f"{module.__name__[17:]}-{len(t)}" for module, t in TEXTS])
def test_damaged_texts_give_a_result_or_a_clean_error(tmp_path: Path, module: ModuleType, text: str) -> None:
    random_ = random.Random(5)
    data = text.encode()
    assert survives(module, tmp_path / "a.csv", data)
    read = [survives(module, tmp_path / "a.csv", mutated(data, random_, WORDS)) for _ in range(INPUTS)]
    assert any(read)


@pytest.mark.parametrize(("module", "write"), [(nsys, an_export), (nvvp, nvvps.whole)], ids=["nsys", "nvvp"])
def test_damaged_databases_give_a_result_or_a_clean_error(
    tmp_path: Path, module: ModuleType, write: Callable[[Path], Path]
) -> None:
    random_ = random.Random(7)
    data = write(tmp_path / "whole").read_bytes()
    path = tmp_path / "a.sqlite"
    assert survives(module, path, data)
    read = 0
    for number in range(INPUTS):
        read += survives(
            module, path, mutated(data, random_, [b"\x0d", b"\x05"]) if number % 3 else kept_whole(data, random_)
        )
    assert read > INPUTS // 20


def test_values_of_every_type_in_every_column_give_a_result(tmp_path: Path) -> None:
    random_ = random.Random(11)
    values = [None, "text", b"\xff\x00", 1.5, float("inf"), -(2**63), 2**63 - 1, "9" * 50, "", 0, '{"a": [[[1]]]}', -1]
    path = an_export(tmp_path / "a.sqlite")
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    tables = [row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for _ in range(max(20, INPUTS // 10)):
        for _ in range(12):
            table = random_.choice(tables)
            columns = [row[1].decode() for row in connection.execute(f"PRAGMA table_info({table})")]
            column = random_.choice([name for name in columns if (table, name) != ("StringIds", "id")])
            where = f"rowid % {random_.randrange(1, 9)} = 0"
            connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', [random_.choice(values)])
        connection.commit()
        survives(nsys, path, path.read_bytes())
    connection.close()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nsys_csv, texts.KERNELS_2024.replace("Name", "Name" + " " * 100_000 + "x", 1)),
        (nsys_csv, "Processing " + " " * 500_000 + "x\n" + texts.KERNELS_2024),
        (nsys_trace_csv, texts.GPU_TRACE.replace("NVIDIA RTX 5000 Ada (0)", "a" + " " * 100_000 + "(x")),
    ],
)
def test_long_runs_of_blanks_and_digits_take_no_time(tmp_path: Path, module: ModuleType, text: str) -> None:
    begin = time.process_time()
    survives(module, tmp_path / "a.csv", text.encode())
    assert time.process_time() - begin < 3


def test_texts_that_multiply_do_not_fill_the_memory(tmp_path: Path) -> None:
    ranges = [{**exports.DOMAIN, "text": "d" * 1_000_000}]
    ranges += [{**exports.nvtx(n, n + 1, f"range {n}"), "domainId": 1, "jsonTextId": 0} for n in range(1, 3000)]
    path = exports.export(tmp_path / "a.sqlite", StringIds=exports.strings("[" * 1_000_000), NVTX_EVENTS=ranges)
    begin = time.process_time()
    (found,) = nsys.read(path)
    assert time.process_time() - begin < 5 and found.ranges["name"].str.len().max() < 400
