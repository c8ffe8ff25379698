"""Numbers on a CUDA device against those of a CPU in float32, in one process and 20 s. Skipped elsewhere."""

import pytest
import torch
import torch.nn.functional as F
from support.layouts import assert_same, batch_of, loss_and_gradients, model
from support.philox import factors

from bert.model.packing import unpad
from bert.optim.precision import Precision
from bert.speed.copies import LOW, copy_of
from bert.speed.kernels import usable
from bert.speed.registry import resolve_levers, use_levers, use_weight_copies

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
LENGTHS = [64, 1, 17, 33]


@pytest.mark.parametrize("levers", ["auto", "none", "unpad", "pack"])
def test_losses_and_gradients_are_those_of_a_cpu(levers: str) -> None:
    plain, made = model(False), model(None)
    expected = loss_and_gradients(plain, plain(batch_of(LENGTHS, 64)).loss)
    use_levers(made, resolve_levers(levers, DEVICE.type))
    made.to(DEVICE)
    found = loss_and_gradients(made, made(batch_of(LENGTHS, 64).to(DEVICE)).loss)
    assert_same({name: value.cpu() for name, value in found.items()}, expected, 1e-3)


@pytest.mark.parametrize(
    "levers",
    [
        "none",
        "unpad",
        "fused-elementwise",
        "fused-elementwise+unpad",
        "unpad+compile",
        "pack",
        "bf16-weights+unpad",
        "fp8",
        "fp8+unpad",
        "fp8+fused-elementwise+unpad",
        "bf16-weights+fused-elementwise+unpad",
    ],
)
def test_losses_in_bf16_and_fp8_are_near_those_of_a_cpu(levers: str) -> None:
    if "fp8" in levers and DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8")
    plain, made = model(False), model(None)
    expected = loss_and_gradients(plain, plain(batch_of(LENGTHS, 64)).loss)
    names = resolve_levers(levers, DEVICE.type)
    use_levers(made, names)
    made.to(DEVICE)
    use_weight_copies(made, names, precision="bf16", strategy="single", grad_accum_steps=1, optimizer="lamb")
    with Precision("bf16", DEVICE.type).autocast():
        loss = made(batch_of(LENGTHS, 64).to(DEVICE)).loss
    found = {name: value.cpu() for name, value in loss_and_gradients(made, loss).items()}
    most = 0.5 if "fp8" in levers else 0.15
    assert abs(found["loss"] - expected["loss"]) < 0.05 * expected["loss"]
    norms = {name: value.norm() for name, value in expected.items()}
    largest = max(norms.values())
    for name, value in expected.items():
        assert (found[name] - value).norm() < most * norms[name] or norms[name] < 1e-2 * largest, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_are_their_formulas_at_the_size_of_large(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if not usable(torch.empty(1, device=DEVICE)):
        pytest.skip("kernels need Triton and a GPU of compute capability 8.0")
    from bert.speed.kernels import gelu, loss, norm

    rows, width, key, probability = 2999, 1024, 0x299F31D0A4093822, 0.1
    monkeypatch.setattr(norm, "random_key", lambda like: torch.tensor([key], device=like.device))
    torch.manual_seed(0)

    def numbers(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, device=DEVICE).to(kind).requires_grad_()

    def agree(made: torch.Tensor, exact: torch.Tensor, given: list[torch.Tensor], mine: list[torch.Tensor]) -> None:
        upstream = torch.randn_like(made)
        gradients = torch.autograd.grad(made, given, upstream)
        wanted = torch.autograd.grad(exact, mine, upstream.double())
        for one, other in zip([made, *gradients], [exact, *wanted], strict=True):
            assert (one - other).norm() < (1e-5 if dtype == torch.float32 else 1e-2) * other.norm()

    kept = factors(key, rows, width, probability).to(DEVICE)
    given = [numbers(rows, width), numbers(rows, width), *(numbers(width, kind=torch.float32) for _ in range(3))]
    mine = [one.detach().double().requires_grad_() for one in given]
    made, _ = norm.residual_norm(given[0], given[1], given[2], given[3], 1e-12, probability, given[4])
    exact = F.layer_norm((mine[0] + mine[4]) * kept + mine[1], (width,), mine[2], mine[3], 1e-12)
    agree(made, exact, given, mine)
    given, mine = [given[0], given[4]], [mine[0], mine[4]]
    agree(gelu.gelu(*given), F.gelu(mine[0] + mine[1]), given, mine)
    logits, labels = numbers(500, 30528), torch.randint(0, 30528, (500,), device=DEVICE)
    own, double = logits * 1, logits.detach().double().requires_grad_()
    agree(loss.mean_cross_entropy(own, labels), F.cross_entropy(double, labels), [own], [double])


@pytest.mark.parametrize("fused", [False, True])
def test_lamb_equals_its_plain_formulas_on_the_device(fused: bool) -> None:
    from support.plain_lamb import PlainLamb

    from bert.optim.fused import FusedLamb
    from bert.optim.lamb import Lamb

    if fused and not usable(torch.empty(1, device=DEVICE)):
        pytest.skip("kernels need Triton and a GPU of compute capability 8.0")

    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator) for shape in ((300, 64), (64,), (64, 64))]
    decays = [0.01, 0.0, 0.01]
    parameters = [torch.nn.Parameter(value.clone().to(DEVICE)) for value in values]
    groups = [{"params": [p], "weight_decay": decay} for p, decay in zip(parameters, decays, strict=True)]
    kind = FusedLamb if fused else Lamb
    optimizer, plain = kind(groups, lr=0.01), PlainLamb([value.clone() for value in values], decays)
    for _ in range(5):
        gradients = [torch.randn(value.shape, generator=generator) for value in values]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone().to(DEVICE)
        optimizer.step()
        plain.step(list(gradients), 0.01)
    for parameter, value in zip(parameters, plain.values, strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_fused_adamw_is_pytorchs(precision: str) -> None:
    from bert.optim.registry import adamw
    from bert.parallel.single import SingleStrategy

    if not usable(torch.empty(1, device=DEVICE)):
        pytest.skip("kernels need Triton and a GPU of compute capability 8.0")
    strategy, results = SingleStrategy(), []
    strategy.device = DEVICE
    for fused in (True, False):
        made, scaling = model(None).to(DEVICE), Precision(precision, DEVICE.type, initial_scale=2.0**10)
        use_weight_copies(
            made, frozenset({"bf16-weights"}), precision=precision, strategy="ddp", grad_accum_steps=1,
            optimizer="adamw",
        )  # fmt: skip
        optimizer, generator = adamw(made, 1e-2, fused=fused), torch.Generator().manual_seed(1)
        for step in range(4):
            scale = float(scaling.scale(torch.ones(1, device=DEVICE)))
            for parameter in made.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(DEVICE) * scale
            if precision == "fp16" and step == 2:
                next(made.parameters()).grad[0] = float("inf")
            strategy.clip(made, optimizer, 0.5, scaling)
            assert strategy.step(optimizer, scaling) == (precision == "bf16" or step != 2)
        results.append([*made.parameters(), *(v for state in optimizer.state.values() for v in state.values())])
        for parameter in made.parameters():
            held = copy_of(parameter)
            assert held is None or torch.equal(held.of(parameter), parameter.detach().to(LOW))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_attention_without_padding_is_each_sequence_alone(dtype: torch.dtype) -> None:
    from bert.model.attention import attend

    lengths = torch.tensor([64, 1, 17, 33])
    where = unpad((torch.arange(64) < lengths[:, None]).long().to(DEVICE))
    assert where is not None
    torch.manual_seed(0)
    qkv = torch.randn(int(lengths.sum()), 3, 4, 64).to(DEVICE).to(dtype).requires_grad_()
    found = attend(qkv, where, 0.0)
    found.float().sum().backward()
    exact = qkv.detach().double()
    expected = [
        (torch.softmax(torch.einsum("qnd,knd->nqk", part[:, 0], part[:, 1]) / 8, -1) @ part[:, 2].transpose(0, 1))
        for part in exact.split(lengths.tolist())
    ]
    together = torch.cat([one.transpose(0, 1) for one in expected])
    torch.testing.assert_close(found.double(), together, rtol=2e-2, atol=2e-2)
    dropped = attend(qkv, where, 0.5)
    assert qkv.grad is not None and qkv.grad.isfinite().all() and not torch.equal(dropped, found)


def test_packed_rows_train_as_padded_ones_on_the_device() -> None:
    found = []
    for packs in (False, True):
        made = model(False).to(DEVICE)
        made.encoder.packs = packs
        found.append(loss_and_gradients(made, made(batch_of([64, 1, 17, 33], 64).to(DEVICE)).loss))
    assert_same(*found, 1e-4)


def test_layers_on_packed_rows_replay_as_one_cuda_graph() -> None:
    from bert.model.packing import pack

    encoder = model(False).to(DEVICE).eval().encoder
    rows, columns, width = 2, 20, encoder.config.hidden_size
    hidden = torch.zeros(rows, columns, width, device=DEVICE)
    mask = torch.ones(rows, 1, columns, columns, dtype=torch.bool, device=DEVICE)

    def layers() -> torch.Tensor:
        made = hidden
        for layer in encoder.layers:
            made = layer(made, mask)
        return made

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(stream):
            layers()
        stream.synchronize()
        with torch.cuda.graph(graph):
            replayed = layers()
        for lengths in ([16, 3, 9, 1], [5, 20, 7, 2]):
            batch = batch_of(lengths, columns).to(DEVICE).tensors
            packed = pack(batch["attention_mask"])
            ids, types = packed.take(batch["input_ids"]), packed.take(batch["token_type_ids"])
            hidden.copy_(encoder.embeddings(ids, types, None, packed.position_ids))
            mask.copy_(packed.mask)
            graph.replay()
            expected = encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]).hidden
            real = batch["attention_mask"].bool()
            torch.testing.assert_close(packed.put_back(replayed)[real], expected[real], rtol=1e-4, atol=1e-4)
