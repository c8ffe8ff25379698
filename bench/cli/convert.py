"""`bertbench convert SRC DST`: checkpoints of TensorFlow, Hugging Face and NVIDIA, into Hugging Face's form or ours."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bench.cli.options import parse
from common.redact import terminal_text

if TYPE_CHECKING:
    from bert.checkpoints.conversion import Conversion

_MOST_NAMES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """Write the weights of a checkpoint into a new folder.

    SRC is a folder, a training run (its newest checkpoint), a file of weights (safetensors or PyTorch), or the prefix
    of a TensorFlow checkpoint: bert_model.ckpt for bert_model.ckpt.index and .data-* files.
    """

    src: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SRC")]
    """Checkpoint to read."""
    dst: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DST")]
    """Folder to make."""
    to: Literal["hugging-face", "bertbench"] = "hugging-face"
    """Form of the new folder."""
    config: Path | None = None
    """Shape of the model, where no config.json or bert_config.json is beside SRC."""
    vocab: Path | None = None
    """Vocabulary to copy, where no vocab.txt is beside SRC."""
    allow_missing: bool = False
    """Convert an encoder that lacks weights, too; they are listed and not written."""
    json: bool = False
    """Print the summary as JSON."""


OPTIONS = {"convert SRC DST": ConvertOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when the folder is written."""
    options = parse(ConvertOptions, argv, "bertbench convert")
    from bert.checkpoints.conversion import convert

    done = convert(
        options.src,
        options.dst,
        target=options.to,
        config_file=options.config,
        vocab_file=options.vocab,
        allow_missing=options.allow_missing,
    )
    if options.json:
        print(json.dumps(done.to_json(), indent=2))
        return 0
    _show(done)
    for note in done.notes:
        print(f"note: {terminal_text(note)}", file=sys.stderr)
    return 0


def _show(done: "Conversion") -> None:
    config = done.config
    shape = f"{config.num_layers} layers, hidden size {config.hidden_size}, {config.vocab_size:,} word pieces"
    for name, value in (
        ("source", f"{done.source} ({done.source_format})"),
        ("model", f"{done.architecture}: {shape}"),
        ("tensors read", f"{done.tensors_read:,}"),
        ("converted", f"{done.converted:,}"),
        ("missing", f"{len(done.missing):,}"),
        ("unexpected", f"{len(done.unexpected):,}"),
        ("skipped", f"{len(done.skipped):,} that are no weights (optimizer, schedule)"),
        ("parameters", f"{done.parameters:,}"),
        ("vocabulary", str(done.vocab) if done.vocab else "none"),
        ("folder", f"{done.destination} ({done.target})"),
    ):
        print(f"{name:<13} {value}")
    for title, names in (("missing", done.missing), ("unexpected", done.unexpected)):
        if names:
            print(f"\n{title}:")
            for name in names[:_MOST_NAMES]:
                print(f"  {name}")
            if len(names) > _MOST_NAMES:
                print(f"  ... and {len(names) - _MOST_NAMES} more (--json lists all)")
