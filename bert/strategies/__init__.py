"""The parallel strategies, by name. An entry is "module:class"; `common.registry.load` imports it when asked for."""

# Environment variable: seconds after which a rank gives up waiting for the others.
JOIN_TIMEOUT_VARIABLE = "BERTBENCH_JOIN_TIMEOUT_SECONDS"

STRATEGIES = {
    "single": "bert.strategies.single:SingleStrategy",
    "ddp": "bert.strategies.ddp:DdpStrategy",
}
