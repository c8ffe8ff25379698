import errno
import hashlib
import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.file_server import Fault, Site, serving
from support.refusals import check_refusal, refused

from bert.data.remote.download import Checksum, fetch, part_of
from bert.data.remote.web import DownloadError, Transfer, read_small

ROOT = Path(__file__).resolve().parents[3]
CONTENT = random.Random(1).randbytes(900_000)
SHA256 = Checksum("sha256", hashlib.sha256(CONTENT).hexdigest())
NAME = "/a.bz2"


def quick(**changes: object) -> Transfer:
    return Transfer(**{"first_wait_seconds": 0.001, "longest_wait_seconds": 0.01, "timeout_seconds": 5.0, **changes})  # type: ignore[arg-type]


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site({NAME: CONTENT})) as running:
        yield running


def faults(site: Site, *each: Fault) -> None:
    site.faults[NAME] = deque(each)


def left_over(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256"])
def test_a_file_comes_whole_under_its_name_and_is_not_fetched_again(site: Site, tmp_path: Path, kind: str) -> None:
    checksum = Checksum(kind, hashlib.new(kind, CONTENT).hexdigest())
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "a.bz2"
    tell = lambda done, total: seen.append((done, total))  # noqa: E731
    first = fetch(site.base + NAME, target, checksum=checksum, progress=tell, transfer=quick(agent="me/1 (a@b.c)"))
    assert target.read_bytes() == CONTENT and first.received == first.size == len(CONTENT)
    assert left_over(target.parent) == {"a.bz2"}
    assert seen[0] == (0, len(CONTENT)) and seen[-1] == (len(CONTENT), len(CONTENT)) and seen == sorted(seen)
    assert site.asked[0]["agent"] == "me/1 (a@b.c)" and site.asked[0]["range"] is None
    assert fetch(site.base + NAME, target, checksum=checksum, size=len(CONTENT)).received == 0
    assert fetch(site.base + NAME, target).received == 0 and len(site.asked) == 1


def test_a_server_that_sends_more_than_the_file_is_not_listened_to_for_long(site: Site, tmp_path: Path) -> None:
    site.files[NAME] = CONTENT * 40
    site.length, site.etag = False, ""
    with refused("download-mismatch", site.base + NAME, "900,000"):
        fetch(site.base + NAME, tmp_path / "a.bz2", checksum=SHA256, size=len(CONTENT), transfer=quick())
    assert left_over(tmp_path) == set() and site.asked[0]["sent"] < 30 * len(CONTENT)


def test_a_finished_file_with_a_wrong_sum_is_replaced(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    assert fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick()).received == len(CONTENT)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_connection_that_ends_early_is_continued_and_only_the_rest_is_asked_for(site: Site, tmp_path: Path) -> None:
    faults(site, Fault(cut=300_000), Fault(cut=200_000))
    fetched = fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick(attempts=2))
    assert (tmp_path / "a").read_bytes() == CONTENT and fetched.received == len(CONTENT)
    assert [request["range"] for request in site.asked] == [None, "bytes=300000-", "bytes=500000-"]
    etag = '"' + hashlib.sha1(CONTENT).hexdigest() + '"'
    assert [request["if_range"] for request in site.asked] == [None, etag, etag]


def test_a_chunked_body_that_ends_early_is_no_whole_file(site: Site, tmp_path: Path) -> None:
    site.length = False
    faults(site, Fault(cut=300_000))
    fetch(site.base + NAME, tmp_path / "a", transfer=quick())
    assert (tmp_path / "a").read_bytes() == CONTENT and len(site.asked) == 2


def test_ctrl_c_keeps_the_part_and_the_next_call_continues(site: Site, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done > 400_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, progress=interrupt, transfer=quick())
    assert left_over(tmp_path) == {"a.part", "a.part.json"}
    have = part_of(tmp_path / "a").stat().st_size
    assert json.loads((tmp_path / "a.part.json").read_text())["size"] == len(CONTENT)
    fetched = fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    assert fetched.received == len(CONTENT) - have and (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("checked", [True, False])
def test_a_file_that_changed_meanwhile_comes_anew_and_never_as_two_halves(
    site: Site, tmp_path: Path, checked: bool
) -> None:
    new = random.Random(2).randbytes(900_000)
    checksum = Checksum("sha256", hashlib.sha256(new).hexdigest()) if checked else None
    faults(site, Fault(cut=300_000), Fault(replace=new))
    fetch(site.base + NAME, tmp_path / "a", checksum=checksum, transfer=quick())
    assert (tmp_path / "a").read_bytes() == new
    assert site.asked[1]["range"] == "bytes=300000-" and site.asked[1]["sent"] == len(new)


@pytest.mark.parametrize("status", [412, 416])
def test_a_server_that_refuses_the_rest_is_asked_for_all(site: Site, tmp_path: Path, status: int) -> None:
    faults(site, Fault(cut=300_000), Fault(status=status))
    fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    assert [request["range"] for request in site.asked] == [None, "bytes=300000-", None]
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(site: Site, tmp_path: Path) -> None:
    site.ranges = False
    faults(site, Fault(cut=300_000))
    fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    assert (tmp_path / "a").read_bytes() == CONTENT and site.asked[1]["sent"] == len(CONTENT)


@pytest.mark.parametrize(
    ("etag", "last_modified", "expected"),
    [
        ('W/"weak"', "Sat, 21 Nov 2026 10:00:00 GMT", "Sat, 21 Nov 2026 10:00:00 GMT"),
        ("", "Sat, 21 Nov 2026 10:00:00 GMT", "Sat, 21 Nov 2026 10:00:00 GMT"),
        ('W/"weak"', None, None),
        ("", None, None),
    ],
)
def test_what_cannot_be_told_apart_is_continued_only_with_a_checksum(
    site: Site, tmp_path: Path, etag: str, last_modified: str | None, expected: str | None
) -> None:
    site.etag, site.last_modified = etag, last_modified
    for number, checksum in enumerate((None, SHA256)):
        site.asked.clear()
        faults(site, Fault(cut=300_000))
        fetch(site.base + NAME, tmp_path / str(number), checksum=checksum, transfer=quick())
        assert (tmp_path / str(number)).read_bytes() == CONTENT
        assert site.asked[1]["if_range"] == expected
        assert (site.asked[1]["range"] is not None) == (expected is not None or checksum is not None)


def test_a_part_is_continued_from_a_mirror_where_the_checksum_is_known(site: Site, tmp_path: Path) -> None:
    faults(site, Fault(cut=300_000), Fault(status=404))
    with pytest.raises(DownloadError):
        fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    with serving(Site({"/mirror/a": CONTENT}, etag='"other"')) as mirror:
        fetched = fetch(mirror.base + "/mirror/a", tmp_path / "a", checksum=SHA256, transfer=quick())
        assert mirror.asked[0]["range"] == "bytes=300000-" and mirror.asked[0]["if_range"] is None
    assert fetched.received == 600_000 and (tmp_path / "a").read_bytes() == CONTENT


def test_a_damaged_part_is_found_out_and_fetched_from_the_start(site: Site, tmp_path: Path) -> None:
    faults(site, Fault(cut=300_000), Fault(status=404))
    with pytest.raises(DownloadError):
        fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    with part_of(tmp_path / "a").open("r+b") as file:
        file.write(b"damage")
    site.asked.clear()
    fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [request["range"] for request in site.asked] == ["bytes=300000-", None]


def test_a_part_that_is_whole_already_is_only_checked_and_renamed(site: Site, tmp_path: Path) -> None:
    part_of(tmp_path / "a").write_bytes(CONTENT)
    (tmp_path / "a.part.json").write_text(json.dumps({"checksum": SHA256.digits}))
    fetched = fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, size=len(CONTENT), transfer=quick())
    assert fetched.received == 0 and site.asked == [] and left_over(tmp_path) == {"a"}


def test_a_part_longer_than_the_file_or_of_nobody_is_not_used(site: Site, tmp_path: Path) -> None:
    for content in (CONTENT + b"more", b"of nobody"):
        part_of(tmp_path / "a").write_bytes(content)
        (tmp_path / "a.part.json").write_text("[1]")
        fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, size=len(CONTENT), transfer=quick())
        assert (tmp_path / "a").read_bytes() == CONTENT
        (tmp_path / "a").unlink()


def test_busy_servers_are_asked_again_as_late_as_they_wish(site: Site, tmp_path: Path) -> None:
    waits: list[float] = []
    faults(site, Fault(503), Fault(429, {"Retry-After": "7"}), Fault(500), Fault(503, {"Retry-After": "99999"}))
    transfer = Transfer(first_wait_seconds=1.0, longest_wait_seconds=300.0, wait=waits.append)
    fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=transfer)
    assert 0.5 <= waits[0] <= 1.0 and waits[1] == 7.0 and 2.0 <= waits[2] <= 4.0 and waits[3] == 300.0
    faults(site, Fault(503, {"Retry-After": "Sat, 21 Nov 2020 10:00:00 GMT"}), Fault(503, {"Retry-After": "soon"}))
    fetch(site.base + NAME, tmp_path / "b", transfer=transfer)
    assert waits[4] == 0.0 and waits[5] > 0


def test_a_server_that_stays_away_ends_in_a_message_that_says_what_to_do(site: Site, tmp_path: Path) -> None:
    faults(site, *[Fault(503)] * 5)
    with refused("download-failed", site.base + NAME, "3 attempts", "HTTP 503"):
        fetch(site.base + NAME, tmp_path / "a", transfer=quick(attempts=3))
    assert len(site.asked) == 3
    with refused("download-failed", "http://127.0.0.1:9/a", "Connection refused"):
        fetch("http://127.0.0.1:9/a", tmp_path / "a", transfer=quick(attempts=2))


def test_attempts_that_bring_something_do_not_count_as_failed(site: Site, tmp_path: Path) -> None:
    faults(site, *[Fault(cut=50_000)] * 10)
    fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick(attempts=2))
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_server_that_stalls_is_given_up_after_the_timeout(site: Site, tmp_path: Path) -> None:
    site.pace_seconds = 0.5
    with refused("download-failed", "timed out"):
        fetch(site.base + NAME, tmp_path / "a", transfer=quick(attempts=1, timeout_seconds=0.1))
    assert part_of(tmp_path / "a").stat().st_size > 0


@pytest.mark.parametrize(
    ("status", "remedy"), [(403, "BERTBENCH_CONTACT"), (404, "--mirror"), (410, "another date"), (418, "--mirror")]
)
def test_a_refusal_is_not_repeated_and_names_the_remedy(site: Site, tmp_path: Path, status: int, remedy: str) -> None:
    faults(site, Fault(status))
    with refused("download-failed", f"HTTP {status}", remedy, kind=DownloadError) as caught:
        fetch(site.base + NAME, tmp_path / "a", transfer=quick())
    assert isinstance(caught.value, DownloadError) and caught.value.status == status and len(site.asked) == 1


def test_a_wrong_checksum_names_both_sums_and_moves_the_file_aside(site: Site, tmp_path: Path) -> None:
    wrong = Checksum("sha1", "0" * 40)
    with refused("download-mismatch", "0" * 40, hashlib.sha1(CONTENT).hexdigest(), "--mirror"):
        fetch(site.base + NAME, tmp_path / "a", checksum=wrong, transfer=quick())
    assert left_over(tmp_path) == {"a.wrong"} and len(site.asked) == 1


def test_another_size_than_published_is_refused_before_it_is_fetched(site: Site, tmp_path: Path) -> None:
    with refused("download-mismatch", site.base + NAME, "900,000 bytes", "17:"):
        fetch(site.base + NAME, tmp_path / "a", size=17, transfer=quick())
    site.length = False
    with refused("download-failed", "900,000", "901,000"):
        fetch(site.base + NAME, tmp_path / "a", size=901_000, transfer=quick(attempts=1))


def test_a_compressed_answer_is_refused(site: Site, tmp_path: Path) -> None:
    faults(site, Fault(headers={"Content-Encoding": "gzip"}))
    with refused("download-mismatch", site.base + NAME):
        fetch(site.base + NAME, tmp_path / "a", transfer=quick())


def test_redirects_lead_to_http_only(site: Site, tmp_path: Path) -> None:
    faults(site, Fault(redirect="/b"))
    site.files["/b"] = CONTENT
    fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    assert site.paths() == [NAME, "/b"]
    (tmp_path / "secret").write_text("secret")
    for target in (f"file://{tmp_path}/secret", "ftp://example.org/a", "data:,x"):
        faults(site, Fault(redirect=target))
        with refused("download-failed", site.base + NAME, target):
            fetch(site.base + NAME, tmp_path / "c", transfer=quick())
        assert not (tmp_path / "c").exists()
    faults(site, *[Fault(redirect=NAME)] * 30)
    with pytest.raises(DownloadError):
        fetch(site.base + NAME, tmp_path / "c", transfer=quick())


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a/b", "a", "http:///a", "http://u:p@a/b", "http://a/ b"])
def test_other_addresses_are_refused(url: str, tmp_path: Path) -> None:
    for call in (lambda: fetch(url, tmp_path / "a"), lambda: read_small(url)):
        with refused("option-value", repr(url), "http://", "https://"):
            call()


def test_no_checksum_is_taken_for_one() -> None:
    for kind, digits in (("crc32", "0" * 8), ("md5", "0" * 31), ("sha1", "G" * 40)):
        with refused("option-value", f"{kind}:{digits}", "md5", "sha1", "sha256"):
            Checksum(kind, digits)


def test_an_error_of_a_download_goes_to_another_process_whole() -> None:
    error = pickle.loads(pickle.dumps(DownloadError("download-failed", "not there", 404)))
    assert (error.code, str(error), error.status) == ("download-failed", "not there", 404)


def test_small_files_are_read_whole_or_not_at_all(site: Site) -> None:
    faults(site, Fault(503), Fault(cut=1000))
    assert read_small(site.base + NAME, quick()) == CONTENT
    with refused("download-mismatch", site.base + NAME, "1,000 bytes"):
        read_small(site.base + NAME, quick(), limit=1000)


def test_a_full_disk_is_a_storage_error_that_keeps_the_part(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def full(self: Path, mode: str = "r", *args: object, **options: object) -> object:
        if self.name == "a.part" and mode == "ab" and options.get("buffering") == 0:
            file = real(self, mode, *args, **options)  # type: ignore[call-overload]

            class Full:
                def __enter__(self) -> "Full":
                    return self

                def __exit__(self, *error: object) -> None:
                    file.close()

                def write(self, data: memoryview) -> int:
                    if file.tell() > 300_000:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    return int(file.write(data[:10_000]))  # a short write

            return Full()
        return real(self, mode, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", full)
    with refused("disk-full", part_of(tmp_path / "a")):
        fetch(site.base + NAME, tmp_path / "a", checksum=SHA256, transfer=quick())
    monkeypatch.undo()
    have = part_of(tmp_path / "a").stat().st_size
    assert 300_000 < have < 320_000
    assert fetch(site.base + NAME, tmp_path / "a", checksum=SHA256).received == len(CONTENT) - have


def test_a_file_too_large_for_the_file_system_is_a_storage_error(site: Site, tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys; from pathlib import Path; from bert.data.remote.download import fetch\n"
        "from common.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (300000, 300000))\n"
        "try: fetch(sys.argv[1], Path(sys.argv[2]))\n"
        "except StorageError as error: sys.exit(error.shown())"
    )
    argv = [sys.executable, "-c", program, site.base + NAME, str(tmp_path / "a")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    check_refusal(done.stderr, "write-failed", part_of(tmp_path / "a"), "File too large")
    assert part_of(tmp_path / "a").stat().st_size == 300_000
    assert fetch(site.base + NAME, tmp_path / "a").received == 600_000


def test_a_folder_that_cannot_be_written_is_a_storage_error(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("write-failed", tmp_path / "file" / "a"):
        fetch(site.base + NAME, tmp_path / "file" / "a", transfer=quick())


def test_a_kill_in_the_middle_and_a_second_run_give_the_same_bytes(site: Site, tmp_path: Path) -> None:
    site.pace_seconds = 0.3
    program = "import sys, pathlib, bert.data.remote.download as d; d.fetch(sys.argv[1], pathlib.Path(sys.argv[2]))"
    process = subprocess.Popen([sys.executable, "-c", program, site.base + NAME, str(tmp_path / "a")], cwd=ROOT)
    part = part_of(tmp_path / "a")
    deadline = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size > 150_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    have = part.stat().st_size
    assert 150_000 < have < len(CONTENT) and not (tmp_path / "a").exists()
    site.pace_seconds = 0.0
    fetched = fetch(site.base + NAME, tmp_path / "a", checksum=None)
    assert (tmp_path / "a").read_bytes() == CONTENT and fetched.received == len(CONTENT) - have
    assert site.asked[-1]["range"] == f"bytes={have}-" and site.asked[-1]["sent"] == len(CONTENT) - have


def test_an_unknown_host_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def lookup(*place: object, **_: object) -> None:
        asked.append(place)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with refused("download-failed", "no-such-host", kind=DownloadError):
        read_small("http://no-such-host.invalid/a", quick())
    assert len(asked) == 1
