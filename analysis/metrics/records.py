"""Published training throughput of single devices, each with its source; others have no record.

Only figures whose page was read are listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One published figure."""

    device: str
    """Part of the device's name, as its driver reports it."""
    seq_len: int
    samples_per_second: float
    """Sequences per second of one device."""
    conditions: str
    source: str


_V100 = "github.com/NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md at 23a6382c"
_HOW = "BERT-large pretraining with LAMB, fp16 mixed precision, sequences of {}, batch {} on 1 GPU, PyTorch 19.07"
_A100 = "github.com/NVIDIA/DeepLearningExamples, PaddlePaddle/LanguageModeling/BERT/README.md, DGX A100 80GB"
_HOW_A100 = "BERT-large pretraining with LAMB, mixed precision, sequences of {}, 1 GPU, PaddlePaddle 22.12"

RECORDS = (
    Record("A100-SXM4-80GB", 128, 694.0, _HOW_A100.format(128), _A100),
    Record("A100-SXM4-80GB", 512, 264.0, _HOW_A100.format(512), _A100),
    Record("V100-SXM2-32GB", 128, 171.52, _HOW.format(128, 64), _V100),
    Record("V100-SXM2-32GB", 512, 30.08, _HOW.format(512, 8), _V100),
)


def published(device_name: str, row: Mapping[str, Any]) -> Record | None:
    """Return the published figure for a device and workload (pretraining of BERT-large in a 16-bit type); None where
    there is none.

    Args:
        device_name: of the driver.
        row: a trial's fields.
    """
    if row.get("task") != "pretrain" or row.get("preset") != "large" or row.get("precision") not in ("bf16", "fp16"):
        return None
    return next((one for one in RECORDS if one.device in device_name and one.seq_len == row.get("seq_len")), None)
