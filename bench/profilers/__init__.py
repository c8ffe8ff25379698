"""The profilers, by name. An entry is "module:class"; `common.registry.load` imports it when it is asked for."""

PROFILERS = {
    "torch": "bench.profilers.kineto:TorchProfiler",
}
