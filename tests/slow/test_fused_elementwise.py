"""The lever "fused-elementwise", compiled: Hugging Face's losses and gradients, any batch, threads and ranks."""

import itertools
import os
import subprocess
from pathlib import Path

import pytest
import torch
from support.cli import Cli
from support.refusals import check_refusal
from support.softmax_formula import HEADS, LENGTH, MASKS
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig
from bert.model.encoder import recompute_activations
from bert.model.heads import BertForPretraining
from bert.speed import native
from bert.speed.dropout import random_levels, threshold
from bert.speed.elementwise import gelu, residual_norm, softmax_dropout, softmax_dropout_backward
from bert.speed.registry import use_levers
from records.run import TrialDirectory

VOCAB = 101
LENGTHS = ([16, 3, 9, 1], [1], [1, 1, 1], [13], [5, 64, 17, 31, 2, 64], [4, 0, 7], [7, 7])
LEVER = "fused-elementwise"


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops, with the random numbers that PyTorch's functions get."""
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setattr("bert.speed.elementwise.random_levels", lambda like, fused: random_levels(like))


def shape(dropout: float = 0.0) -> ModelConfig:
    return ModelConfig(
        num_layers=2, hidden_size=48, num_heads=4, intermediate_size=80, max_positions=64, vocab_size=VOCAB,
        hidden_dropout=dropout, attention_dropout=dropout,
    )  # fmt: skip


def batch_of(lengths: list[int]) -> Batch:
    """A pretraining batch; a length of 0 is a row without any real token."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1, VOCAB, mask.shape, generator=generator) * mask
    positions = mask.flatten().nonzero().squeeze(1)[::2]
    tensors = {
        "input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids),
        "masked_positions": positions,
        "masked_labels": torch.randint(0, VOCAB, positions.shape, generator=generator),
        "next_sentence_labels": torch.randint(0, 2, (len(lengths),), generator=generator),
    }  # fmt: skip
    squared = sum(length**2 for length in lengths)
    return Batch(tensors, BatchCounts(len(lengths), sum(lengths), ids.numel(), len(positions), squared))


def model(levers: str, dropout: float = 0.0) -> BertForPretraining:
    torch.manual_seed(0)
    made = BertForPretraining(shape(dropout))
    for parameter in made.parameters():  # wide enough that every part matters
        torch.nn.init.normal_(parameter, std=0.2)
    made.masked_words.reset_padding()
    use_levers(made, frozenset(filter(None, levers.split("+"))))
    return made


def outcome(made: BertForPretraining, batch: Batch, bf16: bool = False) -> dict[str, Tensor]:
    """Loss and gradients, with the same random numbers each time."""
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        loss = made(batch).loss
    loss.backward()
    return {"loss": loss.detach()} | {n: p.grad for n, p in made.named_parameters() if p.grad is not None}


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    least = 1e-3 * max(value.norm() for value in expected.values())
    for name, value in expected.items():
        assert (found[name] - value).norm() <= tolerance * max(value.norm(), least), name


@pytest.mark.parametrize("layout", ["", "unpad+chunks"])
@pytest.mark.parametrize("lengths", [each for each in LENGTHS if all(each)], ids=str)
def test_losses_and_gradients_are_hugging_faces(lengths: list[int], layout: str) -> None:
    ours, batch, config = model(f"{LEVER}+{layout}"), batch_of(lengths), shape()
    theirs = BertForPreTraining(
        BertConfig(
            vocab_size=VOCAB, hidden_size=config.hidden_size, num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads, intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_positions, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    for value in theirs.parameters():  # wide enough that every part matters
        torch.nn.init.normal_(value, std=0.1)
    load_hugging_face_state(ours, theirs.state_dict())
    labels = torch.full_like(batch.tensors["input_ids"], -100)
    labels.view(-1)[batch.tensors["masked_positions"]] = batch.tensors["masked_labels"]
    names = ("input_ids", "attention_mask", "token_type_ids")
    loss = theirs(
        **{name: batch.tensors[name] for name in names}, labels=labels,
        next_sentence_label=batch.tensors["next_sentence_labels"],
    ).loss  # fmt: skip
    loss.backward()
    own = outcome(ours, batch)
    torch.testing.assert_close(own["loss"], loss.detach(), rtol=1e-5, atol=1e-5)
    for parameter in ours.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    graded = to_hugging_face_state(ours)
    for name, value in theirs.named_parameters():
        torch.testing.assert_close(graded[name], value.grad, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("layout", ["", "unpad+chunks+bf16-attention"])
@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-5), (True, 2e-2)])
def test_with_the_same_dropout_it_is_what_pytorch_computes(
    lengths: list[int], layout: str, bf16: bool, tolerance: float
) -> None:
    batch = batch_of(lengths)
    expected = outcome(model(layout, 0.1), batch, bf16)
    assert_near(outcome(model(f"{LEVER}+{layout}", 0.1), batch, bf16), expected, tolerance)
    again = model(f"{LEVER}+{layout}", 0.1)
    recompute_activations(again)
    assert_near(outcome(again, batch, bf16), expected, tolerance)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("probability", [0.0, 0.1])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [(0,), (1,), (2, 3), (700,)], ids=str)
@pytest.mark.parametrize("width", [3, 31, 768])
def test_loops_are_the_formulas(
    monkeypatch: pytest.MonkeyPatch, threads: int, probability: float, kind: torch.dtype, rows: tuple[int, ...],
    width: int,
) -> None:  # fmt: skip
    before = torch.get_num_threads()
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(width, eps=1e-5)
    torch.nn.init.normal_(norm.weight)
    inputs = [torch.randn(*rows, width).to(kind).requires_grad_(), torch.randn(*rows, width, requires_grad=True)]
    found = []
    torch.set_num_threads(threads)
    try:
        for wanted in "01":
            monkeypatch.setenv(native.VARIABLE, wanted)
            torch.manual_seed(3)
            wide, narrow, _ = residual_norm(*inputs, norm, probability, True)
            activated = gelu(inputs[0], True)
            assert wide.dtype == torch.float32 and narrow.dtype == activated.dtype == kind
            given = [wide, narrow, activated]
            grads = torch.autograd.grad(given, [*inputs, *norm.parameters()], [torch.randn_like(v) for v in given])
            found.append([*given, *grads])
    finally:
        torch.set_num_threads(before)
    for loop, formula in zip(*reversed(found), strict=True):
        rounding = 2e-5 * max(1.0, len(formula) ** 0.5 if formula.dim() == 1 else 1.0)
        tolerance = 2**-7 if formula.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(
            loop, formula, rtol=tolerance, atol=2**-6 if formula.dtype == torch.bfloat16 else rounding
        )


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)
def test_the_slope_of_gelu_is_right_everywhere(kind: torch.dtype) -> None:
    x = torch.linspace(-40, 40, 400_001).to(kind).requires_grad_()
    exact = x.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(gelu(x, True).sum(), x)
    (expected,) = torch.autograd.grad(torch.nn.functional.gelu(exact).sum(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=2**-8 if kind == torch.bfloat16 else 0, atol=4e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_in_its_row(bad: float) -> None:
    x = torch.ones(3, 40)
    x[1, 7] = bad
    for kind in (torch.bfloat16, torch.float32):
        wide, narrow, _ = residual_norm(x.to(kind), torch.randn(3, 40), torch.nn.LayerNorm(40), 0.0, True)
        for given in (wide, narrow):
            assert given.isnan().all(1).tolist() == [False, True, False]
            assert given[::2].isfinite().all()


def trials(cli: Cli, *options: str) -> list[dict[str, object]]:
    done = cli.run(*options)
    assert done.returncode == 0, done.stderr
    return cli.results()


def losses(cli: Cli) -> list[list[float]]:
    found = []
    for directory in sorted((cli.out / "trials").iterdir()):
        rows = TrialDirectory(directory).steps_csv(0).read_text().splitlines()
        column = rows[0].split(",").index("loss")
        found.append([float(row.split(",")[column]) for row in rows[1:]])
    return found


def test_two_ranks_train_as_without_it(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    results = trials(
        cli, "--levers", "unpad", f"unpad+{LEVER}", "--devices", "2", "--strategies", "ddp", "--batch-sizes", "2",
        "--dropout", "0", "--rounds", "1",
        "--start", "1", "--stop", "6",
    )  # fmt: skip
    assert [result["status"] for result in results] == ["ok", "ok"]
    one, other = losses(cli)
    assert len(one) == 6 and one == pytest.approx(other, rel=1e-4)
    assert [path.suffix for path in (tmp_path / "cache" / "bertbench").iterdir()] == [".so"]


def test_without_a_compiler_the_command_says_so_before_anything_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    monkeypatch.setenv("CC", "no-such-compiler")
    done = cli.run("--levers", LEVER)
    assert done.returncode != 0 and not cli.out.exists()
    check_refusal(done.stderr, "tool-missing", "'no-such-compiler'", "gcc")


def test_the_compiler_warns_of_nothing(tmp_path: Path) -> None:
    command = [os.environ.get("CC", "cc"), *native._FLAGS, "-Wall", "-Wextra", os.fspath(native._SOURCE)]
    done = subprocess.run([*command, "-o", os.fspath(tmp_path / "made.so")], capture_output=True, text=True, check=True)
    warnings = itertools.filterfalse(lambda line: "unused-parameter" in line, done.stderr.splitlines())
    assert not [line for line in warnings if "warning:" in line]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_and_its_gradient_are_those_of_pytorchs_functions(
    dtype: torch.dtype, name: str, probability: float
) -> None:
    torch.manual_seed(0)
    scores, grad = (torch.randn(2 * HEADS, LENGTH, LENGTH).to(dtype) for _ in range(2))
    both = []
    for fused in (True, False):
        torch.manual_seed(3)
        kept, saved = softmax_dropout(scores.clone(), MASKS[name], 0.3, probability, fused)
        assert (saved.levels is None) == (fused or not probability)
        back, again = softmax_dropout_backward(grad.clone(), saved, 0.3, probability, fused)
        assert torch.equal(kept, again)
        both.append((kept, back, torch.get_rng_state()))
    (kept, back, state), (wanted, wanted_back, wanted_state) = both
    step = 2**-7 if dtype == torch.bfloat16 else 1e-5  # one step of bf16 is 2^-8
    assert torch.equal(kept == 0, wanted == 0) and torch.equal(state, wanted_state)
    torch.testing.assert_close(kept, wanted, rtol=step, atol=1e-6)
    torch.testing.assert_close(back, wanted_back, rtol=step, atol=step * float(wanted_back.abs().max()))


@pytest.mark.parametrize("length", [1, 3, 16, 33, 257])
@pytest.mark.parametrize("spread", [0.01, 1.0, 50.0, 1e4])
def test_softmax_is_its_formula_to_the_last_digits_of_float32(length: int, spread: float) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, length, length) * spread
    kept, _ = softmax_dropout(scores, None, 1.0, 0.0, True)
    rounded = 2**-24 * min(87, 8 * spread)  # the difference to the greatest score, in float32
    torch.testing.assert_close(kept.double(), scores.double().softmax(-1), rtol=1e-6 + rounded, atol=1e-37)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_softmax_passes_on_what_is_not_a_number(value: float) -> None:
    scores = torch.zeros(2, 4, 4)
    scores[0, 1, 2] = value
    kept, _ = softmax_dropout(scores, None, 1.0, 0.0, True)
    assert torch.equal(kept.isnan(), scores.softmax(-1).isnan()) and kept[0, 1].isnan().all()


def philox(counter: int, key: int) -> list[int]:
    """The 8 numbers of 16 bits, low ones first, of a block of Philox4x32-10 as Salmon et al. 2011 define it."""
    words = [counter >> 32 * n & 0xFFFFFFFF for n in range(4)]
    first, second = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        even, odd = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [odd >> 32 ^ words[1] ^ first, odd & 0xFFFFFFFF, even >> 32 ^ words[3] ^ second, even & 0xFFFFFFFF]
        first, second = (first + 0x9E3779B9) & 0xFFFFFFFF, (second + 0xBB67AE85) & 0xFFFFFFFF
    return [part for word in words for part in (word & 0xFFFF, word >> 16)]


def test_the_reference_gives_the_published_answer() -> None:
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # of Random123's kat_vectors, all zeros
    assert philox(0, 0) == [part for word in words for part in (word & 0xFFFF, word >> 16)]


@pytest.mark.parametrize("count", [1, 7, 128, 1000, 4096 + 5])
def test_random_levels_are_philox_whatever_the_threads(count: int) -> None:
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(5)
        found.append(random_levels(torch.empty(count), fused=True))
    torch.set_num_threads(before)
    assert torch.equal(*found) and found[0].dtype == torch.int16
    torch.manual_seed(5)
    key = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) % 2**64
    blocks = [philox(block, key) for block in range(-(-count // 128) * 16)]
    # In each 16 blocks the first words of all come first.
    expected = [blocks[16 * many + block][2 * word + half] for many in range(-(-count // 128)) for word in range(4)
                for block in range(16) for half in range(2)]  # fmt: skip
    assert [number % 2**16 for number in found[0].tolist()] == expected[:count]


def test_random_levels_drop_what_they_should_and_are_new_each_time() -> None:
    torch.manual_seed(0)
    first, second = (random_levels(torch.empty(1 << 20), fused=True) for _ in range(2))
    for levels in (first, second):
        dropped = (levels < threshold(0.1)).double()
        deviation = (0.1 * 0.9 / len(levels)) ** 0.5
        assert abs(float(dropped.mean()) - 0.1) < 4 * deviation
        counts = torch.bincount(levels.int() + 2**15, minlength=2**16).double()
        assert abs(float(((counts - 16).square() / 16).sum()) - 2**16) < 5 * (2 * 2**16) ** 0.5, "chi-squared"
    assert abs(float(((first < 0) ^ (second < 0)).double().mean()) - 0.5) < 4 * 0.5 / 2**10
