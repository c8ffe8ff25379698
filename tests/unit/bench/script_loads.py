"""Loops that read more loaders than the one they train on; `bertbench measure` sees each as a rank of its own.

python script_loads.py
"""

import inspect
import itertools
import os
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

DATA = TensorDataset(torch.ones(20, 1))
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)


class Slow(Sampler[int]):
    """Takes 0.2 s to begin and to end."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.2)
        yield from range(20)
        time.sleep(0.2)

    def __len__(self) -> int:
        return 20


def train(rows: torch.Tensor) -> None:
    weight.grad = rows.mean(0)
    optimizer.step()


def evaluation_of_the_training_set_by_another_loader() -> None:
    for number, (rows,) in enumerate(DataLoader(DATA, 4)):
        if number % 2 == 0:
            list(DataLoader(DATA, 5))
        train(rows)
        if number % 3 == 0:
            list(DataLoader(DATA, 5))


def evaluation_of_the_training_set_by_the_same_loader() -> None:
    loader = DataLoader(DATA, 4)
    for number, (rows,) in enumerate(loader):
        if number % 2 == 0:
            list(loader)
        train(rows)


def a_batch_taken_before_each_epoch() -> None:
    loader = DataLoader(DATA, 4)
    for _ in range(2):
        next(iter(loader))
        for (rows,) in loader:
            train(rows)


def a_new_iterator_for_each_step() -> None:
    loader = DataLoader(DATA, 4)
    for _ in range(5):
        train(next(iter(loader))[0])


def a_second_loader_that_is_read_now_and_then() -> None:
    other = itertools.cycle(DataLoader(DATA, 5))
    next(other)
    for number, (rows,) in enumerate(DataLoader(DATA, 4)):
        if number % 2 == 1:
            next(other)
        train(rows)


def accumulation_over_the_end_of_an_epoch() -> None:
    loader, number = DataLoader(DATA, 4), 0
    for _ in range(2):
        for (rows,) in loader:
            number += 1
            if number % 2 == 0:
                train(rows)
        list(loader)


def accumulation_with_workers_that_persist() -> None:
    loader, number = DataLoader(DATA, 4, num_workers=2, persistent_workers=True), 0
    for _ in range(2):
        for (rows,) in loader:
            number += 1
            if number % 2 == 0:
                train(rows)


def a_loader_that_is_slow_to_begin_and_to_end() -> None:
    loader = DataLoader(DATA, 4, sampler=Slow())
    for _ in range(2):
        for (rows,) in loader:
            train(rows)


def workers_that_are_slow_to_begin() -> None:
    loader = DataLoader(DATA, 4, sampler=Slow(), num_workers=2)
    for _ in range(2):
        for (rows,) in loader:
            train(rows)


def evaluation_by_a_slow_loader() -> None:
    for number, (rows,) in enumerate(DataLoader(DATA, 4)):
        train(rows)
        if number == 2:
            list(DataLoader(DATA, 4, sampler=Slow()))


LOOPS = [made for name, made in list(globals().items()) if inspect.isfunction(made) and name != "train"]

if __name__ == "__main__":
    torch.set_num_threads(1)
    for rank, loop in enumerate(LOOPS):  # children: importing PyTorch is most of the time
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(LOOPS))}
            loop()
            sys.exit()
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{loop.__name__} failed")
