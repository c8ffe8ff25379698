"""Where the scalars of a training go besides its own records, by name: one module, one line here, one test each."""

LOGGERS = {
    "tensorboard": "bench.loggers.tensorboard:TensorBoard",
    "mlflow": "bench.loggers.mlflow:Mlflow",
}
