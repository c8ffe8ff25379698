"""A stand-in for Nsight Compute: enough of its command line to export a report, and ways to fail.

What it does is set by FAKE_NCU: ok, bad-import (the report cannot be loaded), no-kernels (an export without one).
"""

import sys
from pathlib import Path

HEADER = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Device","CC"'
UNITS = ",".join(['""'] * 9)

_SCRIPT = """#!{python}
import os, sys

words, mode = sys.argv[1:], os.environ.get("FAKE_NCU", "ok")
if words == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nCopyright (c) 2018-2022 NVIDIA Corporation")
    print("Version {version} (build 31729285) (public-release)")
elif words == ["--query-metrics"]:
    print("Device NVIDIA H200 (GH100)\\n---------- ----------\\nMetric Name  Metric Type\\n---------- ----------")
    for name in {metrics!r}:
        print(name.ljust(70) + " Counter         inst            # of things")
elif words[0] == "--import":
    page = words[words.index("--page") + 1]
    if mode == "bad-import":
        print("==ERROR== Failed to load report file '" + words[1] + "'.")
        sys.exit(1)
    print("==PROF== a line before the table")
    kernels = 0 if mode == "no-kernels" else 3
    if page == "raw":
        print({header!r} + ',"gpu__time_duration.sum"')
        print({units!r} + ',"usecond"')
        for kernel in range(kernels):
            print('"%d","7","python3","h","gemm","1","7","0","9.0","%d"' % (kernel, kernel + 1))
    else:
        print({header!r} + ',"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type",'
              '"Rule Description","Estimated Speedup Type","Estimated Speedup"')
        for kernel in range(kernels):
            start = '"%d","7","python3","h","gemm","1","7","0","9.0"' % kernel
            print(start + ',"s","gpu__time_duration.sum","usecond","%d","","",""' % (kernel + 1))
            print(start + ',"Occupancy","","","","TheoreticalOccupancy","OPT","Few, ""very few"" warps.","global","40"')
else:
    sys.exit("unexpected " + " ".join(words))
"""


def install(folder: Path, version: str = "2022.3.0.0", metrics: tuple[str, ...] = ()) -> Path:
    """Write the stand-in as `folder`/ncu, which knows these base names of metrics, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ncu"
    path.write_text(
        _SCRIPT.format(python=sys.executable, version=version, metrics=metrics, header=HEADER, units=UNITS),
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path
