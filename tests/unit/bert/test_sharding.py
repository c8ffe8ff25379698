import heapq
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refused

from bert.corpus import sharding as module
from bert.corpus.sharding import ShardPlan, assign, automatic_shards, check_documents, shard
from bert.data.finished import Finished, Stage


def plan_of(training: int, test: int = 0, fraction: float = 0.0, seed: int = 1) -> ShardPlan:
    return ShardPlan(training=training, test=test, test_fraction=fraction, seed=seed)


def make_parts(folder: Path, documents: int = 200, parts: int = 3) -> list[Path]:
    """Write sentence text whose document k has k % 13 + 1 sentences."""
    folder.mkdir()
    texts = [
        "".join(f"Document {number} line {line} \u00e9.\n" for line in range(number % 13 + 1)) + "\n"
        for number in range(documents)
    ]
    paths = []
    for number in range(parts):
        paths.append(folder / f"part-{number}.txt")
        begin, end = (documents * bound // parts for bound in (number, number + 1))
        paths[-1].write_text("".join(texts[begin:end]), encoding="utf-8")
    return paths


def documents_in(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n\n")[:-1]


def sharded(parts: list[Path], folder: Path, plan: ShardPlan) -> Finished:
    return shard(parts, Stage(folder, "shard", 1, {}, ""), "d", plan, lambda *_: None)


def test_every_document_is_in_one_shard_whole_and_in_order(tmp_path: Path) -> None:
    parts = make_parts(tmp_path / "in")
    found = sharded(parts, tmp_path / "out", plan_of(4, 2, 0.2))
    names = [f"d_training_{index}.txt" for index in range(4)] + ["d_test_0.txt", "d_test_1.txt"]
    assert [path.name for path in found.files] == names
    everything = [document for part in parts for document in documents_in(part)]
    shards = [documents_in(path) for path in found.files]
    assert sorted(document for documents in shards for document in documents) == sorted(everything)
    for documents in shards:
        numbers = [everything.index(document) for document in documents]
        assert numbers == sorted(numbers) and len(numbers) > 10
    numbers = found.counts.numbers
    assert numbers["documents"] == 200 == numbers["training documents"] + numbers["test documents"]
    lines = sum(document.count("\n") + 1 for document in everything)
    test = sum(document.count("\n") + 1 for documents in shards[4:] for document in documents)
    assert numbers["sentences"] == lines and abs(test - 0.2 * lines) <= 7
    assert numbers["shards with one document"] == 0


def test_how_the_documents_lie_in_parts_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sharded(make_parts(tmp_path / "a", parts=1), tmp_path / "one", plan_of(3, 1, 0.1))
    monkeypatch.setattr(module, "_BLOCK_DOCUMENTS", 7)
    seven = sharded(make_parts(tmp_path / "b", parts=7), tmp_path / "seven", plan_of(3, 1, 0.1))
    assert [path.read_bytes() for path in one.files] == [path.read_bytes() for path in seven.files]


def plain_assign(sentences: list[int], plan: ShardPlan) -> list[int]:
    """Assign as the docstring says, one document after the other."""
    order = [int(number) for number in np.random.default_rng([plan.seed, 0x5917]).permutation(len(sentences))]
    test: list[int] = []
    goal, have = plan.test_fraction * sum(sentences), 0
    while plan.test and len(order) > plan.training:
        candidate = sentences[order[-1]]
        if len(test) >= plan.test and (have >= goal or abs(have + candidate - goal) > goal - have):
            break
        test.append(order.pop())
        have += candidate
    found = [-1] * len(sentences)
    for documents, first, count in ((order, 0, plan.training), (test, plan.training, plan.test)):
        loads = [(0, index) for index in range(count)]
        for number in sorted(documents, key=lambda number: (-sentences[number], number)):
            load, index = heapq.heappop(loads)
            found[number] = first + index
            heapq.heappush(loads, (load + sentences[number], index))
    return found


@pytest.mark.parametrize(("training", "test", "fraction"), [(1, 0, 0.0), (4, 1, 0.1), (7, 3, 0.5), (5, 20, 0.0)])
def test_the_split_is_that_of_a_plain_loop(training: int, test: int, fraction: float) -> None:
    rng = np.random.default_rng(3)
    for count in (30, 200):
        sentences = rng.integers(1, 50, count).astype(np.int32)
        plan = plan_of(training, test, fraction)
        assert assign(sentences, plan).tolist() == plain_assign(sentences.tolist(), plan)


def test_fewer_documents_than_shards_are_refused_with_a_remedy() -> None:
    with refused("data-too-small", "3 document", "5 shards", "4 training", "1 test", "--shards 2"):
        check_documents(3, plan_of(4, 1, 0.1))
    with refused("data-too-small", "--shards 1 --test-fraction 0"):
        check_documents(3, plan_of(1, 4, 0.1))
    check_documents(3, plan_of(2, 1, 0.1))


@pytest.mark.parametrize(("size", "shards"), [(0, 4), (2**27, 4), (2**27 + 1, 5)])
def test_the_default_is_a_shard_per_32_mebibytes_and_at_least_four(size: int, shards: int) -> None:
    assert automatic_shards(size) == shards


def test_a_run_that_fails_leaves_no_shard_and_a_new_run_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    parts = make_parts(tmp_path / "in")
    with monkeypatch.context() as patch, refused("disk-full", tmp_path / "out"):
        patch.setattr(module, "_hand_out", full)
        sharded(parts, tmp_path / "out", plan_of(4, 1, 0.1))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
    (tmp_path / "out" / ".shards-of-a-killed-run").mkdir()
    again, whole = (sharded(parts, tmp_path / name, plan_of(4, 1, 0.1)) for name in ("out", "whole"))
    assert [path.read_bytes() for path in again.files] == [path.read_bytes() for path in whole.files]
    assert not list((tmp_path / "out").glob(".shards-*"))
