"""The tasks, by name. An entry is "module:class"; `common.registry.load` imports it when it is asked for."""

TASKS = {
    "pretrain": "bert.tasks.pretrain:PretrainTask",
    "squad": "bert.tasks.squad:SquadTask",
}

# What a plan asks of each task's data; these modules import no torch.
DATA = {
    "pretrain": "bert.tasks.pretrain_data:PretrainData",
    "squad": "bert.tasks.squad_data:SquadData",
}
