"""The stage `extract`: exact counts, the same bytes for any number of workers and after being killed."""

import bz2
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from support.refusals import refused
from support.shared_files import DATA, OWN

from bert.corpus import dumps, extract
from bert.corpus.dumps import Header, Unit
from bert.corpus.extract import Work, extract_unit
from bert.corpus.files import Source
from bert.data.pool import Workers
from bert.data.stages import Finished, Part, StageFolder
from bert.tasks.pretrain.summary import StageSummary, notes_of

ROOT = Path(__file__).resolve().parents[3]


def page(number: int, text: str, namespace: int | None = 0, more: str = "") -> str:
    ns = "" if namespace is None else f"<ns>{namespace}</ns>"
    return f"<page><title>Page {number}</title>{ns}{more}<revision><text>{text}</text></revision></page>\n"


def dump(count: int) -> str:
    body = "".join(page(number, f"This is [[a|the]] page number {number}.\n\n" * 40) for number in range(count))
    return f"<mediawiki>\n{body}</mediawiki>\n"


def run(
    paths: list[Path], out: Path, workers: int = 1, part: Part | None = None, keep: bool = False, begin: bool = True
) -> Finished | None:
    folder = StageFolder(out, extract.STAGE, extract.VERSION, {}, "source")
    if begin:
        folder.begin()
    with Workers(workers) as pool:
        sources = [Source(path, path.name, "digest") for path in paths]
        return extract.extract(sources, folder, pool, part or Part(), lambda *done: None, keep)


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.txt"))}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "UNIT_BYTES", 8_000)
    monkeypatch.setattr(extract, "PART_BYTES", 20_000)


COUNTED = (
    *(extract.PAGES, extract.REDIRECTS, extract.OTHERS),
    *(extract.DISAMBIGUATIONS, extract.EMPTY, extract.INVALID, extract.DOCUMENTS),
)


@pytest.mark.parametrize(
    ("folder", "counted"),
    [
        (OWN / "pretrain/wiki", [12, 2, 2, 1, 1, 0, 6]),
        pytest.param(DATA / "pretrain/wiki", [211, 99, 1, 8, 1, 0, 102], marks=pytest.mark.public),
    ],
    ids=["own", "public"],
)
def test_dumps_give_the_known_counts_and_two_workers_the_same_bytes(
    folder: Path, counted: list[int], tmp_path: Path
) -> None:
    dumps = sorted(folder.iterdir())
    found = run(dumps, tmp_path / "a")
    assert found is not None and run(dumps, tmp_path / "b", workers=2) is not None
    counts = found.counts
    assert [counts.get(name) for name in COUNTED] == counted
    assert contents(tmp_path / "a") == contents(tmp_path / "b") and len(found.files) == len(dumps)
    text = b"".join(contents(tmp_path / "a").values()).decode()
    assert text.count("\n\n") == counted[-1] and sum(map(bool, text.split("\n"))) == counts.get(extract.PARAGRAPHS)
    assert len(text.replace("\n", "")) == counts.get(extract.CHARACTERS)


def test_every_page_is_counted_once() -> None:
    texts = [
        page(0, "This is an article."),
        page(1, "This is a talk page.", 1),
        page(2, "This one has moved.", more='<redirect title="X" />'),
        page(3, "#REDIRECT [[X]]"),
        page(4, "{{Infobox}}"),
        page(5, "It may be this.\n{{disambig}}"),
        page(6, "This & that are not escaped."),
        page(7, "This is not wikitext.", more="<model>json</model>"),
        page(8, "This\0 has\x08 three\x01 too many."),
        page(9, "This one is long.\n\n" * 60_000),
        page(10, ""),
        "<page><title>Datei:A.jpg</title><revision><text>This is an old dump.</text></revision></page>",
    ]
    data = "".join(texts).encode()
    work = Work("x.txt", Unit(Path("x"), data, 0, 0, len(data)), Header({6: "Datei"}))
    result = extract_unit(work)
    numbers, names = result.counts["numbers"], result.counts["names"]
    kinds = (extract.PAGES, extract.DOCUMENTS, extract.REDIRECTS, extract.OTHERS)
    assert {name: numbers.get(name) for name in kinds} == {
        extract.PAGES: 12, extract.DOCUMENTS: 3, extract.REDIRECTS: 2, extract.OTHERS: 2
    }  # fmt: skip
    assert [numbers.get(name) for name in (extract.EMPTY, extract.DISAMBIGUATIONS, extract.OTHER_MODELS)] == [2, 1, 1]
    assert (numbers[extract.INVALID], names[extract.INVALID]) == (1, ["Page 6"])
    assert (numbers[extract.OVERSIZED], names[extract.OVERSIZED]) == (1, ["Page 9"])
    assert numbers[extract.CONTROLS] == 3
    assert result.text.startswith(b"This is an article.\n\nThis has three too many.\n\nThis one is long.\nThis one")
    assert result.text.endswith(b"\n\n")


def test_namespaces_of_the_dumps_own_header_hide_their_links_and_open_tables_are_named(tmp_path: Path) -> None:
    header = "".join(
        f'<namespace key="{key}" case="first-letter">{name}</namespace>'
        for key, name in ((-2, "Medeja"), (0, ""), (6, "Fails"), (14, "Kategoreja"))
    )
    texts = (
        "Reiga ir piļsāta.[[Fails:A b|thumb|250px]][[fails:A_b]] [[Kategoreja:Reiga]][[Medeja:A]]",
        "Tā ir tabula.\n{|\n| a\n\nTas ir stāsts aiz atvērtas tabulas.",
    )
    body = "".join(page(number, text) for number, text in enumerate(texts))
    path = tmp_path / "x.xml"
    path.write_text(f"<mediawiki><siteinfo><namespaces>{header}</namespaces></siteinfo>\n{body}</mediawiki>\n")
    found = run([path], tmp_path / "a")
    assert found is not None
    (text,) = contents(tmp_path / "a").values()
    assert text.decode() == "Reiga ir piļsāta.\n\nTā ir tabula.\nTas ir stāsts aiz atvērtas tabulas.\n\n"
    assert found.counts.get(extract.UNCLOSED_TABLES) == 1
    assert found.counts.names[extract.UNCLOSED_TABLES] == ["Page 1"]
    stage = StageSummary(
        stage="extract", folder=tmp_path, files=1, kept=False, complete=True, seconds=0.0,
        counts=found.counts.numbers, examples=found.counts.names,
    )  # fmt: skip
    (note,) = notes_of([stage], 0, None)
    assert note.startswith("1 unclosed table(s)") and note.endswith(": Page 1")


@pytest.mark.usefixtures("small_parts")
def test_parts_are_cut_by_the_dump_alone_and_shared_between_processes(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_text(dump(60))
    whole = run([path, path], tmp_path / "a")
    assert whole is not None and len(whole.files) > 6
    assert run([path, path], tmp_path / "b", part=Part(0, 2)) is None
    shared = run([path, path], tmp_path / "b", part=Part(1, 2), begin=False)
    assert shared is not None and shared.counts == whole.counts
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert [file.name for file in whole.files] == sorted(contents(tmp_path / "a"))


@pytest.mark.usefixtures("small_parts")
def test_finished_parts_are_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.xml"
    path.write_text(dump(60))
    assert run([path], tmp_path / "a") is not None
    before = contents(tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    folder = StageFolder(tmp_path / "a", extract.STAGE, extract.VERSION, {}, "source")
    gone = folder.path / sorted(before)[1]
    gone.unlink()
    parsed: list[str] = []
    original = extract.extract_unit
    monkeypatch.setattr(extract, "extract_unit", lambda work: parsed.append(work.part) or original(work))
    assert run([path], tmp_path / "a", begin=False) is not None
    assert set(parsed) == {gone.name} and contents(tmp_path / "a") == before


@pytest.mark.usefixtures("small_parts")
def test_a_truncated_dump_keeps_finished_parts_and_can_be_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    text = dump(60)
    path.write_text(text[: int(len(text) * 0.8)])
    with refused("file-truncated", path):
        run([path], tmp_path / "a")
    before = contents(tmp_path / "a")
    assert len(before) >= 2 and not list((tmp_path / "a").glob(".*.tmp"))
    found = run([path], tmp_path / "a", keep=True, begin=False)
    assert found is not None and found.counts.get(extract.TRUNCATED) == 1
    assert found.counts.get(extract.PAGES) == 48 and before.items() < contents(tmp_path / "a").items()


def test_multistream_dumps_give_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "RANGE_BYTES", 1_000)
    lines = dump(60).splitlines(keepends=True)
    texts, at = [lines[0]], 1
    while at < len(lines) - 1:
        rest = "".join(lines[at : at + 410])
        end = rest.rfind("</page>\n") + len("</page>\n")
        texts.append(rest[:end])
        at += rest[:end].count("\n")
    multi, single = tmp_path / "m.xml.bz2", tmp_path / "s.xml.bz2"
    multi.write_bytes(b"".join(bz2.compress(text.encode()) for text in [*texts, lines[-1]]))
    single.write_bytes(bz2.compress(dump(60).encode()))
    assert run([multi], tmp_path / "m") is not None and run([single], tmp_path / "s") is not None
    assert b"".join(contents(tmp_path / "m").values()) == b"".join(contents(tmp_path / "s").values()) != b""


@pytest.mark.slow
def test_a_page_of_50_mb_passes_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    text = "This is one [[sentence]] of a very long page, and it is not even the last.\n\n" * 685_000
    path.write_text(f"<mediawiki>{page(0, text)}</mediawiki>")
    assert path.stat().st_size > 50e6
    found = run([path], tmp_path / "a")
    assert found is not None and found.counts.get(extract.PARAGRAPHS) == 685_000
    assert found.counts.get(extract.OVERSIZED) == 1


@pytest.mark.slow
def test_a_run_killed_half_way_and_run_again_writes_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_text(dump(6000))
    script = tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from pathlib import Path
            sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}, {str(Path(__file__).parent)!r}]
            from bert.corpus import extract
            import test_extract
            extract.PART_BYTES = 2**20
            if __name__ == "__main__":
                test_extract.run([Path(sys.argv[1])], Path(sys.argv[2]), int(sys.argv[3]))
            """
        )
    )
    command = [sys.executable, str(script), str(path)]
    subprocess.run([*command, str(tmp_path / "whole"), "1"], check=True, timeout=120)
    killed = subprocess.Popen([*command, str(tmp_path / "killed"), "2"])
    deadline = time.monotonic() + 60
    while len(contents(tmp_path / "killed")) < 2:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "killed").glob("*.txt")}
    whole = contents(tmp_path / "whole")
    assert 2 <= len(before) < len(whole)
    subprocess.run([*command, str(tmp_path / "killed"), "2"], check=True, timeout=120)
    assert contents(tmp_path / "killed") == whole
    assert all((tmp_path / "killed" / name).stat().st_mtime_ns == time_ns for name, time_ns in before.items())
