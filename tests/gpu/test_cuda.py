"""What only a CUDA device can show. Skipped elsewhere; the CPU tests cover the same code paths as far as they go."""

import json
import subprocess

import pytest
import torch
from support.cli import ROOT, Cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def sweep(cli: Cli, *options: str) -> list[dict[str, object]]:
    argv = cli.argv("throughput", "pretrain", "--device", "cuda", "--devices", "1", *options, "--out", str(cli.out))
    done = subprocess.run([*argv, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 3), done.stderr
    return list(json.loads(done.stdout)["rows"])


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_every_precision_trains_and_its_phases_add_up(cli: Cli, precision: str) -> None:
    (row,) = sweep(cli, "--preset", "mini", "--precisions", precision, "--batch-sizes", "16")
    assert row["status"] == "ok", row["reason"]
    parts = sum(float(row[f"{name}_ms"] or 0) for name in ("data_wait", "forward", "backward", "optimizer"))  # type: ignore[arg-type]
    assert parts == pytest.approx(float(row["step_time_ms"]), rel=0.1)  # type: ignore[arg-type]
    assert 0 < float(row["mfu"]) < 1  # type: ignore[arg-type]


def test_real_out_of_memory_is_a_row_and_the_next_trial_runs(cli: Cli) -> None:
    rows = sweep(
        cli, "--preset", "large", "--seq-lens", "512", "--batch-sizes", "20000", "2", "--start", "1", "--stop", "3"
    )
    assert {row["micro_batch_size"]: row["status"] for row in rows} == {20000: "oom", 2: "ok"}


def test_three_more_implementations_stand_beside_ours(cli: Cli) -> None:
    pytest.importorskip("transformers")
    names = ("bertbench", "hf", "hf-compiled", "torch-encoder")
    rows = sweep(cli, "--preset", "base", "--batch-sizes", "32", "--rounds", "1", "--implementations", *names)
    assert {row["implementation"]: row["status"] for row in rows} == dict.fromkeys(names, "ok")


def test_lamb_equals_its_plain_formulas_on_the_device() -> None:
    from support.plain_lamb import PlainLamb

    from bert.lamb import Lamb

    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator) for shape in ((300, 64), (64,), (64, 64))]
    decays = [0.01, 0.0, 0.01]
    parameters = [torch.nn.Parameter(value.clone().cuda()) for value in values]
    groups = [{"params": [p], "weight_decay": decay} for p, decay in zip(parameters, decays, strict=True)]
    optimizer, plain = Lamb(groups, lr=0.01), PlainLamb([value.clone() for value in values], decays)
    for _ in range(5):
        gradients = [torch.randn(value.shape, generator=generator) for value in values]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone().cuda()
        optimizer.step()
        plain.step(list(gradients), 0.01)
    for parameter, value in zip(parameters, plain.values, strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_training_stops_and_resumes_on_the_device(cli: Cli, optimizer: str) -> None:
    words = ["train", "pretrain", "--preset", "tiny", "--data", "synthetic", "--seq-len", "32", "--device", "cuda"]
    words += ["--devices", "1", "--global-batch-size", "16", "--micro-batch-size", "8", "--precision", "fp16"]
    words += ["--optimizer", optimizer, "--save-every", "4", "--out", str(cli.out)]
    for steps in ("4", "8"):
        argv = cli.argv(*words, "--steps", steps)
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
    assert (cli.out / "checkpoints/step-0000008").is_dir()


def test_gradients_are_ready_one_after_another_within_the_measured_backward_pass(cli: Cli) -> None:
    (row,) = sweep(cli, "--preset", "base", "--batch-sizes", "32")
    assert row["status"] == "ok", row["reason"]
    (record,) = [json.loads(path.read_text())["backward"] for path in cli.out.glob("trials/*/rank-0.json")]
    assert 0 < record["ready_ms"][2] < record["ready_ms"][-1] <= record["backward_ms"] and record["passes"] == 5
    assert record["backward_ms"] == pytest.approx(float(row["backward_ms"]), rel=0.25)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="a collective over NCCL needs two GPUs")
def test_collectives_over_nccl_are_right_in_every_type(cli: Cli) -> None:
    every = [
        "--collectives",
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "--dtypes",
        "fp32",
        "fp16",
        "bf16",
    ]
    argv = cli.argv("comm", "--device", "cuda", "--devices", "2", "--max-bytes", "64M", "--factor", "8", *every)
    done = subprocess.run(
        [*argv, "--out", str(cli.out), "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(row["wrong"] == 0 and row["busbw_gb_s"] > 0 for row in json.loads(done.stdout)["rows"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_step_is_taken_apart_on_the_device(cli: Cli, precision: str) -> None:
    options = ("--preset", "mini", "--batch-size", "16", "--precision", precision, "--rounds", "3")
    argv = cli.argv("speed-of-light", "pretrain", "--device", "cuda", *options, "--out", str(cli.out), "--json")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["floor_ms"] < found["step_time_ms"]
    assert sum(bar["ms"] for bar in found["waterfall"][:-1]) == pytest.approx(found["step_time_ms"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_attention_without_padding_is_each_sequence_alone(dtype: torch.dtype) -> None:
    from bert.attention import attend
    from bert.sequences import unpad

    lengths = torch.tensor([64, 1, 17, 33])
    where = unpad((torch.arange(64) < lengths[:, None]).long().cuda())
    assert where is not None
    torch.manual_seed(0)
    qkv = torch.randn(int(lengths.sum()), 3, 4, 64).cuda().to(dtype).requires_grad_()
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


def test_training_without_padding_is_measured(cli: Cli) -> None:
    levers = ("auto", "unpad", "pack")
    rows = sweep(
        cli, "--preset", "mini", "--precisions", "bf16", "--batch-sizes", "16", "--rounds", "1", "--levers", *levers
    )
    assert sorted((row["levers"], row["status"]) for row in rows) == [("", "ok"), ("pack", "ok"), ("unpad", "ok")]


def test_packed_rows_train_as_padded_ones_on_the_device() -> None:
    from support.layouts import assert_same, batch_of, loss_and_gradients, model

    found = []
    for packs in (False, True):
        made = model(False).cuda()
        made.encoder.packs = packs
        found.append(loss_and_gradients(made, made(batch_of([64, 1, 17, 33], 64).to(torch.device("cuda"))).loss))
    assert_same(*found, 1e-4)


def test_layers_on_packed_rows_replay_as_one_cuda_graph() -> None:
    from support.layouts import batch_of, model

    from bert.packing import pack

    encoder = model(False).cuda().eval().encoder
    rows, columns, width = 2, 20, encoder.config.hidden_size
    hidden = torch.zeros(rows, columns, width, device="cuda")
    mask = torch.ones(rows, 1, columns, columns, dtype=torch.bool, device="cuda")

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
            batch = batch_of(lengths, columns).to(torch.device("cuda")).tensors
            packed = pack(batch["attention_mask"])
            ids, types = packed.take(batch["input_ids"]), packed.take(batch["token_type_ids"])
            hidden.copy_(encoder.embeddings(ids, types, None, packed.position_ids()))
            mask.copy_(packed.mask)
            graph.replay()
            expected = encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]).hidden
            real = batch["attention_mask"].bool()
            torch.testing.assert_close(packed.put_back(replayed)[real], expected[real], rtol=1e-4, atol=1e-4)
