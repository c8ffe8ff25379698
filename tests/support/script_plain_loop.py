"""A plain training loop of a small encoder, alone or under torchrun; `bertbench measure` runs it unchanged.

python script_plain_loop.py [--steps 20] [--batch 8] [--hidden 64] [--threads 1] [--clock FILE]
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
for name, default in (("steps", 20), ("batch", 8), ("hidden", 64), ("length", 32), ("threads", 0), ("workers", 0)):
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--clock", default="")
args = parser.parse_args()

if args.threads:
    torch.set_num_threads(args.threads)
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(args.hidden, 2, 4 * args.hidden, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
rank = 0
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(args.steps * args.batch, args.length, args.hidden))
ends, processor = [], []
for (x,) in DataLoader(data, batch_size=args.batch, num_workers=args.workers):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    ends.append(time.perf_counter())
    processor.append(time.process_time())
if args.clock:
    Path(args.clock if rank == 0 else f"{args.clock}.{rank}").write_text(json.dumps([ends, processor]))
if "RANK" in os.environ:
    dist.destroy_process_group()
