"""Every field of the features of whole dev sets, cased and uncased, in long and in short windows."""

from pathlib import Path

import pytest
from support.datasets import squad_features
from support.plain_squad import compare, plain
from support.shared_files import DATA

pytestmark = pytest.mark.public


@pytest.mark.parametrize("casing", ["cased", "uncased"])
@pytest.mark.parametrize("lengths", [(384, 128, 64), (100, 41, 9)])
@pytest.mark.parametrize("name", ["dev-v1.1", "dev-v2.0"])
def test_every_field_equals_the_plain_implementation(
    name: str, lengths: tuple[int, int, int], casing: str, tmp_path: Path
) -> None:
    source, vocab = DATA / f"squad/{name}.json.gz", DATA / f"vocab/bert-{casing}.txt"
    lower_case = casing == "uncased"
    options = dict(zip(("max_seq_length", "doc_stride", "max_query_length"), lengths, strict=True))
    features = squad_features(source, vocab, tmp_path, split="evaluation", lower_case=lower_case, **options)
    questions, windows = compare(features, plain(source, vocab, False, lengths, lower_case=lower_case))
    assert questions == {"dev-v1.1": 10_570, "dev-v2.0": 11_873}[name] and windows > questions
