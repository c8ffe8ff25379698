"""Whose code trains, by name. An entry is "module:class"; `common.registry.load` imports it when it is asked for."""

IMPLEMENTATIONS = {
    "bertbench": "bench.implementations.ours:BertbenchImplementation",
    "hf": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-compiled": "bench.implementations.hugging_face:CompiledHuggingFaceImplementation",
}
