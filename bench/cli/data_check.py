"""`bertbench data check DIR`: describe prepared data and check that training accepts them."""

from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from textwrap import shorten

from analysis.render.tables import Block, Facts, Plain, texts
from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result
from common.flags import Positional


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOptions(Printed):
    """Check prepared data: header, counts, ten decoded rows. Exit code 2 if training refuses them.

    A masked token reads [shown:hidden].

    Examples:
        bertbench data check runs/pretrain-data
    """

    dir: Positional[Path]
    """Folder of HDF5 shards, or of features of SQuAD, GLUE or GAP (header and counts only)."""
    vocab: Path | None = None
    """vocab.txt to decode with; default the one beside the shards."""


OPTIONS = {"data check DIR": CheckOptions}


def run(options: CheckOptions) -> Result:
    """Check the data. Raises InputError where training refuses them."""
    from bert.data.features import SUFFIX, describe
    from bert.tasks.pretrain.shards import check_shards

    files = [options.dir] if options.dir.is_file() else sorted(options.dir.glob(f"*{SUFFIX}"))
    if files:
        headers = [describe(path) for path in files]
        facts = [Facts([(name, str(value)) for name, value in header.items()]) for header in headers]
        return Result(document={"features": headers}, blocks=facts)
    checked = check_shards(options.dir, options.vocab, show_stages())
    sizes = f"{checked.seq_len} tokens, up to {checked.max_predictions} predictions"
    header = [("folder", checked.folder), ("instances", sizes), *checked.datasets.items()]
    headings = ("split", "shards", "instances", "real tokens", "masked tokens", "random pairs")
    counts = [(one.split, *(f"{value:,}" for value in astuple(one)[1:])) for one in checked.splits]
    blocks: list[Block] = [Facts(header), texts("counts", headings, counts)]
    for one in checked.rows:
        label = "B is random" if one.is_random else "B follows A"
        blocks.append(Plain(f"{one.shard} row {one.row}, {label}: {shorten(' '.join(one.tokens), 400)}"))
    return Result(document=asdict(checked), blocks=blocks)
