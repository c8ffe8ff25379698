"""Shards of instances in memory, written by the product's own writer."""

from pathlib import Path

from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardHeader, write_blocks


def write_shard(path: Path, instances: Instances, settings: str | None = None) -> None:
    """Write one shard."""
    header = ShardHeader(
        samples=len(instances),
        seq_len=instances.input_ids.shape[1],
        max_predictions=instances.masked_lm_ids.shape[1],
        settings=settings,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_blocks(path, header, [instances])
