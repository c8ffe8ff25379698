"""Secrets in environments and commands that a profiler recorded reach no output: text, JSON, CSV, pages, Perfetto."""

import json
import sqlite3
from pathlib import Path

import pytest
from support.profiles import NCCL, NCU, SAMPLES, kineto

from analysis.open import open_sources
from bench.cli.main import run

SECRET = "battery-staple-SECRET123"
PLAIN = "correct-horse-SECRET123"
COMMAND = f"python train.py --token={SECRET} --password {PLAIN}"


def _kineto(path: Path) -> None:
    document = json.loads(kineto())
    document["mast_job_environment"] = json.dumps({"HF_TOKEN": SECRET, "PASSWORD": PLAIN})
    document["bertbench"] = {"env": {"TOKEN": PLAIN}}
    document["traceName"] = f"/home/{SECRET}/{PLAIN}.json"
    document["traceEvents"][1]["args"] |= {"Cmd": COMMAND, "env": PLAIN}
    document["traceEvents"] += [
        {"ph": "M", "name": name, "pid": 1, "tid": 2, "args": {"name": COMMAND, "labels": COMMAND}}
        for name in ("process_name", "process_labels", "thread_name")
    ]
    path.write_text(json.dumps(document))


def _nsys(path: Path) -> None:
    SAMPLES["nsys"](path)
    with sqlite3.connect(path) as connection:
        for table in (
            "TARGET_INFO_SYSTEM_ENV",
            "META_DATA_CAPTURE",
            "META_DATA_EXPORT",
            "PROCESSES",
            "EXPORT_META_DATA",
        ):
            connection.execute(f"CREATE TABLE {table} (name TEXT, value TEXT, globalPid INTEGER)")
            connection.execute(f"INSERT INTO {table} VALUES ('HF_TOKEN', '{SECRET} {PLAIN}', 40)")
        connection.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)")
        connection.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 3, ?)", (f"Process launched with {COMMAND}",))
        connection.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
        connection.execute("INSERT INTO StringIds VALUES (9, ?)", (COMMAND,))
        connection.execute("INSERT INTO ProcessStreams VALUES (40, 9, 9)")
    connection.close()


PLANTED = {
    "kineto": _kineto,
    "nsys": _nsys,
    "ncu": lambda path: path.write_text(
        f"TOKEN={PLAIN}\n==PROF== Connected to process 7 ({COMMAND})\n==WARNING== {COMMAND}\n{NCU}\n{PLAIN}\n"
    ),
    "nccl": lambda path: path.write_text(f"+ {COMMAND}\nTOKEN={PLAIN}\nNCCL INFO env {SECRET}\n{NCCL}\n"),
    "nsys_csv": lambda path: path.write_text(f"Processing [{PLAIN}.sqlite]\n" + _text_of("nsys_csv", path)),
}


def _text_of(reader: str, path: Path) -> str:
    SAMPLES[reader](path)
    return path.read_text()


def written(folder: Path) -> str:
    import gzip

    files = [file for file in folder.rglob("*") if file.is_file()]
    return "\n".join(
        (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()).decode("utf-8", "replace")
        for file in files
        if file.suffix != ".png"
    )


@pytest.mark.parametrize("reader", PLANTED)
def test_what_a_file_holds_beside_its_measurements_is_in_no_output(
    reader: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile"
    PLANTED[reader](path)
    assert open_sources(path).kinds == (reader,)
    out = tmp_path / "out"
    assert run(["analyze", str(path), "--csv", str(out / "csv"), "--full"]) == 0
    assert run(["analyze", str(path), "--json"]) == 0
    assert run(["report", str(path), "--out", str(out / "page")]) == 0
    if open_sources(path).timelines:
        assert run(["analyze", str(path), "--perfetto", str(out / "p.json.gz")]) == 0
    said = capfd.readouterr()
    shown = said.out + said.err + written(out)
    assert len(shown) > 1000 and "SECRET123" not in shown
