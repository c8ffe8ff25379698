"""Observes the training in a process of `bertbench measure`, without a change to its script.

Python imports this module at its start because `bertbench measure` puts its folder on PYTHONPATH. Every Python process
of the command pays for that, so nothing else is loaded until torch is.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from typing import Any

VARIABLE = "BERTBENCH_MEASURE"
"""Environment variable: the settings of `Recorder` as JSON."""
NOTES = "hook"
"""Folder in the trial's folder: a file for each thing that was seen, `second-PID` for a process left out."""
STOP = "stop"
"""File in NOTES with which the harness asks the script to end after its step."""

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib would have to be imported

# Module that is imported, and the function of `watch` that patches it.
PATCHES = {
    "torch.autograd": "passes",
    "torch.optim.optimizer": "optimizers",
    "torch.utils.data.dataloader": "loaders",
    "torch.amp.grad_scaler": "scaler",
    "torch.autograd.profiler": "profilers",
    "torch.compiler": "compiler",
    "torch._dynamo.eval_frame": "compiled_functions",
    "accelerate.data_loader": "accelerate",
    "torch.serialization": "aside",
    "transformers.trainer": "aside",
    "lightning.pytorch.loops.evaluation_loop": "aside",
    "pytorch_lightning.loops.evaluation_loop": "aside",
}
# Without it no step is seen. Without another one, only what that one shows is unknown.
_NEEDED = "torch.optim.optimizer"


def load(name: str) -> Any:
    """Return a module of the folder above, by its path."""
    full = f"bertbench_hook_{name}"
    if full not in sys.modules:
        path = os.path.join(os.path.dirname(_HERE), f"{name}.py")  # noqa: PTH118, PTH120
        spec: Any = importlib.util.spec_from_file_location(full, path)
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


class Hook:
    """Finds the modules of PATCHES when they are imported, and patches them once they are loaded."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._recorder: Any = None
        self.note("python")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module that is to be patched; None for every other one."""
        spec: Any = PathFinder.find_spec(name, path) if name in PATCHES else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: Any) -> None:
                execute(module)
                self._patch(module)

            spec.loader.exec_module = execute_and_patch
        return spec

    def note(self, name: str, text: str = "") -> None:
        """Leave a file in NOTES, for the harness; a disk that is full must not end the script."""
        try:
            notes = os.path.join(str(self._settings["folder"]), NOTES)  # noqa: PTH118
            os.makedirs(notes, exist_ok=True)  # noqa: PTH103
            with open(os.path.join(notes, name), "a", encoding="utf-8") as file:  # noqa: PTH118, PTH123
                file.write(text)
        except OSError:
            pass

    def _patch(self, module: Any) -> None:
        """Patch a module; an error never reaches the script."""
        try:
            if self._recorder is None:
                self._recorder = load("recorder").Recorder(self._settings, self.note, load)
                os.register_at_fork(after_in_child=self._recorder.forked)
            getattr(load("watch"), PATCHES[module.__name__])(self._recorder, module)
        except Exception as error:
            kind = "problem" if module.__name__ == _NEEDED else "unseen"
            self.note(kind, f"{module.__name__} cannot be observed ({type(error).__name__}: {error})\n")


if __name__ == "sitecustomize":
    if VARIABLE in os.environ:
        import json

        sys.meta_path.insert(0, Hook(json.loads(os.environ[VARIABLE])))
    others = [path for path in sys.path if os.path.abspath(path) != _HERE]  # noqa: PTH100
    following = PathFinder.find_spec("sitecustomize", others)
    if following is not None and following.loader is not None:
        following.loader.exec_module(importlib.util.module_from_spec(following))
