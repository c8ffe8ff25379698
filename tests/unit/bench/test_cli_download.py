"""`bertbench data download`: terms, refusals, help, progress, and a call that goes on where one was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.file_server import Site
from support.refusals import refused
from test_obtain import LARGE, ROOT, SMALL, add_dump

from bench.cli.dispatch import call
from bert.data.sources import SOURCES, RemoteOptions, obtain
from common.errors import Code

pytestmark = pytest.mark.usefixtures("no_remote_variables")


def run(argv: list[str]) -> int:
    return call(["data", "download", *argv])


def test_the_command_says_the_terms_then_fetches(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_dump(site, "simplewiki", "20261101", SMALL)
    monkeypatch.setenv("BERTBENCH_WIKIPEDIA_URL", site.base + "/")
    argv = ["wikipedia", "--out", str(tmp_path), "--language", "simple"]
    assert run(argv) == 0
    shown = capsys.readouterr()
    assert "ShareAlike" in shown.err
    assert "1 file, 200 kB (200 kB " in shown.out
    assert run([*argv, "--json", "--contact", "me@example.org"]) == 0
    shown = capsys.readouterr()
    (result,) = json.loads(shown.out)
    assert result["bytes"] == 200_000 and result["bytes_received"] == 0 and "note:" not in shown.err
    assert result["files"][0].endswith("simplewiki-20261101-pages-articles-multistream.xml.bz2")
    assert run(argv) == 0 and capsys.readouterr().out.count("200 kB") == 1, "nothing came now"


def test_the_list_names_what_is_fetched_and_how_to_get_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--list"]) == 0
    shown = capsys.readouterr().out
    for word in (*SOURCES, "robot/harvest", "Apache License 2.0", "ShareAlike 4.0", "no longer distributed"):
        assert word in shown
    assert run(["--list", "--json"]) == 0
    assert {row["name"]: row["fetched"] for row in json.loads(capsys.readouterr().out)}["gutenberg"] is False


@pytest.mark.parametrize(
    ("argv", "code", "fact"),
    [
        ([], "option-missing", "--list"),
        (["wikipediax"], "option-choice", "wikipedia"),
        (["gutenberg"], "option-choice", "robot/harvest"),
        (["squad", "--mirror", "file:///a"], "option-value", "http://"),
        (["squad", "bookcorpus"], "option-choice", "bookcorpus"),
    ],
)
def test_bad_requests_are_refused_before_the_first_byte(argv: list[str], code: Code, fact: str, tmp_path: Path) -> None:
    with refused(code, fact):
        run([*argv, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_killed_command_continues_with_the_rest_only(site: Site, tmp_path: Path) -> None:
    add_dump(site, "enwiki", "20261101", LARGE)
    site.pace_seconds = 0.1
    program = "import sys; from bench.cli.dispatch import call; sys.exit(call(['data', 'download', *sys.argv[1:]]))"
    argv = [sys.executable, "-c", program, "wikipedia", "--out", str(tmp_path), "--mirror", site.base]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        parts = list(tmp_path.rglob("*.part"))
        if parts and sum(part.stat().st_size for part in parts) > 100_000:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    have = sum(path.stat().st_size for path in (*tmp_path.rglob("*.part"), *tmp_path.rglob("*.bz2")))
    assert have > 100_000
    site.pace_seconds = 0.0
    before = len(site.asked)
    add_dump(site, "enwiki", "20261120", LARGE)  # a newer dump does not mix in
    finished, received = obtain("wikipedia", tmp_path, RemoteOptions(mirror=site.base), lambda *_: None)
    assert received == 600_000 - have == sum(request["sent"] for request in site.asked[before:])
    for path in finished.files:
        assert path.read_bytes() == site.files[f"/enwiki/20261101/{path.name}"]
    assert not list(tmp_path.rglob("*.part*"))
