"""The one tar of gpu-acceptance: what is worth most, in as many bytes as can be carried."""

import random
import tarfile
from pathlib import Path

import pytest
from support.acceptance_archive import ARCHIVE, MOST_BYTES, pack

MIB = 2**20


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def contents(out: Path) -> dict[str, bytes]:
    with tarfile.open(out / ARCHIVE) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]


def test_what_fits_is_in_and_what_does_not_is_named(tmp_path: Path) -> None:
    put(tmp_path / "acceptance.json", b'{"steps": []}')
    put(tmp_path / "logs/a.out", b"5\n")
    put(tmp_path / "run/trials/t/result.json", b"{}")
    put(tmp_path / "run/trials/t/steps-0.csv", b"1,2,3\n" * MIB)  # 6 MiB that become few
    put(tmp_path / "run/trials/p/profile/small.json.gz", noise(MIB))
    put(tmp_path / "run/trials/p/profile/large.json.gz", noise(2 * MIB, 1))
    put(tmp_path / "run/trials/p/profile/x.nsys-rep", b"TOKEN=secret")
    put(tmp_path / "run/trials/p/profile/last.csv", b"7\n")
    # 1 MiB and the small files fit into 2.5 MiB, 2 MiB more do not.
    said = pack(tmp_path, int(2.5 * MIB))
    assert said == ["run/trials/p/profile/large.json.gz: left out, 2.0 MiB do not fit"]
    found = contents(tmp_path)
    assert list(found) == [
        "acceptance.json", "logs/a.out", "run/trials/t/result.json", "run/trials/t/steps-0.csv",
        "run/trials/p/profile/last.csv", "run/trials/p/profile/small.json.gz", "left-out.txt",
    ]  # fmt: skip
    assert (
        found["run/trials/p/profile/small.json.gz"] == noise(MIB) and len(found["run/trials/t/steps-0.csv"]) == 6 * MIB
    )
    assert found["left-out.txt"].decode().splitlines() == said
    assert (tmp_path / ARCHIVE).stat().st_size <= 2.5 * MIB
    assert pack(tmp_path) == [] and "run/trials/p/profile/large.json.gz" in contents(tmp_path), "16 MiB hold all"


def test_a_long_log_is_cut_to_its_end(tmp_path: Path) -> None:
    put(tmp_path / "logs/a.err", b"x" * (3 * MIB) + b"RuntimeError: the reason")
    (said,) = pack(tmp_path)
    assert said == "logs/a.err: its last 0.5 MiB of 3.0 MiB"
    kept = contents(tmp_path)["logs/a.err"]
    assert len(kept) == MIB // 2 and kept.endswith(b"RuntimeError: the reason")


@pytest.mark.parametrize("seed", range(4))
def test_it_is_never_larger_than_it_may_be(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    for number in range(60):
        content = (
            noise(source.randrange(200_000), number) if source.random() < 0.6 else b"text " * source.randrange(90_000)
        )
        put(
            tmp_path / source.choice(["logs", "run/a", "run/a/profile"]) / f"{number}.{source.choice(['out', 'gz'])}",
            content,
        )
    for most in (MIB, 2 * MIB):
        said = pack(tmp_path, most)
        assert 0.5 * most < (tmp_path / ARCHIVE).stat().st_size <= most
        assert len(contents(tmp_path)) == 60 + 1 - sum("left out" in line for line in said)
    assert MOST_BYTES == 16 * MIB


def test_a_tar_that_cannot_be_made_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "acceptance.json", b"1")
    pack(tmp_path)
    before = (tmp_path / ARCHIVE).read_bytes()
    put(tmp_path / "acceptance.json", b"2")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(OSError, match="No space left"):
        pack(tmp_path)
    assert (tmp_path / ARCHIVE).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acceptance.json", ARCHIVE]
