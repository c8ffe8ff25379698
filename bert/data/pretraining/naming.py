"""Names of the files of a preparation, which scripts and other programs rely on."""

import re

SHARD_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>training|test)_(?P<number>\d+)\.(?:hdf5|h5)")
METADATA_FILE = "metadata.json"
VOCABULARY_FILE = "vocab.txt"
