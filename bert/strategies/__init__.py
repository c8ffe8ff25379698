"""The parallel strategies, by name. An entry is "module:class"; `common.registry.load` imports it when asked for."""

STRATEGIES = {
    "single": "bert.strategies.single:SingleStrategy",
    "ddp": "bert.strategies.ddp:DdpStrategy",
}
