"""Batches of given lengths, a tiny model whose losses and gradients show how the tokens lie, fp16 with any scale."""

import torch

from bert.data.batch import Batch, BatchCounts
from bert.model.config import ModelConfig
from bert.model.heads import BertForPretraining
from bert.optim.precision import Precision
from bert.speed import apply

VOCAB = 96
SHAPE = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64, max_positions=64, vocab_size=VOCAB,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
LENGTHS = ([8, 8, 8], [16, 3, 9, 1], [1], [1, 1, 1], [13], [5, 64, 17, 31, 2, 64], [2, 3, 4, 5, 6, 7, 8])


def batch_of(lengths: list[int], columns: int, seed: int = 0) -> Batch:
    """A pretraining batch; a length of 0 is a row without any real token."""
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(columns) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1, VOCAB, mask.shape, generator=generator) * mask
    positions = mask.flatten().nonzero().squeeze(1)[::2]
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, ids.shape, generator=generator) * mask,
        "masked_positions": positions,
        "masked_labels": torch.randint(0, VOCAB, positions.shape, generator=generator),
        "next_sentence_labels": torch.randint(0, 2, (len(lengths),), generator=generator),
    }
    squared = sum(length**2 for length in lengths)
    return Batch(tensors, BatchCounts(len(lengths), sum(lengths), ids.numel(), len(positions), squared))


def model(fast: bool, **changes: float) -> BertForPretraining:
    torch.manual_seed(0)
    made = BertForPretraining(SHAPE.replace(**changes))
    for parameter in made.parameters():  # wide enough that every part matters
        torch.nn.init.normal_(parameter, std=0.2)
    made.masked_words.reset_padding()
    apply(made, "fast" if fast else "plain")
    return made


def loss_and_gradients(made: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    loss.backward()
    found = {name: value.grad for name, value in made.named_parameters() if value.grad is not None}
    return {**found, "loss": loss.detach()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def scaled(name: str, scale: float, growth_interval: int = 2000, device_type: str = "cpu") -> Precision:
    """Return a precision whose loss is scaled by `scale`, which doubles after so many updates; only fp16 scales."""
    made = Precision(name, device_type)
    made.load_state_dict({**made.state_dict(), "scale": scale, "growth_interval": growth_interval})
    return made
