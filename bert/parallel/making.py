"""From the name and options of a strategy to the strategy."""

from bert.parallel import STRATEGIES
from bert.parallel.base import Strategy
from bert.parallel.options import options_text, read_options
from common.registry import load


def make_strategy(name: str, options: str = "") -> Strategy:
    """Return a strategy that is not set up yet; `options` is what bert.parallel.options.options_text gave.

    Raises:
        UsageError: no such strategy, or an option it does not have.
        InputError: `options` is damaged.
    """
    found = read_options(options)
    options_text(name, found)
    made: Strategy = load(STRATEGIES, name, "strategy")(found)
    return made
