"""The implementations of BERT, by name. An entry is "module:class", imported on demand; `own` loads those of users."""

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
    "hf-trainer": "bench.implementations.hf_trainer:run_training",
}
