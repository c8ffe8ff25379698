"""The implementations of BERT, by name. An entry is "module:class", imported on demand; `own` loads those of users."""

import importlib.util

from common.errors import MissingToolError

OURS = "bertbench"

IMPLEMENTATIONS = {
    OURS: "bench.implementations.ours:BertbenchImplementation",
    "hf": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-trainer": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-unpadded": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-compiled": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "torch-encoder": "bench.implementations.torch_encoder:TorchEncoderImplementation",
}

TRAINER_STRATEGIES = ("single", "ddp")
"""The strategies that Hugging Face's Trainer supports here."""

# Implementations for complete training runs with evaluations; each takes a bert.train.base_run.RunRequest.
TRAININGS = {
    OURS: "bert.train.run:run_training",
    "hf-trainer": "bench.implementations.hf_trainer_run:run_training",
}


def check_packages(what: str, *packages: str) -> None:
    """Raise MissingToolError if a package that `what` needs is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingToolError(
            "package-missing", f"{what} needs the package {' and '.join(missing)}: pip install 'bertbench[hf]'"
        )
