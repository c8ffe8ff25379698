"""Small training scripts of the structures that public programs have, each with a clock and counts of its own.

    bertbench measure -- python benchmarks/scripts/structures.py OUT.json

Every function of SCRIPTS is a script. It runs in a fork of this process, so that PyTorch is imported once, as a rank of
its own, so that its steps are steps-<its place in SCRIPTS>.csv. OUT.json has, by name, when its steps ended and what
they counted: tests/slow/test_scripts_beside.py compares.
"""

import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

WIDTH, LENGTH = 16, 12


class Clock:
    """What a script knows of its steps: when each ended, its samples and its tokens without padding."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.samples: list[int | None] = []
        self.tokens: list[int | None] = []

    def end(self, samples: int | None, tokens: int | None = None) -> None:
        self.ends.append(time.perf_counter())
        self.samples.append(samples)
        self.tokens.append(tokens)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def rows(count: int = 100) -> TensorDataset:
    return TensorDataset(torch.randn(count, WIDTH), torch.randn(count, 1))


class Texts(Dataset):
    """Word pieces of 3 to LENGTH tokens, padded."""

    def __init__(self, count: int = 100, prefix: str = "") -> None:
        self.count, self.prefix = count, prefix

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        real = 3 + place % (LENGTH - 3)
        mask = torch.tensor([1] * real + [0] * (LENGTH - real))
        return {f"{self.prefix}input_ids": mask * 7, f"{self.prefix}attention_mask": mask}


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """A step of some milliseconds."""
    time.sleep(0.004)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()


def tuples(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(2):
        for x, y in DataLoader(rows(), batch_size=4, shuffle=True):
            train(net, optimizer, x, y)
            clock.end(len(x))


def dictionaries(clock: Clock, prefixes: tuple[str, ...] = ("",)) -> None:
    table = torch.nn.Embedding(10, 1)
    optimizer = torch.optim.AdamW(table.parameters())
    for batch in DataLoader(Pairs(prefixes), batch_size=4):
        time.sleep(0.004)
        loss = sum(table(batch[f"{prefix}input_ids"]).mean() for prefix in prefixes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tokens = sum(int(batch[f"{prefix}attention_mask"].sum()) for prefix in prefixes)
        clock.end(len(batch[f"{prefixes[0]}input_ids"]), tokens)


class Pairs(Texts):
    def __init__(self, prefixes: tuple[str, ...]) -> None:
        super().__init__()
        self.prefixes = prefixes

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {name: value for prefix in self.prefixes for name, value in Texts(prefix=prefix)[place].items()}


def pairs_of_texts(clock: Clock) -> None:
    dictionaries(clock, ("query_", "passage_"))


@dataclasses.dataclass
class Fields:
    input_ids: torch.Tensor
    attention_mask: torch.Tensor


def data_classes(clock: Clock) -> None:
    table = torch.nn.Embedding(10, 1)
    optimizer = torch.optim.AdamW(table.parameters())

    def collate(texts: list[dict[str, torch.Tensor]]) -> Fields:
        return Fields(**{name: torch.stack([one[name] for one in texts]) for name in texts[0]})

    for batch in DataLoader(Texts(), batch_size=4, collate_fn=collate):
        time.sleep(0.004)
        table(batch.input_ids).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.end(len(batch.input_ids), int(batch.attention_mask.sum()))


def two_loaders(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    held_out = DataLoader(rows(9), batch_size=3)
    for _ in range(2):
        for x, y in DataLoader(rows(), batch_size=4):
            train(net, optimizer, x, y)
            clock.end(len(x))
        with torch.no_grad():
            for x, _ in held_out:
                net(x)


def accumulation_over_an_epochs_end(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    passes = samples = 0
    loader = DataLoader(rows(44), batch_size=4)  # 11 batches an epoch, 3 a step
    for _ in range(6):
        for x, y in loader:
            time.sleep(0.002)
            torch.nn.functional.mse_loss(net(x), y).backward()
            passes, samples = passes + 1, samples + len(x)
            if passes % 3 == 0:
                optimizer.step()
                clock.end(samples)
                optimizer.zero_grad()
                samples = 0


def two_optimizers(clock: Clock) -> None:
    judge, maker = model(), torch.nn.Linear(2, WIDTH)
    of_judge, of_maker = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (judge, maker))
    for x, _ in DataLoader(rows(), batch_size=4):
        time.sleep(0.004)
        made = maker(torch.randn(len(x), 2))
        (judge(made.detach()).mean() - judge(x).mean()).backward()
        of_judge.step()
        clock.end(len(x))
        of_judge.zero_grad()
        (-judge(made).mean()).backward()
        of_maker.step()
        of_maker.zero_grad()


def lbfgs(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    for x, y in DataLoader(rows(), batch_size=4):

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            time.sleep(0.002)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        clock.end(len(x))


def amp(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for number, (x, y) in enumerate(DataLoader(rows(), batch_size=4)):
        time.sleep(0.004)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(net(x), y) * (float("inf") if number == 5 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        clock.end(len(x))
        scaler.update()
        optimizer.zero_grad()


def averaged_weights(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    averaged = torch.optim.swa_utils.AveragedModel(net)
    for x, y in DataLoader(rows(), batch_size=4):
        train(net, optimizer, x, y)
        clock.end(len(x))
        averaged.update_parameters(net)


def evaluation_of_the_training_set(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = DataLoader(rows(), batch_size=4)
    for _ in range(2):
        for number, (x, y) in enumerate(loader):
            train(net, optimizer, x, y)
            clock.end(len(x))
            if number == 6:
                with torch.no_grad():
                    for other, _ in loader:
                        net(other)


def folds_in_turn(clock: Clock) -> None:
    for _ in range(3):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for x, y in DataLoader(rows(40), batch_size=4):
            train(net, optimizer, x, y)
            clock.end(len(x))
        for x, _ in DataLoader(rows(8), batch_size=4):
            net(x)


def compiled(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.01))
    update = torch.compile(optimizer.step, backend="eager")
    for x, y in DataLoader(rows(), batch_size=4):
        time.sleep(0.004)
        torch.nn.functional.mse_loss(net(x), y).backward()
        update()
        clock.end(len(x))
        optimizer.zero_grad(set_to_none=False)


def own_profiler(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=2, warmup=1, active=2)) as profiler:
        for x, y in DataLoader(rows(), batch_size=4):
            train(net, optimizer, x, y)
            clock.end(len(x))
            profiler.step()


def sys_exit(clock: Clock) -> None:
    tuples(clock)
    sys.exit(0)


class Stream(IterableDataset):
    def __iter__(self):  # type: ignore[no-untyped-def]
        for _ in range(90):
            yield torch.randn(WIDTH), torch.randn(1)


def iterable(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in DataLoader(Stream(), batch_size=4):
        train(net, optimizer, x, y)
        clock.end(len(x))


def restarting_workers(clock: Clock, persistent: bool = False) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = DataLoader(rows(20), batch_size=4, num_workers=1, persistent_workers=persistent)
    for _ in range(3):
        for x, y in loader:
            train(net, optimizer, x, y)
            clock.end(len(x))


def persistent_workers(clock: Clock) -> None:
    restarting_workers(clock, persistent=True)


def no_loader(clock: Clock) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = rows().tensors
    for _ in range(30):
        train(net, optimizer, x, y)
        clock.end(None)


def updates_by_hand(clock: Clock) -> None:
    net = model()
    for _ in range(2):
        for x, y in DataLoader(rows(), batch_size=4):
            time.sleep(0.004)
            torch.nn.functional.mse_loss(net(x), y).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
            clock.end(len(x))


def accelerate(clock: Clock) -> None:
    from accelerate import Accelerator

    place = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")}  # it would wait for the others
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    os.environ |= place
    net = model()
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters()), DataLoader(rows(), batch_size=4)
    )
    samples = 0
    for x, y in loader:
        with accelerator.accumulate(net):
            time.sleep(0.002)
            samples += len(x)
            accelerator.backward(torch.nn.functional.mse_loss(net(x), y))
            optimizer.step()
            if accelerator.sync_gradients:
                clock.end(samples)
                samples = 0
            optimizer.zero_grad()


SCRIPTS: list[Callable[[Clock], None]] = [
    tuples, dictionaries, pairs_of_texts, data_classes, two_loaders, accumulation_over_an_epochs_end, two_optimizers,
    lbfgs, amp, averaged_weights, evaluation_of_the_training_set, folds_in_turn, compiled, own_profiler, sys_exit,
    iterable, restarting_workers, persistent_workers, no_loader, updates_by_hand, accelerate,
]  # fmt: skip


def run(place: int, script: Callable[[Clock], None], out: Path) -> None:
    """Run a script in this process, a fork, and write what it knows."""
    os.environ |= {"RANK": str(place), "WORLD_SIZE": str(len(SCRIPTS))}
    torch.set_num_threads(1)
    clock, code = Clock(), 1
    try:
        script(clock)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    out.write_text(json.dumps(vars(clock)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    out, failed = Path(sys.argv[1]), 0
    known = {}
    for place, script in enumerate(SCRIPTS):
        own = out.with_name(f"{script.__name__}.json")
        child = os.fork()
        if child == 0:
            run(place, script, own)
        failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        known[script.__name__] = json.loads(own.read_text())
    out.write_text(json.dumps(known))
    return failed


if __name__ == "__main__":
    sys.exit(main())
