"""Evaluating a model with all ranks: each measures its part, the parts are added up, all make the same scores of it."""

import torch

from bert.optim.precision import Precision
from bert.parallel.base import Strategy
from bert.tasks.base import Evaluation, Evaluator
from bert.train.agreement import together


def evaluate(model: torch.nn.Module, evaluator: Evaluator, strategy: Strategy, precision: Precision) -> Evaluation:
    """Measure a model; every rank has to call it.

    Nothing is drawn from random number generators; the model is left in the mode it was in.

    Args:
        model: the one that the strategy has wrapped, without what is around it.
        evaluator: of its task.
        strategy: the ranks.
        precision: what training runs in.

    Raises:
        UsageError: the model has not the heads of the task.
        InputError: the data are damaged.
    """
    with strategy.whole(model) as whole:
        before = whole.training
        whole.eval()
        try:
            with torch.inference_mode():
                own = together(strategy, lambda: evaluator.measure(whole, strategy.device, precision))
        finally:
            whole.train(before)
    total = strategy.total(own)
    return together(strategy, lambda: evaluator.score(total))
