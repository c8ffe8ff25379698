"""The profile of some steps of a script: one Chrome trace per rank, like those of `bertbench profile`."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
from typing import Any


class Trace:
    """Records with the PyTorch profiler of the script's own torch.

    Args:
        path: of the trace, ending in .json.gz.
        rank: of this process.
        device: of the optimizer's parameters where that is a GPU, else None.
        ranks: number of ranks.
    """

    def __init__(self, path: str, rank: int, device: Any, ranks: int) -> None:
        from torch.profiler import ProfilerActivity, profile, record_function

        self._path, self._device, self._range = path, device, record_function
        kinds = [ProfilerActivity.CPU] if device is None else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        # NCCL's kernels record the sizes of messages, gloo's spans do not: there, shapes are needed.
        self._profile: Any = profile(activities=kinds, record_shapes=ranks > 1 and device is None)
        self._profile.prepare_trace()
        self._profile.add_metadata_json("bertbench", json.dumps({"rank": rank, "host": socket.gethostname()}))
        self._profile.start_trace()
        self._step: Any = None

    def mark(self, step: int | None) -> None:
        """End the mark of the step before, if there is one, and begin that of `step`, if it is one."""
        if self._step is not None:
            self._wait()
            self._step.__exit__(None, None, None)
            self._step = None
        if step is not None:
            self._step = self._range(f"ProfilerStep#{step}")
            self._step.__enter__()

    def end(self) -> None:
        """Write the trace."""
        self.mark(None)
        self._wait()
        self._profile.stop_trace()
        plain, packed = f"{self._path}.{os.getpid()}.json", f"{self._path}.{os.getpid()}"
        try:
            self._profile.export_chrome_trace(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:  # noqa: PTH123
                shutil.copyfileobj(source, target)
            os.replace(packed, self._path)  # noqa: PTH105
        finally:
            for left in (plain, packed):
                if os.path.exists(left):  # noqa: PTH110
                    os.remove(left)  # noqa: PTH107

    def _wait(self) -> None:
        if self._device is not None:  # the mark of a step ends when its kernels do
            import torch

            torch.cuda.synchronize(self._device)
