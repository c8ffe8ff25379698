"""Times kernels alone by replays of a CUDA graph: attention, norms, GELU, casts, GEMMs and copies of BERT-large.

    python tests/gpu/kernels.py [--json] [--only PART ...] [--once] [--device cuda|cpu|meta] [--batch 128]

24 calls of one kernel with rotating inputs are one graph; the time is the median of its replays / 24, so that no host
work is in it. Rows: part, kernel, settings, ms, and TFLOP/s or GB/s of what the kernel computes and moves. Sequences
have 1 to 512 tokens, uniformly. `--once` calls each kernel of the present settings once, for Nsight Compute. On a CPU
(with TRITON_INTERPRET=1) and on `meta` each is called once on a tiny input, and nothing is timed.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from bert.data.batch import tiles_of  # noqa: E402
from bert.speed import kernels  # noqa: E402
from bert.speed.fp8 import Cast  # noqa: E402
from bert.speed.kernels import attention, dropout_constants, dropped_levels, gelu, launch, norm, quantize  # noqa: E402
from bert.speed.kernels.attention import WEIGHT_LEVELS  # noqa: E402

CALLS, REPLAYS = 24, 5
HEADS, DEPTH, HIDDEN, INNER, LONGEST, PROBABILITY = 16, 64, 1024, 4096, 512, 0.1
TILES = [
    attention.Tiles(64, 64, 4, 3), attention.Tiles(64, 64, 4, 2), attention.Tiles(64, 64, 4, 4),
    attention.Tiles(128, 64, 8, 2), attention.Tiles(128, 64, 8, 3), attention.Tiles(128, 64, 4, 2),
    attention.Tiles(32, 64, 4, 3), attention.Tiles(64, 64, 4, 2, 168), attention.Tiles(64, 64, 4, 3, 200),
    attention.Tiles(64, 64, 4, 2, 128), attention.Tiles(64, 128, 8, 2),
]  # fmt: skip


class Case(NamedTuple):
    """One kernel with its settings."""

    part: str
    kernel: str
    settings: dict[str, Any]
    run: Callable[[int], object]
    """Call it with the input of this number."""
    flops: float = 0.0
    bytes: float = 0.0


class Inputs:
    """Random inputs of the shapes of a batch."""

    def __init__(self, device: torch.device, batch: int, copies: int = 3) -> None:
        self.device, self.copies = device, copies
        real = device.type == "cuda"
        self.hidden, self.inner, self.heads = (HIDDEN, INNER, HEADS) if real else (128, 256, 2)
        self.longest = LONGEST if real else 48
        lengths = torch.randint(1, self.longest + 1, (batch,), generator=torch.Generator().manual_seed(1))
        self.ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int().to(device)
        self.tokens, self.squares = int(lengths.sum()), float(lengths.double().square().sum())
        self.work = {rows: tiles_of(lengths.tolist(), rows).to(device) for rows in (32, 64, 128)}
        self.scale, self.record = torch.ones(1, device=device), torch.zeros(1, device=device)

    def made(self, *shape: int) -> list[Tensor]:
        return [torch.randn(shape, device=self.device).to(torch.bfloat16) for _ in range(self.copies)]


def copies_of(inputs: Inputs) -> Iterator[Case]:
    values, out = inputs.made(inputs.tokens, inputs.inner), inputs.made(inputs.tokens, inputs.inner)
    moved = 4.0 * inputs.tokens * inputs.inner
    yield Case("copy", "copy", {}, lambda number: out[number].copy_(values[number]), bytes=moved)


def attentions(inputs: Inputs) -> Iterator[Case]:
    """Forward pass, gradients of queries, gradients of keys and values: 2, 3 and 4 GEMMs of 2 S^2 H FLOPs."""
    qkv = inputs.made(inputs.tokens, 3, inputs.heads, DEPTH)
    grads = inputs.made(inputs.tokens, inputs.heads, DEPTH)
    contexts, results = [torch.empty_like(one) for one in grads], [torch.empty_like(one) for one in qkv]
    sums = [torch.zeros(inputs.heads, inputs.tokens, device=inputs.device) for _ in range(2)]
    key = torch.ones(1, dtype=torch.int64, device=inputs.device)
    dropped = dropped_levels(PROBABILITY, WEIGHT_LEVELS)
    kept = WEIGHT_LEVELS / (WEIGHT_LEVELS - dropped)
    how = {"heads": inputs.heads, "depth": DEPTH, "dropped": dropped, "kept": kept}
    product = 2.0 * inputs.squares * inputs.heads * DEPTH

    def forward(tiles: attention.Tiles, number: int) -> None:
        work = inputs.work[tiles.queries]
        launch(
            attention.attention_forward, (inputs.heads, len(work)), qkv[number], work, key, contexts[number], sums[0],
            inputs.tokens, **how, **tiles._asdict(),
        )  # fmt: skip

    def of_queries(tiles: attention.Tiles, number: int) -> None:
        work = inputs.work[tiles.queries]
        launch(
            attention.attention_query_gradients, (inputs.heads, len(work)), qkv[number], work, key, contexts[number],
            sums[0], grads[number], sums[1], results[number], None, inputs.tokens, **how, **tiles._asdict(),
        )  # fmt: skip

    def of_keys(tiles: attention.Tiles, number: int) -> None:
        work = inputs.work[tiles.keys]
        launch(
            attention.attention_key_gradients, (inputs.heads, len(work)), qkv[number], work, key, sums[0],
            grads[number], sums[1], results[number], None, inputs.tokens, **how, **tiles._asdict(),
        )  # fmt: skip

    present = attention.FORWARD, attention.OF_QUERIES, attention.OF_KEYS
    for kernel, gemms, tiles in zip((forward, of_queries, of_keys), (2, 3, 4), present, strict=True):
        for one in [tiles[DEPTH], *(other for other in TILES if other != tiles[DEPTH])]:
            settings = one._asdict()
            yield Case("attention", kernel.__name__, settings, lambda n, k=kernel, t=one: k(t, n), gemms * product)
    if inputs.device.type == "cuda":
        yield from _flash(inputs, qkv, grads, product)


def _flash(inputs: Inputs, qkv: Sequence[Tensor], grads: Sequence[Tensor], product: float) -> Iterator[Case]:
    ends, most = inputs.ends, inputs.longest

    def forward(number: int) -> Any:
        query, key, value = qkv[number].unbind(1)
        return torch.ops.aten._flash_attention_forward(
            query, key, value, ends, ends, most, most, PROBABILITY, False, False
        )

    out, logsumexp, state, unused, _ = forward(0)

    def backward(number: int) -> object:
        query, key, value = qkv[0].unbind(1)
        return torch.ops.aten._flash_attention_backward(
            grads[number], query, key, value, out, logsumexp, ends, ends, most, most, PROBABILITY, False, state, unused
        )

    yield Case("attention", "flash forward", {}, forward, 2 * product)
    yield Case("attention", "flash backward", {}, backward, 5 * product)


def norms(inputs: Inputs) -> Iterator[Case]:
    """The backward kernel by programs on a multiprocessor and stages of its loop."""
    shape = inputs.tokens, inputs.hidden
    x, residual, grads = (inputs.made(*shape) for _ in range(3))
    weight, shift, bias = (torch.ones(inputs.hidden, device=inputs.device) for _ in range(3))
    how = {"width": inputs.hidden, "columns": kernels.columns_of(inputs.hidden), **dropout_constants(PROBABILITY)}
    how |= {"multiple": norm._ROWS, "block": 0, "limit": 0.0}
    groups = -(-inputs.tokens // norm._ROWS)
    mean, inverse = (torch.ones(inputs.tokens, device=inputs.device) for _ in range(2))
    key = torch.ones(1, dtype=torch.int64, device=inputs.device)
    of_x, of_residual = torch.empty_like(x[0]), torch.empty_like(x[0])
    warps = kernels.warps_of(norm._ROWS * how["columns"])

    def forward(number: int) -> None:
        launch(
            norm.dropout_layer_norm_forward, (inputs.tokens,), x[number], residual[number], bias, weight, shift, key,
            of_x, mean, inverse, *(None,) * 4, inputs.tokens, inputs.tokens, 1e-12, tile=1,
            warps=kernels.warps_of(how["columns"]), **{**how, "multiple": 1},
        )  # fmt: skip

    def backward(each: int, stages: int, registers: int | None, number: int) -> None:
        count = kernels.programs(of_x, groups, each)
        sums = torch.empty(count, 3, inputs.hidden, device=inputs.device)
        launch(
            norm.dropout_layer_norm_backward, (count,), x[number], residual[number], bias, weight, key, mean, inverse,
            grads[number], None, *(None,) * 4, of_x, of_residual, sums, inputs.tokens, groups, tile=norm._ROWS,
            stages=stages, warps=warps, maxnreg=registers, **how,
        )  # fmt: skip

    moved = 2.0 * inputs.tokens * inputs.hidden
    yield Case("norm", "forward", {}, forward, bytes=3 * moved)
    present = norm._PROGRAMS, norm._STAGES, norm._REGISTERS
    others = [one for one in itertools.product((2, 3, 4), (1, 2, 3), present[2:]) if one != present]
    for each, stages, registers in [present, *others, (2, 2, None)]:
        settings = {"programs": each, "stages": stages, "registers": registers}
        run = partial(backward, each, stages, registers)
        yield Case("norm", "backward", settings, run, bytes=5 * moved)


def casts(inputs: Inputs) -> Iterator[Case]:
    """Casts to FP8 in both orders, and GELU with them, by tile."""
    values, e4m3 = inputs.made(inputs.tokens, inputs.hidden), torch.float8_e4m3fn
    weights = inputs.made(inputs.inner, inputs.hidden)
    present = quantize._TILE, quantize._COLUMNS, quantize._WARPS
    elements = float(inputs.tokens * inputs.hidden)
    for tile, columns, warps in [present, (32, 64, 2), (64, 64, 4), (128, 64, 4), (64, 128, 4)]:
        settings = {"_TILE": tile, "_COLUMNS": columns, "_WARPS": warps}

        def cast(number: int, settings: dict[str, int] = settings) -> object:
            with patch.multiple(quantize, **settings):
                return quantize.cast_both_ways(values[number], Cast(e4m3, inputs.scale, inputs.record))

        yield Case("cast", "cast", settings, cast, bytes=4 * elements)
    together = quantize.casts_together([(one, Cast(e4m3, inputs.scale, inputs.record)) for one in weights])
    size = float(sum(map(Tensor.numel, weights)))
    yield Case("cast", "weights together", {}, lambda number: together(), bytes=4 * size)
    rows = inputs.tokens
    wide, grads = inputs.made(rows, inputs.inner), inputs.made(rows, inputs.inner)
    bias = torch.zeros(inputs.inner, device=inputs.device)
    present = gelu._TILE, gelu._FP8_COLUMNS, gelu._FP8_WARPS
    for tile, columns, warps in [present, (64, 64, 4), (64, 64, 8), (64, 128, 8), (128, 64, 8)]:
        size = {"_TILE": tile, "_FP8_COLUMNS": columns, "_FP8_WARPS": warps}

        def forward(number: int, size: dict[str, int] = size) -> object:
            with patch.multiple(gelu, **size):
                return gelu.gelu(wide[number], bias, Cast(e4m3, inputs.scale, inputs.record))

        def backward(number: int, size: dict[str, int] = size) -> object:
            into = Cast(torch.float8_e5m2, inputs.scale, inputs.record)
            with patch.multiple(gelu, **size):
                return gelu.gelu_backward_to_fp8(wide[number], bias, grads[number], into)

        yield Case("gelu", "forward to fp8", size, forward, bytes=4.0 * rows * inputs.inner)
        yield Case("gelu", "backward to fp8", size, backward, bytes=6.0 * rows * inputs.inner)


def gemms(inputs: Inputs) -> Iterator[Case]:
    """The GEMMs of a layer, forward and both gradients, in bf16 and in FP8 with and without fast accumulation."""
    rows, hidden, inner = -(-inputs.tokens // 16) * 16, inputs.hidden, inputs.inner
    layers = {
        "qkv": (hidden, 3 * hidden),
        "output": (hidden, hidden),
        "inner": (hidden, inner),
        "outer": (inner, hidden),
    }
    one = torch.ones((), device=inputs.device)
    for name, (fan_in, fan_out) in layers.items():
        for kind, (m, k, n) in {
            "forward": (rows, fan_in, fan_out),
            "of input": (rows, fan_out, fan_in),
            "of weight": (fan_out, rows, fan_in),
        }.items():
            first, second = inputs.made(m, k), inputs.made(n, k)
            flops = 2.0 * m * k * n

            def product(number: int, first: Any = first, second: Any = second) -> object:
                return first[number] @ second[number].t()

            yield Case("gemm", f"{name} {kind}", {"dtype": "bf16"}, product, flops)
            if inputs.device.type != "cuda":
                continue
            low = [[value.to(torch.float8_e4m3fn) for value in values] for values in (first, second)]
            for fast in (False, True):

                def scaled(number: int, low: Any = low, fast: bool = fast) -> object:
                    return torch._scaled_mm(
                        low[0][number], low[1][number].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
                        use_fast_accum=fast,
                    )  # fmt: skip

                yield Case("gemm", f"{name} {kind}", {"dtype": "fp8", "fast accumulation": fast}, scaled, flops)


PARTS = {"copy": copies_of, "attention": attentions, "norm": norms, "cast": casts, "gemm": gemms}


def milliseconds(case: Case, copies: int) -> float:
    """Return the time of one call: the median of replays of a graph of CALLS calls, ms."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for number in range(copies):
            case.run(number)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in range(CALLS):
            case.run(call % copies)
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / CALLS)
    return statistics.median(times)


def row_of(case: Case, inputs: Inputs, timed: bool) -> dict[str, Any]:
    """Return the row of a case; a setting that a device refuses has the error in place of figures."""
    row: dict[str, Any] = {"part": case.part, "kernel": case.kernel, "settings": case.settings}
    try:
        if not timed:
            case.run(0)
            return {**row, "ms": None}
        ms = milliseconds(case, inputs.copies)
    except Exception as error:  # e.g. more shared memory than there is; the other settings still run
        return {**row, "ms": None, "error": f"{type(error).__name__}: {error}"[:300]}
    rates = {"tflop_s": case.flops / ms / 1e9} if case.flops else {"gb_s": case.bytes / ms / 1e6}
    return {**row, "ms": ms, **rates}


def present_only(cases: Sequence[Case]) -> Iterator[Case]:
    """Keep the first case of each kernel, which has the present settings."""
    seen = set()
    for case in cases:
        if (case.part, case.kernel) not in seen:
            seen.add((case.part, case.kernel))
            yield case


def main(argv: Sequence[str]) -> int:
    """Print a row for each kernel and setting; 1 if one of the present settings failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "meta"))
    parser.add_argument("--batch", type=int, default=128, help="sequences")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--once", action="store_true", help="one call of each kernel with its present settings")
    parser.add_argument("--json", action="store_true", help="the only output there is")
    given = parser.parse_args(argv)
    device = torch.device(given.device)
    inputs = Inputs(device, given.batch if device.type == "cuda" else 2)
    timed, rows, failed = device.type == "cuda" and not given.once, [], 0
    with patch.object(kernels, "DEVICES", {*kernels.DEVICES, "cpu", "meta"}):
        for name in given.only:
            every = list(PARTS[name](inputs))
            present = list(present_only(every))
            for case in present if given.once else every:
                row = row_of(case, inputs, timed)
                failed += "error" in row and case in present
                rows.append(row)
                sys.stderr.write(f"{json.dumps(row)}\n")
    if given.json:
        sys.stdout.write(json.dumps({"device": str(device), "tokens": inputs.tokens, "rows": rows}) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
