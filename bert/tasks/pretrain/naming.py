"""Names of the files of a preparation, which scripts and other programs rely on."""

import re

SHARD_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)\.(?:hdf5|h5)")
PREPARATION_NAME = re.compile(r"hdf5_lower_case_.*seq_len_(?P<seq_len>\d+)_.*")
"""Of the folder above the shards of one sequence length."""
METADATA_FILE = "metadata.json"
VOCABULARY_FILE = "vocab.txt"
