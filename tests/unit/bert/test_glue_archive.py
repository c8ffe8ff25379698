"""Where GLUE's tables are looked for, what is said of those that are not there or bear another name."""

import errno
from pathlib import Path

import pytest
from support.glue_folders import make_glue, write_vocabulary
from support.refusals import refused

from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.features import FORM
from bert.tasks.glue.prepare import GlueSummary, prepare
from bert.tasks.glue.scores import answer_file
from bert.tasks.glue.tables import find_table, read_table
from bert.tasks.glue.tasks import DIAGNOSTIC, TASKS
from common.errors import Code


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return make_glue(tmp_path / "glue", ["cola", "sst2", "mnli", "rte"])


def made(glue: Path, *tasks: str) -> list[GlueSummary]:
    write_vocabulary(glue.parent / "vocab.txt")
    return made_of(glue, *tasks)


def made_of(glue: Path, *tasks: str) -> list[GlueSummary]:
    vocab = glue.parent / "vocab.txt"
    return prepare(GlueConfig(input=glue, vocab=vocab, output=glue.parent / "out", tasks=tasks), lambda *_: None)


@pytest.mark.parametrize("name", ["sst2", "SST2", "sst_2", "Sst-2"])
def test_a_folder_in_another_spelling_is_found(glue: Path, name: str) -> None:
    (glue / "SST-2").rename(glue / name)
    assert find_table(glue, TASKS["sst2"], "dev") == glue / name / "dev.tsv"
    assert find_table(glue / name, TASKS["sst2"], "dev") == glue / name / "dev.tsv"


def test_a_table_in_another_spelling_is_found_and_the_published_one_goes_first(glue: Path) -> None:
    place = glue / "MNLI"
    (place / "dev_matched.tsv").rename(place / "Dev-Matched.TSV")
    assert find_table(glue, TASKS["mnli"], "dev_matched") == place / "Dev-Matched.TSV"
    (place / "dev_matched.tsv").write_text("")
    (glue / "mnli").mkdir(exist_ok=True)
    (glue / "mnli" / "dev_matched.tsv").write_text("")
    assert find_table(glue, TASKS["mnli"], "dev_matched") == place / "dev_matched.tsv"


def test_tables_that_are_not_there_and_names_that_are_not_used_are_told(glue: Path) -> None:
    (glue / "CoLA" / "dev.tsv").rename(glue / "CoLA" / "validation.tsv")
    (glue / "MNLI" / "dev_mismatched.tsv").unlink()
    (glue / "MNLI" / "test_mismatched.tsv").unlink()
    (glue / "RTE").rename(glue / "RTE_v1")
    (glue / "notes").mkdir()
    notes = [note for summary in made(glue) for note in summary.notes]
    assert notes == [
        f"cola: no table for dev: {glue}/CoLA/dev.tsv (or .tsv.gz) was looked for; not used: validation.tsv (rename it "
        "dev.tsv, if it is that)",
        f"mnli: no table for dev_mismatched, test_mismatched: {glue}/MNLI/dev_mismatched.tsv, "
        f"{glue}/MNLI/test_mismatched.tsv (or .tsv.gz) were looked for",
        f"not used: {glue}/RTE_v1 (rename it RTE, if it is that)",
    ]


def test_a_whole_archive_has_no_notes_beside_its_own_other_files(glue: Path) -> None:
    (glue / "CoLA" / "dev_ids.tsv").write_text("1\n")
    (glue / "CoLA" / "original").mkdir()
    (glue / "CoLA" / "original" / "in_domain_train.tsv").write_text("x\n")
    assert all(summary.notes == () for summary in made(glue))
    assert all(summary.notes == () for summary in made(glue, "cola")), "what is not asked for is not told"


def test_a_folder_of_another_name_alone_is_named(glue: Path) -> None:
    for name, facts in (("COLA_v1", ("only-COLA_v1/COLA_v1", "CoLA")), ("things", ("only-things/things",))):
        folder = glue.parent / f"only-{name}"
        folder.mkdir()
        (glue / "CoLA").rename(folder / name)
        with refused("data-missing", folder, "cola", *facts):
            made(folder)
        with refused("data-missing", "dev.tsv, test.tsv, train.tsv"):
            made(folder / name)
        (folder / name).rename(glue / "CoLA")


def test_features_that_are_missing_for_want_of_a_table_say_so(glue: Path) -> None:
    (glue / "RTE" / "dev.tsv").unlink()
    made(glue)
    with refused("data-missing", "rte", "train, test", "RTE/dev.tsv"):
        FORM.open(glue.parent / "out", "dev", group="rte")


@pytest.mark.parametrize("name", ["AX/diagnostic.tsv", "diagnostic/diagnostic.tsv", "ax/AX.tsv", "MNLI/diagnostic.tsv"])
def test_the_diagnostic_set_is_a_table_that_mnli_answers(glue: Path, name: str) -> None:
    (glue / name).parent.mkdir(exist_ok=True)
    (glue / name).write_text("index\tsentence1\tsentence2\n0\tOne 1.\tTwo 2.\n1\tOne 2.\tTwo 1.\n")
    found = made(glue, "mnli")[-1]
    assert (found.task, found.split, found.input, found.notes) == ("mnli", DIAGNOSTIC, glue / name, ())
    features = FORM.open(glue.parent / "out", DIAGNOSTIC, group="mnli")
    assert len(features) == 2 and not features.rows.has_labels
    assert answer_file(TASKS["mnli"], DIAGNOSTIC) == "AX.tsv"


@pytest.mark.parametrize(
    ("task", "table", "code", "fits"),
    [
        ("cola", "CoLA/test.tsv", "rows-invalid", "test table of CoLA"),
        ("mnli", "MNLI/test_matched.tsv", "columns-missing", "test table of MNLI"),
        ("cola", "SST-2/dev.tsv", "rows-invalid", "task sst2"),
        ("sst2", "CoLA/dev.tsv", "columns-missing", "task cola"),
        ("wnli", "RTE/dev.tsv", "rows-invalid", "task rte"),
        ("stsb", "RTE/dev.tsv", "columns-missing", "task rte"),
    ],
)
def test_a_table_of_something_else_is_known(glue: Path, task: str, table: str, code: Code, fits: str) -> None:
    with refused(code, glue / table, fits):
        read_table(glue / table, TASKS[task], "dev")


def test_what_a_killed_call_left_is_removed_by_the_next_one(glue: Path) -> None:
    folder = made(glue, "rte")[0].features.parent
    before = {path.name for path in folder.iterdir()}
    (folder / ".glue-rte-training.safetensors.s9q1z4n_.tmp").write_bytes(b"x")
    assert all(summary.kept for summary in made_of(glue, "rte"))
    assert {path.name for path in folder.iterdir()} == before


def test_finished_features_are_kept_in_a_folder_that_cannot_be_written(
    glue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    made(glue, "rte")
    monkeypatch.setattr("tempfile.mkstemp", failing)
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("common.locks.os.open", failing)
    assert all(summary.kept for summary in made_of(glue, "rte"))
    with refused("write-failed", glue.parent / "out"):
        made_of(glue, "cola")
