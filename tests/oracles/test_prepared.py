"""The values of prepared data: pretraining shards, features of SQuAD, GAP and GLUE, rows of classify.

The digests are of the values, not of the files: compression and widths of whole numbers may change.
"""

from pathlib import Path

import pytest
from frozen import check
from preparation import prepare
from support.shared_files import DATA

UNCASED = DATA / "vocab/bert-uncased.txt"
SQUAD = ("squadshifts-new-wiki-v1.0.json.gz", "dev-v1.1.json.gz")
PUBLIC = {
    "pretrain": (("pretrain",), "--seq-lens 128 512 --dupe-factor 2 --seed 12345 --workers 1"),
    "gap": (tuple(f"gap/gap-{split}.tsv" for split in ("development", "validation", "test")), ""),
    "glue": (("glue",), ""),
    "csv": (("csv/banking77_train.csv",), "--label category --seed 42"),
}


@pytest.mark.parametrize("task", ["pretrain", "squad", "gap", "glue", "csv"])
def test_own_text(task: str, own: dict[str, tuple[Path, dict[str, str]]]) -> None:
    check("prepared", f"own {task}", own[task][1])


@pytest.mark.public
@pytest.mark.parametrize("task", PUBLIC)
def test_public_data(task: str, tmp_path: Path) -> None:
    names, options = PUBLIC[task]
    inputs = tuple(DATA / name for name in names)
    output = tmp_path / ("texts.sqlite" if task == "csv" else "data")
    check("prepared", f"public {task}", prepare(task, inputs, UNCASED, output, *options.split()))


@pytest.mark.public
@pytest.mark.parametrize(
    ("name", "split"),
    [("squadshifts-new-wiki-v1.0", "training"), ("dev-v1.1", "evaluation"), ("dev-v2.0", "evaluation")],
)
def test_public_questions(name: str, split: str, tmp_path: Path) -> None:
    path = DATA / f"squad/{name}.json.gz"
    check("prepared", f"public {name}", prepare("squad", (path,), UNCASED, tmp_path, "--split", split, "--workers", 1))
