"""A program for ranks: all-reduces over gloo, one every 50 ms, until its steps (argv[1]) are made."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(int(sys.argv[1])):
    total = torch.ones(1)
    dist.all_reduce(total)
    if step == 0:
        print(f"rank {dist.get_rank()} of {int(total)} steps", flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
