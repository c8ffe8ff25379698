"""Observes the training in a process of `bertbench measure`, without a change to its script.

Python imports this module at its start because `bertbench measure` puts its folder on PYTHONPATH. Every Python process
of the command pays for that, so nothing else is loaded until torch is.
"""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Optional

VARIABLE = "BERTBENCH_MEASURE"
"""Environment variable: the settings of `Recorder` as JSON."""
NOTES = "hook"
"""Folder in the trial's folder: a file for each thing that was seen, `second-PID` for a process left out."""

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib would have to be imported

# Module of torch or a framework: our module and its function that patch it once it is imported.
PATCHES = {
    "torch.optim.optimizer": ("watch", "optimizers"),
    "torch.utils.data.dataloader": ("watch", "loaders"),
    "torch.amp.grad_scaler": ("watch", "scaler"),
    "torch.autograd.profiler": ("watch", "profilers"),
    "torch.autograd.profiler_legacy": ("watch", "profilers"),
    "torch.compiler": ("watch", "compiler"),
    "torch._dynamo.eval_frame": ("watch", "compiled_functions"),
    "accelerate.data_loader": ("frameworks", "accelerate"),
    "transformers.trainer": ("frameworks", "hugging_face"),
    "lightning.pytorch.trainer.trainer": ("frameworks", "lightning"),
    "pytorch_lightning.trainer.trainer": ("frameworks", "lightning"),
}
# Without it no step is seen. Without another one, only what that one tells is unknown.
_NEEDED = "torch.optim.optimizer"


def note(folder: str, name: str, text: str = "") -> None:
    """Leave a file in NOTES, for the harness; a disk that is full must not end the script."""
    try:
        notes = os.path.join(folder, NOTES)  # noqa: PTH118
        os.makedirs(notes, exist_ok=True)  # noqa: PTH103
        with open(os.path.join(notes, name), "a", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            file.write(text)
    except OSError:
        pass


def load(name: str) -> Any:
    """Return a module of the folder above, by its path."""
    full = f"bertbench_hook_{name}"
    if full not in sys.modules:
        path = os.path.join(os.path.dirname(_HERE), f"{name}.py")  # noqa: PTH118, PTH120
        spec = importlib.util.spec_from_file_location(full, path)
        assert spec is not None and spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


class Hook:
    """What this process has of the measurement: its settings and, once torch is imported, its recorder.

    Args:
        settings: those of `Recorder`.
    """

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._recorder: Any = None

    def note(self, name: str, text: str = "") -> None:
        """Leave a note."""
        note(str(self._settings["folder"]), name, text)

    @property
    def recorder(self) -> Any:
        """The recorder of this process."""
        if self._recorder is None:
            self._recorder = load("recorder").Recorder(self._settings, self.note, load)
            os.register_at_fork(after_in_child=self._recorder.forked)
        return self._recorder

    def patch(self, module: Any) -> None:
        """Patch a module of PATCHES; an error never reaches the script."""
        place, function = PATCHES[module.__name__]
        try:
            getattr(load(place), function)(self.recorder, module)
        except Exception as error:
            kind = "problem" if module.__name__ == _NEEDED else "unseen"
            self.note(kind, f"{module.__name__} cannot be observed ({type(error).__name__}: {error})\n")


class _Loader:
    """Loads a module as `inner` does, then patches it."""

    def __init__(self, inner: Any, hook: Hook) -> None:
        self._inner, self._hook = inner, hook

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:  # noqa: UP045  an old Python may run this
        """Return what `inner` creates."""
        found: Optional[ModuleType] = self._inner.create_module(spec)  # noqa: UP045
        return found

    def exec_module(self, module: Any) -> None:
        """Run the module, then the patch."""
        module.__loader__ = module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._hook.patch(module)


class _Finder:
    """Finds the modules of PATCHES and has them patched once they are loaded."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:  # noqa: UP045
        """Return the spec of a module that is to be patched; None for every other one."""
        spec = PathFinder.find_spec(name, path) if name in PATCHES else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._hook)  # type: ignore[assignment]
        return spec


def install(settings: Any) -> Hook:
    """Observe what this process imports from now on."""
    hook = Hook(settings)
    hook.note("python")
    sys.meta_path.insert(0, _Finder(hook))
    return hook


def _run_next() -> None:
    others = [path for path in sys.path if os.path.abspath(path) != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    if VARIABLE in os.environ:
        import json

        install(json.loads(os.environ[VARIABLE]))
    _run_next()
