"""A training script with Lightning's Trainer; `bertbench measure` runs it unchanged.

python script_lightning.py [--steps 20] [--threads 1] [--clock FILE]
"""

import argparse
import json
import time
from pathlib import Path

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--clock", default="")
args = parser.parse_args()


class Encoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(64, 2, 256, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def training_step(self, batch, number):
        return self.encoder(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Clock(L.Callback):
    """The script's own clock: the time after each batch that ends a step."""

    def __init__(self):
        self.ends, self.steps = [], 0

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            self.ends.append(time.perf_counter())


if args.threads:
    torch.set_num_threads(args.threads)
L.seed_everything(0)
clock = Clock()
trainer = L.Trainer(
    max_steps=args.steps,
    accumulate_grad_batches=args.accumulate,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[clock],
)
data = TensorDataset(torch.randn(args.steps * args.batch * args.accumulate, 32, 64))
trainer.fit(Encoder(), DataLoader(data, batch_size=args.batch))
if args.clock:
    Path(args.clock).write_text(json.dumps(clock.ends))
