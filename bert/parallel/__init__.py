"""The parallel strategies, by name. An entry is "module:class"; `common.registry.load` imports it when asked for."""

# Environment variable: seconds after which a rank gives up waiting for the others.
JOIN_TIMEOUT_VARIABLE = "BERTBENCH_JOIN_TIMEOUT_SECONDS"

STRATEGIES = {
    "single": "bert.parallel.single:SingleStrategy",
    "ddp": "bert.parallel.ddp:DdpStrategy",
    "dp": "bert.parallel.dp:DpStrategy",
    "fsdp": "bert.parallel.fsdp:FsdpStrategy",
    "deepspeed": "bert.parallel.deepspeed:DeepSpeedStrategy",
    "horovod": "bert.parallel.horovod:HorovodStrategy",
}

# Those whose one process drives all devices of the node; of the others each device has a process of its own.
ONE_PROCESS = frozenset({"dp"})


def devices_per_rank(strategy: str, world_size: int) -> int:
    """Devices that each process of a strategy drives where there are `world_size` devices in all."""
    return world_size if strategy in ONE_PROCESS else 1
