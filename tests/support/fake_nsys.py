"""A stand-in for Nsight Systems: enough of its command line to run a program under it, and ways to fail.

What it does is set by FAKE_NSYS: ok, refuses (starts nothing), no-report, empty-report, hangs (after the program's
end), bad-export, needs-newer (the report is of a newer version), full-disk,
foreign-export (no nsys tables). Under every one a daemon of its own is left behind, as real ones can be.
"""

import sys
from pathlib import Path

_SCRIPT = """#!{python}
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
    if mode == "needs-newer":
        print("Exportation error: the report was created by a newer version\\nof Nsight Systems", file=sys.stderr)
        sys.exit(1)
    if mode == "full-disk":  # as 2022.4 ends there
        (output,) = [word.split("=", 1)[1] for word in words if word.startswith("--output=")]
        open(output, "wb").close()
        print("Failed to close: what: RuntimeException\\n = database or disk is full", file=sys.stderr)
        sys.exit(0)
    if mode == "bad-export":
        print("the report is truncated", file=sys.stderr)
        sys.exit(1)
    (output,) = [word.split("=", 1)[1] for word in words if word.startswith("--output=")]
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


def install(folder: Path, version: str = "2026.1") -> Path:
    """Write the stand-in as `folder`/nsys and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nsys"
    path.write_text(_SCRIPT.format(python=sys.executable, version=version), encoding="utf-8")
    path.chmod(0o755)
    return path
