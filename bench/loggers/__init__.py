"""Loggers for the scalars of a training, by name: each has one module, one line here and one test."""

LOGGERS = {
    "tensorboard": "bench.loggers.tensorboard:TensorBoard",
    "mlflow": "bench.loggers.mlflow:Mlflow",
    "wandb": "bench.loggers.wandb:Wandb",
}
