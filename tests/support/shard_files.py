"""Shards of instances in memory, written by the product's own writer."""

from pathlib import Path

from bert.tasks.pretrain.hdf5 import write_blocks
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardHeader


def write_shard(path: Path, instances: Instances) -> None:
    """Write one shard."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = ShardHeader(len(instances), instances.input_ids.shape[1], instances.masked_lm_ids.shape[1])
    write_blocks(path, header, [instances])
