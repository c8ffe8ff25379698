"""What a trial that joined the world of `bertbench launch` can know of that launch's end."""

import os
import re
from pathlib import Path

from bench.cluster import STOPPING_VARIABLE

# What a rank meets when another one has ended, as gloo, NCCL and the store of torch.distributed say it.
_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|broken pipe|gloo/transport|remote process exited|recvvalue", re.I
)


def launch_failure() -> str:
    """Return why the launch ends its processes; nothing while it goes on, was asked to stop, or where there is none."""
    path = os.environ.get(STOPPING_VARIABLE)
    try:
        return Path(path).read_text(encoding="utf-8").strip() if path else ""
    except OSError:
        return ""


def lost_peer(reason: str) -> bool:
    """Whether a rank that failed for this reason only lost another one, which had ended before."""
    return bool(_LOST_PEER.search(reason))
