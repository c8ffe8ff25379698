"""Small configurations of `--model`, and trials of them."""

import json
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.sweep.trials import Sweep, expand
from records.trial import Trial

VOCAB, HIDDEN, INNER, LAYERS, LONGEST = 203, 32, 80, 2, 64
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "intermediate_size": INNER, "max_position_embeddings": LONGEST, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": SHAPE,
    "roberta": {**SHAPE, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1, "pad_token_id": 1},
    "distilbert": {
        "vocab_size": VOCAB, "dim": HIDDEN, "n_layers": LAYERS, "n_heads": 4, "hidden_dim": INNER,
        "max_position_embeddings": LONGEST,
    },
    "electra": {**SHAPE, "embedding_size": 16},
    "deberta-v2": {
        **SHAPE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
        "share_att_key": True, "type_vocab_size": 0,
    },
    "modernbert": {**SHAPE, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
}  # fmt: skip
CPU = Devices("cpu", (), 4)


def write_config(folder: Path, kind: str = "bert", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"model_type": kind, **CONFIGS.get(kind, SHAPE), **changes}
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in fields.items() if value is not None})
    )
    return folder


def trial_of(folder: Path, implementation: str = "hf", task: str = "pretrain", **changes: Any) -> Trial:
    (trial,) = expand(
        Sweep(
            task=task, model=str(folder), implementations=(implementation,), devices=(1,), seq_lens=(LONGEST,), rounds=1
        ),
        CPU,
    )
    return Trial.from_json({**trial.to_json(), **changes})
