"""Measures how shards of pretraining instances are best stored: writing, an epoch of reading, size.

    python tests/slow/bench_shards.py [--data DIR] [--out DIR] [--rounds N] [--dupe-factor N]

The instances of the real books and the wiki excerpt (128 tokens) are made once. Then, in turns: they are written as one
shard by each compressor, on one thread; and all batches of that shard are read in another order than they lie, checks
included, as a training does. Compressors: none (mapped into memory), zlib at several levels and as it looks for runs
alone, zlib-ng, ISA-L, and LZF, which only h5py reads. Results go to DIR/shards.json.
"""

import argparse
import functools
import importlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/slow")]

import bench_data  # noqa: E402
import h5py  # noqa: E402
import numpy as np  # noqa: E402

from bert.data.vocabulary import load_vocabulary  # noqa: E402
from bert.tasks.pretrain import shards, tokens  # noqa: E402
from bert.tasks.pretrain.batches import to_batch  # noqa: E402
from bert.tasks.pretrain.config import InstanceConfig  # noqa: E402
from bert.tasks.pretrain.instances import Instances, plan_instances  # noqa: E402
from bert.tasks.pretrain.masking import pieces_of  # noqa: E402
from bert.tasks.pretrain.shards import ShardHeader, check_values, map_shard, read_shard, write_blocks  # noqa: E402

BATCH = 64
Write = Callable[[Path, Sequence[Instances], ShardHeader], None]


def by_zlib(library: Any, level: int, strategy: int, data: bytes) -> bytes:
    """Compress with a library that has the functions of zlib."""
    compressor = library.compressobj(level, strategy=strategy)
    return bytes(compressor.compress(data) + compressor.flush())


def ours(compress: Callable[[bytes], bytes] | None, path: Path, blocks: Sequence[Instances], header: Any) -> None:
    """Write a shard with a compressor of the format of zlib; None = stored plainly."""
    kept = shards._compressed
    shards._compressed = lambda data, level: compress(data)  # type: ignore[misc]
    try:
        write_blocks(path, header(1 if compress else 0), blocks)
    finally:
        shards._compressed = kept


def by_lzf(path: Path, blocks: Sequence[Instances], header: Any) -> None:
    """Write a shard with h5py's LZF."""
    with h5py.File(path, "w") as file:
        for name, (kind, _) in shards.COLUMNS.items():
            values = np.concatenate([getattr(block, name) for block in blocks])
            chunks = (shards.CHUNK_ROWS, *values.shape[1:])
            file.create_dataset(name, data=values, dtype=kind, chunks=chunks, compression="lzf", shuffle=True)


def epoch(path: Path) -> None:
    """Make all batches of a shard."""
    with h5py.File(path) as file:
        plain = file["input_ids"].chunks is None
    if plain:
        piece = map_shard(path)
        check_values(path, piece)
    else:
        piece = read_shard(path)
    order = np.random.default_rng(1).permutation(len(piece))
    for begin in range(0, len(order), BATCH):
        to_batch([(piece, order[begin : begin + BATCH])])


def sides() -> dict[str, Any]:
    """Return what is compared."""
    found: dict[str, Any] = {"none": functools.partial(ours, None)}
    for library in ("zlib", "zlib_ng.zlib_ng", "isal.isal_zlib"):
        try:
            module = importlib.import_module(library)
        except ImportError:
            print(f"{library} is not installed: its sides are left out", file=sys.stderr)
            continue
        name = {"zlib": "zlib", "isal.isal_zlib": "ISA-L"}.get(library, "zlib-ng")
        for level in (0, 1, 3) if name == "ISA-L" else (1, 6):
            by = functools.partial(by_zlib, module, level, zlib.Z_DEFAULT_STRATEGY)
            found[f"{name} {level}"] = functools.partial(ours, by)
        if name != "ISA-L":
            runs = functools.partial(by_zlib, module, 1, zlib.Z_RLE)
            found[f"{name}, runs alone"] = functools.partial(ours, runs)
    found["LZF"] = by_lzf
    return found


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=bench_data.DATA, help="folder with pretrain/ and vocab/")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-data"), help="folder of the results")
    parser.add_argument("--rounds", type=int, default=5, help="turns of all sides")
    parser.add_argument("--dupe-factor", type=int, default=1, help="duplicates of the text")
    options = parser.parse_args()
    if not (options.data / "pretrain").is_dir():
        print(f"{options.data / 'pretrain'} is not there: see --help for what is needed", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    vocabulary = load_vocabulary(options.data / "vocab/bert-uncased.txt", lower_case=True)
    config = InstanceConfig(seq_len=128, max_predictions=20, dupe_factor=options.dupe_factor)
    with tempfile.TemporaryDirectory(dir=options.out) as name:
        scratch = Path(name).resolve()
        whole = scratch / "text_training_0.txt"
        parts = bench_data.sentence_text(options.data / "pretrain", scratch)
        whole.write_bytes(b"".join(part.read_bytes() for part in parts))
        encoded = tokens._encode_shard(whole, vocabulary.tokenizer)
        tokens._write(scratch / "tokens.npz", encoded, vocabulary.tokenizer.dtype)
        plan = plan_instances(tokens.read_tokens(scratch / "tokens.npz"), pieces_of(vocabulary), config)
        blocks = list(plan.blocks())

        def header(level: int) -> ShardHeader:
            return ShardHeader(samples=len(plan), seq_len=128, max_predictions=20, gzip_level=level)

        rounds: dict[str, list[tuple[float, float]]] = {}
        sizes = {}
        for _ in range(options.rounds):
            for side, write in sides().items():
                path = scratch / "shard.hdf5"
                began = time.process_time()
                write(path, blocks, header)
                written = time.process_time()
                epoch(path)
                rounds.setdefault(side, []).append((written - began, time.process_time() - written))
                sizes[side] = path.stat().st_size
    results = {
        side: {
            "write_ms": 1e3 * statistics.median(write for write, _ in every),
            "epoch_ms": 1e3 * statistics.median(read for _, read in every),
            "megabytes": sizes[side] / 1e6,
        }
        for side, every in rounds.items()
    }
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {len(plan):,} instances")
    for side, found in results.items():
        print(f"  {side:18}" + "".join(f"{name} {value:8.2f}   " for name, value in found.items()))
    (options.out / "shards.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
