"""The tasks, by name. An entry is "module:class"; `common.registry.load` imports it when it is asked for."""

TASKS = {
    "pretrain": "bert.tasks.pretrain:PretrainTask",
}
