"""Stand-ins for Nsight Systems and Nsight Compute: enough of their command lines, and ways to fail.

FAKE_NSYS says what nsys does: ok, refuses (starts nothing), no-report, empty-report, hangs (after the program's end),
bad-export, needs-newer (the report is of a newer version), full-disk, foreign-export (no nsys tables). Under every one
it leaves a daemon behind, as real ones can. FAKE_NCU says what ncu does: ok, bad-import (the report cannot be loaded),
no-kernels (an export without one).
"""

import sys
from pathlib import Path

HEADER = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Device","CC"'
UNITS = ",".join(['""'] * 9)

_NSYS = """#!{python}
import os, sqlite3, subprocess, sys, time

words, mode = sys.argv[1:], os.environ.get("FAKE_NSYS", "ok")
if words == ["--version"]:
    print("NVIDIA Nsight Systems version {version}-abc")
elif words[0] == "profile":
    if mode == "refuses":
        print("unrecognised option", file=sys.stderr)
        sys.exit(1)
    command = words[1:]
    while command[0].startswith("-"):
        name, _, value = command.pop(0).partition("=")
        if name == "--output":
            output = value
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    done = subprocess.run(command)
    print("Capture range started in the application.", flush=True)
    if mode == "hangs":
        time.sleep(300)
    if mode != "no-report":
        with open(output, "wb") as file:
            file.write(b"" if mode == "empty-report" else b"report " + repr(dict(os.environ)).encode())
    sys.exit(done.returncode if mode == "ok" else 1)
elif words[0] == "export":
    (output,) = [word.split("=", 1)[1] for word in words if word.startswith("--output=")]
    if mode == "needs-newer":
        print("Exportation error: the report was created by a newer version\\nof Nsight Systems", file=sys.stderr)
        sys.exit(1)
    if mode == "full-disk":  # as 2022.4 ends there
        open(output, "wb").close()
        print("Failed to close: what: RuntimeException\\n = database or disk is full", file=sys.stderr)
        sys.exit(0)
    if mode == "bad-export":
        print("the report is truncated", file=sys.stderr)
        sys.exit(1)
    connection = sqlite3.connect(output)
    if mode == "foreign-export":
        connection.execute("create table META (a)")
    else:
        connection.execute("create table StringIds (id INTEGER, value TEXT)")
        connection.execute(
            "create table NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER)"
        )
        connection.execute("insert into NVTX_EVENTS values (1000, 9000, 59, 'step 3', 117440519)")
    connection.execute("create table TARGET_INFO_SYSTEM_ENV (nameEnum, name, value)")
    connection.execute("insert into TARGET_INFO_SYSTEM_ENV values (1, 'HOME', 'home-of-someone')")
    connection.commit()
"""

_NCU = """#!{python}
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


def nsys(folder: Path, version: str = "2026.1") -> Path:
    """Write the stand-in as `folder`/nsys and return its path."""
    return _install(folder / "nsys", _NSYS.format(python=sys.executable, version=version))


def ncu(folder: Path, version: str = "2022.3.0.0", metrics: tuple[str, ...] = ()) -> Path:
    """Write the stand-in as `folder`/ncu, which knows these base names of metrics, and return its path."""
    names = {"metrics": metrics, "header": HEADER, "units": UNITS}
    return _install(folder / "ncu", _NCU.format(python=sys.executable, version=version, **names))


def _install(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path
