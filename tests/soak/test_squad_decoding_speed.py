"""All questions of dev v1.1 decoded: like the plain reference, and far quicker."""

import gzip
import json
import time

import pytest
from support import plain_squad_decoding as plain
from support.shared_files import DATA
from support.squad_cases import Context, Question, features_of, random_logits

from bert.data.vocabulary import load_vocabulary
from bert.tasks.squad.predictions import decode


@pytest.mark.timeout(900)
@pytest.mark.public
def test_all_of_dev_1_1_is_decoded_like_the_plain_reference_and_ten_times_faster() -> None:
    content = json.loads(gzip.decompress((DATA / "squad" / "dev-v1.1.json.gz").read_bytes()))
    contexts = [
        Context(paragraph["context"], [Question(q["id"], q["question"]) for q in paragraph["qas"]])
        for article in content["data"]
        for paragraph in article["paragraphs"]
    ]
    vocabulary = load_vocabulary(DATA / "vocab" / "bert-uncased.txt", lower_case=True)
    features = features_of(contexts, vocabulary, max_seq_length=384, doc_stride=128, max_query_length=64)
    logits = random_logits(features, 1)
    began = time.process_time()  # other processes do not count
    found = decode(features, logits, vocabulary)
    ours = time.process_time() - began
    began = time.process_time()
    predictions, lists, _ = plain.predict(features, logits, vocabulary.pieces)
    theirs = time.process_time() - began
    assert len(predictions) == 10_570 and found.predictions == predictions
    texts = {name: [entry.text for entry in entries] for name, entries in found.n_best.items()}
    assert texts == {name: [entry["text"] for entry in entries] for name, entries in lists.items()}
    assert theirs > 10 * ours, f"{ours:.2f} s and {theirs:.2f} s of the processor"
