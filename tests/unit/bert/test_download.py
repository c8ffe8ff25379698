"""Downloads from servers that break off, change, refuse and stall; nothing under a final name is ever wrong."""

import hashlib
import random
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.file_server import Fault, Site, serving
from support.refusals import refused

from bert.data import download
from bert.data.download import DownloadError, RemoteFile, Server

ROOT = Path(__file__).resolve().parents[3]
CONTENT = random.Random(1).randbytes(900_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
NAME = "/a.bz2"
FILE = RemoteFile("a.bz2", len(CONTENT), SHA256)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({NAME: CONTENT})) as running:
        yield running


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(download, "LONGEST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 5.0)


def fetch(site: Site, path: Path, file: RemoteFile = FILE) -> int:
    """Return the bytes that came."""
    blocks: list[int] = []
    Server(site.base, "me/1 (a@b.c)").fetch(file, path, blocks.append)
    return sum(blocks)


def faults(site: Site, *each: Fault) -> None:
    site.faults[NAME] = deque(each)


def ranges(site: Site) -> list[str | None]:
    return [request["range"] for request in site.asked]


def left_over(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_ctrl_c_keeps_the_part_and_the_next_call_continues(site: Site, tmp_path: Path) -> None:
    def interrupt(count: int) -> None:
        if (tmp_path / "a.part").stat().st_size > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Server(site.base, "").fetch(FILE, tmp_path / "a", interrupt)
    assert left_over(tmp_path) == {"a.part"}
    have = (tmp_path / "a.part").stat().st_size
    assert fetch(site, tmp_path / "a") == len(CONTENT) - have
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_busy_servers_are_asked_again_as_late_as_they_wish(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(download, "FIRST_WAIT_SECONDS", 1.0)
    monkeypatch.setattr(download, "LONGEST_WAIT_SECONDS", 300.0)
    faults(site, Fault(503), Fault(429, {"Retry-After": "7"}), Fault(500), Fault(503, {"Retry-After": "99999"}))
    server = Server(site.base, "")
    monkeypatch.setattr(server.stop, "wait", waits.append)
    server.fetch(FILE, tmp_path / "a", lambda count: None)
    assert 0.5 <= waits[0] <= 1.0 and waits[1] == 7.0 and 2.0 <= waits[2] <= 4.0 and waits[3] == 300.0


def test_a_server_that_stays_away_is_given_up(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 3)
    faults(site, *[Fault(503)] * 5)
    with refused("download-failed", site.base + NAME, "HTTP 503"):
        fetch(site, tmp_path / "a")
    assert len(site.asked) == 3
    with refused("download-failed", "http://127.0.0.1:9/a", "Connection refused"):
        Server("http://127.0.0.1:9", "").read("a")


@pytest.mark.parametrize(("status", "remedy"), [(403, "BERTBENCH_CONTACT"), (404, "--mirror"), (418, "--mirror")])
def test_a_refusal_is_not_repeated(site: Site, tmp_path: Path, status: int, remedy: str) -> None:
    faults(site, Fault(status))
    with refused("download-failed", f"HTTP {status}", remedy, kind=DownloadError) as caught:
        fetch(site, tmp_path / "a")
    assert isinstance(caught.value, DownloadError) and caught.value.status == status and len(site.asked) == 1


def test_a_wrong_checksum_names_both_sums_and_leaves_no_file(site: Site, tmp_path: Path) -> None:
    with refused("download-mismatch", "0" * 40, hashlib.sha1(CONTENT).hexdigest()):
        fetch(site, tmp_path / "a", RemoteFile("a.bz2", None, "0" * 40))
    assert left_over(tmp_path) == set() and len(site.asked) == 1


def test_a_full_disk_is_a_storage_error_that_keeps_the_part(site: Site, tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from bert.data.download import RemoteFile, Server; from common.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))\n"
        "try: Server(sys.argv[1], '').fetch(RemoteFile('a.bz2', 900000, sys.argv[2]), Path(sys.argv[3]), print)\n"
        "except StorageError as error: sys.exit(error.shown())"
    )
    argv = [sys.executable, "-c", program, site.base, SHA256, str(tmp_path / "a")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert "[write-failed]" in done.stderr and "a.part" in done.stderr
    assert (tmp_path / "a.part").stat().st_size == 300_000
    assert fetch(site, tmp_path / "a") == 600_000


def test_connections_that_end_early_are_continued_with_the_rest_only(site: Site, tmp_path: Path) -> None:
    faults(site, Fault(cut=300_000), Fault(cut=200_000))
    assert fetch(site, tmp_path / "a", RemoteFile("a.bz2", None, hashlib.md5(CONTENT).hexdigest())) == len(CONTENT)
    assert (tmp_path / "a").read_bytes() == CONTENT and left_over(tmp_path) == {"a"}
    assert ranges(site) == [None, "bytes=300000-", "bytes=500000-"] and site.asked[0]["agent"] == "me/1 (a@b.c)"


@pytest.mark.parametrize(
    ("part", "size", "expected"),
    [
        (CONTENT, len(CONTENT), []),
        (CONTENT, None, ["bytes=900000-"]),
        (b"damage", None, ["bytes=6-", None]),
        (CONTENT + b"more", None, ["bytes=900004-", None]),
    ],
)
def test_a_part_is_checked_and_one_that_does_not_fit_is_fetched_anew(
    site: Site, tmp_path: Path, part: bytes, size: int | None, expected: list[str | None]
) -> None:
    (tmp_path / "a.part").write_bytes(part)
    fetch(site, tmp_path / "a", RemoteFile("a.bz2", size, SHA256))
    assert (tmp_path / "a").read_bytes() == CONTENT and ranges(site) == expected and left_over(tmp_path) == {"a"}


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_file_that_changed_meanwhile_never_comes_as_two_halves(site: Site, tmp_path: Path, has_ranges: bool) -> None:
    site.ranges = has_ranges
    new = random.Random(2).randbytes(900_000)
    faults(site, Fault(cut=300_000), Fault(replace=new))
    fetch(site, tmp_path / "a", RemoteFile("a.bz2", None, hashlib.sha256(new).hexdigest()))
    assert (tmp_path / "a").read_bytes() == new
    assert ranges(site) == [None, "bytes=300000-", None][: 3 if has_ranges else 2]
