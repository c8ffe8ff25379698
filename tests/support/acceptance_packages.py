"""What `make gpu-acceptance` asks of a Python, and what it leaves out where something is missing.

Read before anything is imported: the standard library is enough. tests/unit/bench/test_acceptance_packages.py compares
the lists with the imports of the code.
"""

import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec

NEEDED = {
    "torch": "torch", "numpy": "numpy", "msgspec": "msgspec", "psutil": "psutil", "pynvml": "nvidia-ml-py",
    "tyro": "tyro", "docstring_parser": "docstring-parser", "typeguard": "typeguard",
    "typing_extensions": "typing-extensions",
}  # fmt: skip
"""Import name -> package, of what every step needs; the last three are tyro's."""
PARTS = {
    "pandas": "pandas", "matplotlib": "matplotlib", "jinja2": "jinja2", "nvtx": "nvtx", "transformers": "transformers",
    "triton": "triton", "safetensors": "safetensors", "pytest": "pytest", "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
}  # fmt: skip
"""Import name -> package, of what single parts need; Step.needs and VARIANTS name the parts."""
TOOLS = ("ncu", "nsys")
"""Programs that a part needs."""
VARIANTS = {
    "transformers": ("hf", "hf-compiled"),
    "triton": ("hf-compiled", "unpad+compile", "bf16-weights+fp8+fused-elementwise+fused-optimizer+unpad"),
}
"""Implementations and levers that steps of throughput leave out without a package."""
ELSEWHERE = {
    "h5py": "real pretraining data", "tokenizers": "preparing data", "nanotoken": "preparing data",
    "zlib_ng": "preparing data", "mwparserfromhell": "preparing data", "blingfire": "preparing data",
    "charset_normalizer": "CSV files", "datasets": "preparing data",
    "sklearn": "scores of evaluations", "scipy": "scores of evaluations", "tensorboard": "loggers of trainings",
    "mlflow": "loggers of trainings", "wandb": "loggers of trainings", "yaml": "jobs for Kubernetes",
    "rich": "tables in a terminal, not --json",
    "accelerate": "hf-trainer", "deepspeed": "the strategy deepspeed", "horovod": "the strategy horovod",
    "optuna": "tune", "sqlalchemy": "tune", "markupsafe": "comes with jinja2",
    "shtab": "shell completion", "huggingface_hub": "--model ID, which downloads",
    "vl_convert": "charts of reports, which show pictures without it",
    "google_crc32c": "checkpoints of TensorFlow", "cramjam": "checkpoints of TensorFlow",
}  # fmt: skip
"""Packages that no part imports, and what needs them."""
_REMEDY = "or name a Python that has them: make gpu-acceptance OUT=<folder> PYTHON=<python>"
_WITHOUT_A_NETWORK = (
    "without a network bring their wheels: pip download --only-binary :all: --python-version {version} -d wheels "
    "{packages}, then pip install --no-index --find-links wheels {packages}"
)


def missing() -> list[str]:
    """Return the import names and programs that are not there, those that every step needs first."""
    packages = [name for name in (*NEEDED, *PARTS) if not _there(name)]
    return [*packages, *(name for name in TOOLS if shutil.which(name) is None)]


def _there(name: str) -> bool:
    """Whether a package is found; one whose finder raises (a broken installation) could not be imported either."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def refusal(python: str, lacking: Iterable[str], left_out: Mapping[str, Iterable[str]]) -> str:
    """Return one line that names everything that is missing; "" where nothing is that every step needs.

    Args:
        python: the interpreter.
        lacking: of missing().
        left_out: by name, the parts that go without.
    """
    lacking = list(lacking)
    needed = [name for name in lacking if name in NEEDED]
    if not needed:
        return ""
    parts = [name for name in lacking if name in PARTS]
    more = f", and {_without(parts, left_out)}" if parts else ""
    packages = " ".join((NEEDED | PARTS)[name] for name in (*needed, *parts))
    version = ".".join(map(str, sys.version_info[:2]))
    offline = _WITHOUT_A_NETWORK.format(packages=packages, version=version)
    return (
        f"gpu-acceptance: {python} has no {', '.join(needed)}, which every step needs{more}: pip install {packages} "
        f"(a torch for CUDA), {_REMEDY}; {offline}\n"
    )


def notice(lacking: Iterable[str], left_out: Mapping[str, Iterable[str]]) -> str:
    """Return one line on what is left out; "" where nothing is."""
    lacking = list(lacking)
    said = _without(lacking, left_out)
    packages = " ".join(PARTS[name] for name in lacking if name in PARTS and left_out.get(name))
    install = f"; pip install {packages}" if packages else ""
    return f"gpu-acceptance continues without {said}{install}\n" if said else ""


def _without(lacking: Iterable[str], left_out: Mapping[str, Iterable[str]]) -> str:
    return ", ".join(f"{name} ({', '.join(left_out[name])})" for name in lacking if left_out.get(name))
