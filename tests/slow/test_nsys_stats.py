"""The readers of nsys's CSVs against its SQLite reader: the real `nsys stats` writes CSVs of a public export."""

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest
from support import shared_files

from analysis.readers import nsys
from analysis.readers.nsys_csv import read

EXPORT = shared_files.TRACES / "nsys/tests__power_iteration__baseline.sqlite.gz"
# Names up to 2022 and since.
OLD = ["gpukernsum", "cudaapisum", "nvtxppsum"]
NEW = ["cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_pushpop_sum"]


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
@pytest.mark.public
def test_csvs_of_nsys_itself_say_what_the_export_says(tmp_path: Path) -> None:
    plain = tmp_path / "a.sqlite"
    plain.write_bytes(gzip.decompress(EXPORT.read_bytes()))
    output = tmp_path / "a.csv"
    for names in (NEW, OLD):
        command = ["nsys", "stats", "--format", "csv", "--report", ",".join(names), str(plain)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if "could not be found" not in done.stdout + done.stderr:
            break
    output.write_text(done.stdout, encoding="utf-8")
    (expected,) = nsys.read(plain)
    kernels = expected.kernels[expected.kernels["kind"] == "kernel"]
    kernel_ns = int((kernels["end"] - kernels["start"]).sum())
    api_ns = int((expected.api["end"] - expected.api["start"]).sum())

    sums = {item.what: item for item in read(output)}
    assert set(sums) == {"kernels", "api", "ranges"} and not any(item.problems for item in sums.values())
    found = {what: (int(item.table["count"].sum()), int(item.table["total_ns"].sum())) for what, item in sums.items()}
    assert found["kernels"] == (len(kernels), kernel_ns) and found["api"] == (len(expected.api), api_ns)
    assert found["ranges"][0] == len(expected.ranges) + len(expected.steps)
