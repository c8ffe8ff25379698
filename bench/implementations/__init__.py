"""Whose code trains, by name. An entry is "module:class"; `common.registry.load` imports it when it is asked for."""

OURS = "bertbench"

IMPLEMENTATIONS = {
    OURS: "bench.implementations.ours:BertbenchImplementation",
    "hf": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-trainer": "bench.implementations.hf_trainer:TrainerImplementation",
    "hf-compiled": "bench.implementations.hugging_face:CompiledHuggingFaceImplementation",
    "torch-encoder": "bench.implementations.torch_encoder:TorchEncoderImplementation",
}

TRAINER_STRATEGIES = ("single", "ddp")
"""The strategies that the wrapping of Hugging Face's Trainer comes to, here."""

# Those that make training runs, to their last update, with evaluations; each as bert.train.run.run_training.
TRAININGS = {
    OURS: "bert.train.run:run_training",
    "hf-trainer": "bench.implementations.hf_trainer_run:run_training",
}
