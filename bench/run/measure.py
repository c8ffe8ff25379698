"""What a rank measures: whole steps of an implementation, their input alone, or the parts that they are made of.

The clock of every step writes a row; a window decides, alike on every rank, when there are enough.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.implementations import OURS, make_implementation
from bench.implementations.base import Built
from bench.profilers import load_profiler
from bench.run.clock import StepClock, Window
from bench.run.peak import matmul_peak, peak_dtype
from bench.run.resources import reset_used_memory, used_memory
from bench.run.stopwatch import Stopwatch, stopwatch
from bert.data.batch import Batch
from bert.model.config import model_config
from bert.observer import Observer, Observers, StepResult
from bert.optim.arena import segments_of
from bert.optim.precision import Precision
from bert.parallel.base import StepPlan, Strategy
from bert.tasks import make_task
from bert.train.feed import Adapt, Feed, data_spec
from bert.train.loop import Training, train
from records.files import RowWriter
from records.run import TrialDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial

_REASON = "input only: batches were drawn, nothing was trained"
# Columns of a result that need a model.
_OF_TRAINING = (
    *("mfu", "model_flops_per_second", "measured_peak_flops", "peak_memory_bytes", "forward_ms", "backward_ms"),
    *("communication_ms", "optimizer_ms", "rank_skew", "cost_per_million_samples"),
)
# Passes until so much time has gone by: small models get several.
_ENOUGH_SECONDS = 1.0
_MOST_PASSES = 5
# Where gradients are whole on every rank; other strategies hand them on in parts of their own.
_WHOLE_GRADIENTS = ("single", "ddp")


def measure_steps(directory: TrialDirectory, trial: Trial, strategy: Strategy) -> dict[str, Any]:
    """Measure a trial that trains or draws batches, write the steps of this rank, and return its record."""
    with RowWriter(directory.steps_csv(strategy.rank), STEP_COLUMNS) as writer:
        measurement = _Measurement(directory, trial, strategy, writer)
        kinds = {"input": measurement.draw, "components": measurement.components}
        return kinds.get(trial.kind, measurement.train)()


class _Measurement:
    """What is measured, with the clock and the window of its steps. Its methods return the rank's record."""

    def __init__(self, directory: TrialDirectory, trial: Trial, strategy: Strategy, writer: RowWriter) -> None:
        self.directory, self.trial, self.strategy = directory, trial, strategy
        self.task = make_task(trial.task, trial.task_options)
        implementation = make_implementation(trial.implementation)
        implementation.check(trial)
        self.given: Any = None
        if trial.model:
            from bench.implementations.hugging_face import built, traced_model

            self.given = given = traced_model(trial, self.task, trial.implementation)
            self.step = None
            self.adapt: Adapt | None = given.adapt
            self.build: Callable[[], Built] = lambda: built(trial, given)
        else:
            config = model_config(trial)
            self.step, self.adapt = self.task.step(config), implementation.adapter(trial)
            self.build = lambda: implementation.build(trial, self.task, config, self.observer)
        input_only = trial.kind == "input"
        unknown = dict.fromkeys(("model_flops", "loss", "learning_rate")) if input_only else {}

        def on_row(row: dict[str, Any]) -> None:
            writer.write({**row, **unknown})
            self.window.record(row["step_time_ms"])

        # Batches that stay on the host are timed there.
        self.clock = StepClock("cpu" if input_only else trial.device, (self.step or self.given).model_flops, on_row)
        self.window = Window(trial, self.clock.flush, self.strategy.maximum)
        # The clock comes last: it starts after the profiler has and stops before the profiler writes.
        self.observer: Observer = self.clock
        if trial.profiler is not None:
            profiler = load_profiler(trial.profiler, trial.profiler_options)
            of_profiler = profiler.observer(trial, directory.profile, strategy.rank)
            self.observer = Observers([of_profiler, self.clock])

    def train(self) -> dict[str, Any]:
        """Train between two measurements of the achievable peak."""
        built, training = self._prepared()
        strategy, device = self.strategy, self.strategy.device
        dtype, products = peak_dtype(training.model, training.precision.matmul_dtype, device)
        peak_before = matmul_peak(device, dtype)
        strategy.barrier()
        torch.manual_seed(self.trial.seed + 1 + strategy.rank)
        reset_used_memory(device)
        steps = (built.loop or train)(training, self.observer, self.window.keep_going)
        memory = used_memory(device)
        strategy.barrier()
        backward = backward_timeline(training, self.trial)
        strategy.barrier()
        peak_after = matmul_peak(device, dtype)
        peak = {"before": peak_before["flops_per_second"], "after": peak_after["flops_per_second"]}
        return {
            **memory,
            **self._stopped(steps),
            "measured_peak": {**peak, **{name: peak_after[name] for name in ("dtype", "shape")}, "products": products},
            "parameters": sum(parameter.numel() for parameter in built.model.parameters()),
            "step_lacks": built.lacks,
            **({} if self.given is None else self.given.record()),
            "backward": backward,
        }

    def components(self) -> dict[str, Any]:
        """Time the parts of a step alone, and whole steps around them."""
        from bench.floor.measure import measure_components

        step = self.step
        assert step is not None, "speed-of-light does not break down given models"
        built, training = self._prepared()
        torch.manual_seed(self.trial.seed + 1 + self.strategy.rank)
        sample = iter(self.task.batches(data_spec(self.trial, self.strategy)))
        measured = measure_components(
            self.directory, self.trial, training, built.model, self.task, step, sample, self.observer
        )
        return {**measured, "step_lacks": built.lacks}

    def draw(self) -> dict[str, Any]:
        """Draw batches and do nothing with them."""
        stream = self.task.batches(data_spec(self.trial, self.strategy))
        batches = self._feed(stream)
        self.strategy.barrier()
        steps = draw(batches, self.trial.grad_accum_steps, self.clock, self.window.keep_going)
        self.strategy.barrier()
        reading = getattr(stream, "reading", None)  # of compressed shards
        read = None if reading is None else {"samples": reading.samples, "seconds": reading.seconds}
        return {"unknown": dict.fromkeys(_OF_TRAINING, _REASON), "shards_read": read, **self._stopped(steps)}

    def _stopped(self, steps: int) -> dict[str, Any]:
        return {"steps": steps, "stopped_because": self.window.stopped_because}

    def _feed(self, stream: Any) -> Feed:
        return Feed(stream, self.strategy.device.type == "cuda", self.adapt)

    def _prepared(self) -> tuple[Built, Training]:
        trial, strategy = self.trial, self.strategy
        built = self.build()
        strategy.check_same(str(built.lacks), "what the fast step lacks")
        batches = self._feed(self.task.batches(data_spec(trial, strategy)))
        precision = Precision(trial.precision, trial.device)
        if built.loop is None:
            model = strategy.wrap(built.model, self.observer, StepPlan(train=trial))
        else:  # it wraps the model, too
            model = built.model.to(strategy.device)
        optimizer = built.make_optimizer(model)
        strategy.prepare(optimizer, precision)
        training = Training(
            model=model,
            optimizer=optimizer,
            compute_loss=built.compute_loss,
            batches=batches,
            strategy=strategy,
            precision=precision,
            grad_accum_steps=trial.grad_accum_steps,
            seed=trial.seed,
        )
        return built, training


def draw(batches: Iterator[Batch], grad_accum_steps: int, observer: Observer, keep_going: Callable[[int], bool]) -> int:
    """Draw the batches of one step after another until `keep_going(step)` says no; return the number of steps.

    The same calls in the same order as bert.train.loop.train makes, without model and device.
    """
    step = 0
    observer.run_begin()
    try:
        while keep_going(step):
            observer.step_begin(step)
            with observer.phase("data"):
                counts = next(batches).counts
                for _ in range(grad_accum_steps - 1):
                    counts = counts + next(batches).counts
            observer.step_end(step, StepResult(counts, torch.tensor(math.nan), math.nan))
            step += 1
    finally:
        observer.run_end()
    return step


def backward_timeline(training: Training, trial: Trial) -> dict[str, Any] | None:
    """Return when the backward pass of a micro-step hands over each gradient: medians over some passes.

    Nothing is reduced and no update is made; gradients are cleared. The last registered parameter is the first, as in
    what ddp reduces at once; `ends` counts the parameters up to the end of each such part. Times count from the
    beginning of the pass. None where gradients are not whole, and for a compiled model, which has them at its end.
    """
    compiled = any(getattr(part, "_compiled_call_impl", None) is not None for part in training.model.modules())
    if trial.kind != "throughput" or trial.strategy not in _WHOLE_GRADIENTS or compiled:
        return None
    watch = stopwatch(training.strategy.device.type)
    parameters = [p for p in reversed(list(training.model.parameters())) if p.requires_grad]
    began = time.perf_counter()
    passes: list[list[float]] = []
    while len(passes) < _MOST_PASSES and (not passes or time.perf_counter() - began < _ENOUGH_SECONDS):
        passes.append(_one_pass(training, parameters, watch))
    mib = None if trial.implementation == OURS else 25  # DistributedDataParallel's
    *ready, whole = torch.tensor(passes, dtype=torch.float64).median(dim=0).values.tolist()
    return {
        "bytes": [parameter.numel() * parameter.element_size() for parameter in parameters],
        "ready_ms": [round(value, 4) for value in ready],
        "backward_ms": round(whole, 4),
        "ends": [*itertools.accumulate(len(segment) for segment in segments_of(training.model, mib))],
        "passes": len(passes),
    }


def _one_pass(training: Training, parameters: list[torch.nn.Parameter], watch: Stopwatch) -> list[float]:
    """Times in ms at which the gradients of the parameters were ready, then that of the end."""
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
    # What gets no gradient in this batch holds its bucket until the end.
    return [watch.elapsed_ms(begin, marks.get(place, end)) for place in range(len(parameters) + 1)]
