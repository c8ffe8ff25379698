"""The model against Hugging Face's: the same weights give the same losses and gradients; its pretraining heads."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.refusals import refused
from transformers import BertConfig, BertForPreTraining, DistilBertConfig, DistilBertModel

from bert.checkpoints.hugging_face import load_hugging_face_state, to_hugging_face_state
from bert.data.batch import Batch, BatchCounts
from bert.model.config import PRESETS, ModelConfig, preset
from bert.model.encoder import BertEncoder
from bert.model.heads import BertForPretraining, MaskedWordHead, mean_cross_entropy
from bert.speed import STEPS, apply

VOCAB = 101  # not a multiple of 8: three padding rows


def shape(**changes):
    small = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64, "max_positions": 64}
    return ModelConfig(**{**small, "vocab_size": VOCAB, "hidden_dropout": 0.0, "attention_dropout": 0.0, **changes})


def hugging_face_config(config, attention="sdpa"):
    return BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_positions,
        hidden_dropout_prob=config.hidden_dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        attn_implementation=attention,
    )


def make_batch(lengths, seq_len, predictions=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths)
    size = len(lengths)
    columns = torch.arange(seq_len)
    mask = (columns < lengths[:, None]).long()
    ids = torch.randint(0, VOCAB, (size, seq_len), generator=generator) * mask
    ids[0, 0] = 0  # a real token, whose input gradient Hugging Face leaves out
    types = (columns >= lengths[:, None] // 2).long() * mask
    positions = torch.cat(
        [row * seq_len + torch.randperm(n, generator=generator)[:predictions] for row, n in enumerate(lengths.tolist())]
    )
    labels = torch.randint(0, VOCAB, positions.shape, generator=generator)
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": types,
        "masked_positions": positions,
        "masked_labels": labels,
        "next_sentence_labels": torch.randint(0, 2, (size,), generator=generator),
    }
    squared = int((lengths**2).sum())
    return Batch(tensors, BatchCounts(size, int(lengths.sum()), size * seq_len, len(positions), squared))


def hugging_face_output(model, batch):
    tensors = batch.tensors
    labels = torch.full_like(tensors["input_ids"], -100)
    labels.view(-1)[tensors["masked_positions"]] = tensors["masked_labels"]
    return model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        token_type_ids=tensors["token_type_ids"],
        labels=labels,
        next_sentence_label=tensors["next_sentence_labels"],
    )


def pair(config, attention="sdpa", seed=0):
    """Both models with the same weights, spread wider than at the start so that every part matters."""
    torch.manual_seed(seed)
    theirs = BertForPreTraining(hugging_face_config(config, attention))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    ours = BertForPretraining(config)
    report = load_hugging_face_state(ours, theirs.state_dict())
    assert not report.missing and not report.unexpected
    return ours, theirs


def gradients_under_their_names(model):
    graded = copy.deepcopy(model)
    for parameter, original in zip(graded.parameters(), model.parameters(), strict=True):
        parameter.data = original.grad
    return to_hugging_face_state(graded)


def assert_same_gradients(ours, theirs, tolerance=1e-5):
    found = gradients_under_their_names(ours)
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    assert expected.keys() <= found.keys()
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        # A key bias shifts all scores of a query alike: its gradient is 0, and what is found is rounding noise.
        scale = largest if name.endswith("key.bias") else float(grad.abs().max())
        difference = float((found[name] - grad).abs().max())
        assert difference <= tolerance * scale, f"{name}: {difference:.2e} of {scale:.2e}"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("config", "lengths", "seq_len"),
    [
        (shape(), [24, 24, 24], 24),
        (shape(), [24, 9, 3, 17], 24),
        (shape(), [64, 1], 64),
        (shape(num_layers=1, hidden_size=48, num_heads=3, intermediate_size=80, vocab_multiple=1), [2], 2),
        (shape(num_layers=3, hidden_size=16, num_heads=1, vocab_multiple=64), [31, 30, 2, 8, 31], 31),
    ],
)
def test_losses_and_gradients_are_hugging_faces(config, lengths, seq_len, training, attention, step):
    ours, theirs = pair(config, attention)
    apply(ours, step)
    ours.train(training)
    theirs.train(training)
    batch = make_batch(lengths, seq_len)
    output = ours(batch)
    output.loss.backward()
    expected = hugging_face_output(theirs, batch)
    expected.loss.backward()
    assert output.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    positions, labels = batch.tensors["masked_positions"], batch.tensors["masked_labels"]
    mlm = F.cross_entropy(expected.prediction_logits.flatten(0, 1)[positions], labels)
    assert output.mlm_loss.item() == pytest.approx(mlm.item(), rel=1e-5)
    assert output.nsp_loss.item() == pytest.approx((expected.loss - mlm).item(), rel=1e-5, abs=1e-5)
    assert_same_gradients(ours, theirs)


def test_without_predicted_positions_only_the_next_sentence_counts():
    ours, theirs = pair(shape())
    batch = make_batch([12, 5], 12, predictions=0)
    output = ours(batch)
    output.loss.backward()
    tensors = batch.tensors
    logits = theirs(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        token_type_ids=tensors["token_type_ids"],
    ).seq_relationship_logits
    expected = F.cross_entropy(logits, tensors["next_sentence_labels"])
    expected.backward()
    for parameter in theirs.cls.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    assert output.mlm_loss.item() == 0.0
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # Every parameter has a gradient, which DistributedDataParallel insists on.
    assert all(parameter.grad is not None for parameter in ours.parameters())
    assert_same_gradients(ours, theirs)


def test_without_mask_and_segments_all_tokens_are_real_and_of_segment_zero():
    model = BertEncoder(shape()).eval()
    ids = torch.randint(0, VOCAB, (2, 10))
    expected = model(ids)
    for found in (model(ids, torch.ones_like(ids)), model(ids, None, torch.zeros_like(ids))):
        torch.testing.assert_close(found.hidden, expected.hidden, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.pooled, expected.pooled, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_count_is_hugging_faces(name):
    config = preset(name)
    padding_rows = config.padded_vocab_size - config.vocab_size
    with torch.device("meta"):
        if name == "distilbert":
            ours = BertEncoder(config, pooler=False)
            theirs = DistilBertModel(DistilBertConfig())
            padding = padding_rows * config.hidden_size
        else:
            ours = BertForPretraining(config)
            theirs = BertForPreTraining(hugging_face_config(config))
            padding = padding_rows * (config.hidden_size + 1)
    expected = sum(parameter.numel() for parameter in theirs.parameters())
    assert sum(parameter.numel() for parameter in ours.parameters()) - padding == expected
    if name == "base":
        assert expected == 110_106_428


def test_initial_weights_have_the_published_spread():
    torch.manual_seed(0)
    model = BertForPretraining(shape(hidden_size=128, intermediate_size=512, vocab_size=1001))
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and parameter.numel() > 5000:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
        elif name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias") and name != "masked_words.bias":
            assert (parameter == 0).all(), name
    assert (model.encoder.embeddings.word.weight[1001:] == 0).all()


@pytest.mark.parametrize("which", ["hidden_dropout", "attention_dropout"])
def test_each_dropout_acts_in_training_only(which):
    torch.manual_seed(0)
    model = BertForPretraining(shape(**{which: 0.1}))
    batch = make_batch([24, 9], 24)
    assert torch.equal(model.eval()(batch).loss, model(batch).loss)
    model.train()
    torch.manual_seed(1)
    first, second = model(batch).loss, model(batch).loss
    torch.manual_seed(1)
    assert first != second
    assert torch.equal(model(batch).loss, first)


def test_dropout_keeps_the_mean_loss_near_hugging_faces():
    config = shape(hidden_dropout=0.1, attention_dropout=0.1)
    ours, theirs = pair(config)
    batch = make_batch([24, 9, 17, 24], 24)
    draws = 60
    with torch.no_grad():
        found = torch.stack([ours.train()(batch).loss for _ in range(draws)])
        expected = torch.stack([hugging_face_output(theirs.train(), batch).loss for _ in range(draws)])
    error = (found.var() / draws + expected.var() / draws).sqrt()
    assert (found.mean() - expected.mean()).abs() < 4 * error
    assert 0.6 < found.std() / expected.std() < 1.6


def test_bfloat16_autocast_stays_within_two_percent():
    """bfloat16 has 8 significant bits; the loss and the direction of the gradient survive, single elements do not."""
    model, _ = pair(shape())
    batch = make_batch([24, 9, 17, 24], 24)
    exact = model(batch)
    exact.loss.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(batch)
    rounded.loss.backward()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert rounded.loss.dtype == rounded.mlm_loss.dtype == rounded.nsp_loss.dtype == torch.float32
    assert rounded.loss.item() == pytest.approx(exact.loss.item(), rel=0.02)
    assert rounded.loss != exact.loss
    assert F.cosine_similarity(found, expected, dim=0) > 0.999


def test_too_long_sequences_are_refused_with_both_numbers():
    model = BertEncoder(shape(max_positions=16))
    with refused("data-mismatch", "17", "max_positions=16"):
        model(torch.zeros(1, 17, dtype=torch.long))


CONFIG = shape(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=8)


def head_and_embedding():
    torch.manual_seed(0)
    embedding = torch.randn(CONFIG.padded_vocab_size, 16)
    embedding[VOCAB:] = 0
    return MaskedWordHead(CONFIG), embedding.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_rows_take_no_probability_and_get_no_gradient(dtype):
    head, embedding = head_and_embedding()
    hidden, labels = torch.randn(9, 16), torch.randint(0, VOCAB, (9,))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = head(hidden, embedding)
        loss = mean_cross_entropy(logits, labels)
    assert logits.shape == (9, 104) and logits.dtype == dtype
    assert (logits.float().softmax(-1)[:, VOCAB:] == 0).all()
    (65536.0 * loss).backward()  # as a GradScaler would
    assert (embedding.grad[VOCAB:] == 0).all() and (head.bias.grad[VOCAB:] == 0).all()
    assert embedding.grad[:VOCAB].abs().max() > 0 and embedding.grad.isfinite().all()
    unpadded = F.cross_entropy(logits.detach()[:, :VOCAB].double(), labels)
    assert loss.item() == pytest.approx(unpadded.item(), rel=1e-6)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cross_entropy_is_computed_in_float32(dtype, autocast):
    torch.manual_seed(0)
    logits, labels = (4 * torch.randn(50, 1000)).to(dtype), torch.randint(0, 1000, (50,))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = mean_cross_entropy(logits, labels)
    expected = -logits.double().log_softmax(-1)[torch.arange(50), labels].mean()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
