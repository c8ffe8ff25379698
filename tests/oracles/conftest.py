"""Own data of all tasks, prepared once for the tests of this folder."""

from pathlib import Path

import own_text
import pytest
from preparation import prepare


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, str]]]:
    """Prepare the own text for each task; return where its data are, and their digests."""
    folder = tmp_path_factory.mktemp("own")
    vocabulary = own_text.vocabulary(folder)
    shards = "--seq-lens 64 --dupe-factor 2 --shards 2 --seed 7 --workers 1"
    windows = "--max-seq-length 64 --doc-stride 16 --max-query-length 12 --workers 1"
    tasks = {
        "pretrain": ((own_text.corpus(folder / "corpus"),), shards),
        "squad": (own_text.squad(folder / "squad"), windows),
        "gap": (own_text.gap(folder / "gap"), "--max-seq-length 64"),
        "glue": ((own_text.glue(folder / "glue"),), "--max-seq-length 32"),
        "csv": ((own_text.texts(folder),), "--max-seq-length 32 --seed 7"),
    }
    prepared = {}
    for task, (inputs, options) in tasks.items():
        output = folder / ("texts.sqlite" if task == "csv" else f"{task}-data")
        prepared[task] = (output, prepare(task, inputs, vocabulary, output, *options.split()))
    return prepared
