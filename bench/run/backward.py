"""When each gradient is ready: passes after the measured steps, a clock at every parameter, no communication."""

import time
from typing import Any

import torch

from bench.run.clock import Stopwatch, stopwatch
from bert.train.loop import Training
from records.trial import Trial

# Passes until so much time has gone by, so that the smallest models are not measured by one and the largest not often.
_ENOUGH_SECONDS = 1.0
_MOST_PASSES = 5
# Where gradients are whole on every rank; other strategies hand them on in parts of their own.
_WHOLE_GRADIENTS = ("single", "ddp")


def backward_of(training: Training, trial: Trial) -> dict[str, Any] | None:
    """Return what `backward_timeline` does of a trial it can say something of, else None.

    A compiled model hands all gradients over at its end, and hooks would have it compiled anew.
    """
    compiled = any(getattr(part, "_compiled_call_impl", None) is not None for part in training.model.modules())
    if trial.kind != "throughput" or trial.strategy not in _WHOLE_GRADIENTS or compiled:
        return None
    return backward_timeline(training)


def backward_timeline(training: Training) -> dict[str, Any]:
    """Return when the backward pass of a micro-step hands over each gradient, in the order DDP puts them into buckets.

    Nothing is reduced and no update is made; gradients are cleared. Medians over the passes.

    Returns:
        bytes (of each gradient, the last registered parameter first: the order of DistributedDataParallel's buckets),
        ready_ms (since the beginning of the backward pass, as long a list), backward_ms (the whole pass), passes.
    """
    watch = stopwatch(training.strategy.device.type)
    parameters = [p for p in reversed(list(training.model.parameters())) if p.requires_grad]
    began = time.perf_counter()
    passes: list[tuple[list[float], float]] = []
    while len(passes) < _MOST_PASSES and (not passes or time.perf_counter() - began < _ENOUGH_SECONDS):
        passes.append(_one_pass(training, parameters, watch))
    ready = torch.tensor([times for times, _ in passes], dtype=torch.float64).median(dim=0).values
    whole = torch.tensor([end for _, end in passes], dtype=torch.float64).median()
    return {
        "bytes": [parameter.numel() * parameter.element_size() for parameter in parameters],
        "ready_ms": [round(value, 4) for value in ready.tolist()],
        "backward_ms": round(float(whole), 4),
        "passes": len(passes),
    }


def _one_pass(training: Training, parameters: list[torch.nn.Parameter], watch: Stopwatch) -> tuple[list[float], float]:
    """Ready times in ms of the parameters in their order, and of the end."""
    marks: dict[int, Any] = {}
    hooks = [
        # A parameter that is used twice is ready when the last of its gradients has been added: the later mark stays.
        parameter.register_post_accumulate_grad_hook(lambda _, place=place: marks.__setitem__(place, watch.mark()))
        for place, parameter in enumerate(parameters)
    ]
    strategy, precision = training.strategy, training.precision
    batch = next(training.batches).to(strategy.device)
    try:
        with strategy.accumulate(last=False):
            with precision.autocast():
                loss = training.compute_loss(training.model, batch)
            begin = watch.mark()
            strategy.backward(loss, precision)
            end = watch.mark()
        watch.synchronize()
    finally:
        for hook in hooks:
            hook.remove()
        training.optimizer.zero_grad(set_to_none=True)
    whole = watch.elapsed_ms(begin, end)
    # What gets no gradient in this batch holds its bucket until the end.
    return [watch.elapsed_ms(begin, marks[p]) if p in marks else whole for p in range(len(parameters))], whole
