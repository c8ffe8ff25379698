"""The tokenizer that is used, and the `tokenizers` library, on all real text beside the checkout."""

import numpy as np
import pytest
from support import shared_text
from support.shared_files import DATA

from bert.data.tokenizer import FAST
from bert.data.vocabulary import load_vocabulary


@pytest.mark.skipif(not DATA.exists(), reason="the real text is not beside this checkout (shared/data)")
@pytest.mark.parametrize(("name", "lower_case"), [("uncased", True), ("cased", False)])
def test_all_real_text_gives_the_ids_of_the_library(name: str, lower_case: bool) -> None:
    vocabulary = load_vocabulary(DATA / f"vocab/bert-{name}.txt", lower_case)
    lines = list(shared_text.lines())
    assert len(lines) > 100_000
    found = vocabulary.tokenizer.encode(lines)
    assert vocabulary.tokenizer.package == FAST, vocabulary.tokenizer.reason
    expected = vocabulary.encode(lines)
    assert found.lengths.tolist() == [len(ids) for ids in expected]
    assert np.array_equal(found.values, np.concatenate([np.array(ids, found.values.dtype) for ids in expected]))
