"""The tokenizer that is used, and the `tokenizers` library, on all real text beside the checkout."""

import pytest
from support import shared_text
from support.shared_files import DATA

from bert.data.tokenizer import FAST
from bert.data.vocabulary import load_vocabulary


@pytest.mark.public
@pytest.mark.parametrize(
    ("name", "lower_case"), [("uncased", True), pytest.param("cased", False, marks=pytest.mark.soak)]
)
def test_all_real_text_gives_the_ids_of_the_library(name: str, lower_case: bool) -> None:
    vocabulary = load_vocabulary(DATA / f"vocab/bert-{name}.txt", lower_case)
    lines = list(shared_text.lines())
    assert len(lines) > 100_000
    found = vocabulary.tokenizer.encode(lines)
    assert vocabulary.tokenizer.package == FAST
    begin = 0
    for number in range(0, len(lines), 5000):  # all encodings at once would take gigabytes
        for encoding in vocabulary._tokenizer.encode_batch(lines[number : number + 5000], add_special_tokens=False):
            end = begin + len(encoding.ids)
            assert found.values[begin:end].tolist() == encoding.ids
            begin = end
    assert begin == len(found.values)
