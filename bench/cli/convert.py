"""`bertbench convert SRC DST`: convert checkpoints of other frameworks to Hugging Face's format or ours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.cli.options import Printed
from bench.cli.result import Result
from common.flags import Positional


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions(Printed):
    """Convert the weights of a checkpoint and write them to a new folder.

    SRC is a folder, a training run (its newest checkpoint), a file of weights (safetensors or PyTorch), or the prefix
    of a TensorFlow checkpoint: bert_model.ckpt for bert_model.ckpt.index and .data-* files.

    Examples:
        bertbench convert uncased_L-12_H-768_A-12/bert_model.ckpt bert-base  # from TensorFlow
        bertbench convert runs/train exported --to hugging-face
    """

    src: Positional[Path]
    """Checkpoint to read."""
    dst: Positional[Path]
    """Folder to create."""
    to: Literal["hugging-face", "bertbench"] = "hugging-face"
    """Format of the new folder."""
    config: Path | None = None
    """Model configuration file; default config.json or bert_config.json beside SRC."""
    vocab: Path | None = None
    """Vocabulary to copy; default vocab.txt beside SRC."""


OPTIONS = {"convert SRC DST": ConvertOptions}


def run(options: ConvertOptions) -> Result:
    """Convert a checkpoint and report which weights were converted."""
    from analysis.render.tables import Facts
    from bert.checkpoints.conversion import convert
    from bert.tasks.commands import some_of

    done = convert(options.src, options.dst, target=options.to, config_file=options.config, vocab_file=options.vocab)
    config = done.config
    shape = f"{config.num_layers} layers, hidden size {config.hidden_size}, {config.vocab_size:,} word pieces"
    facts = [
        ("source", f"{done.source} ({done.source_format})"),
        ("model", f"{done.architecture}: {shape}"),
        ("tensors read", f"{done.tensors_read:,}"),
        ("converted", f"{done.converted:,}"),
        ("missing", f"{len(done.missing):,} {some_of(done.missing)}".rstrip()),
        ("unexpected", f"{len(done.unexpected):,} {some_of(done.unexpected)}".rstrip()),
        ("skipped", f"{len(done.skipped):,} that are not weights (optimizer, schedule)"),
        ("parameters", f"{done.parameters:,}"),
        ("vocabulary", str(done.vocab) if done.vocab else "none"),
        ("folder", f"{done.destination} ({done.target})"),
    ]
    return Result(document=done.to_json(), blocks=[Facts(facts)], notes=done.notes)
