"""Reads the imports of a tree with ast and lists what breaks the one-way rules; used by test_imports.py."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("analysis", "bench", "bert", "bertbench", "common", "records")
ALLOWED = {
    "bertbench": {"bertbench", "bench", "analysis", "records", "common"},
    "bench": {"bench", "bert", "analysis", "records", "common"},
    "bert": {"bert", "common"},
    "analysis": {"analysis", "records", "common"},
    "records": {"records", "common"},
    "common": {"common"},
}
# The order of bert's folders: each knows those before it.
BERT = ("data", "corpus", "model", "speed", "optim", "parallel", "checkpoints", "train", "tasks")
# Of analysis: what reads and computes knows nothing of what it means, and neither of how it is shown.
LAYERS = {
    "analysis.readers": ("analysis.metrics", "analysis.diagnose", "analysis.render"),
    "analysis.metrics": ("analysis.diagnose", "analysis.render"),
    "analysis.diagnose": ("analysis.render",),
    **{f"bert.{name}": tuple(f"bert.{later}" for later in BERT[place + 1 :]) for place, name in enumerate(BERT)},
}
# A training knows the registry and the protocol of tasks alone.
EXCEPT = {("bert.train", "bert.tasks"), ("bert.train", "bert.tasks.base")}
# What one package alone may use.
ALONE = {"matplotlib": "analysis.render"}
HEAVY = ("torch", "pandas", "matplotlib", "transformers", "h5py", "scipy")
PROFILERS = (
    "nvtx",
    "pynvml",
    "cProfile",
    "profile",
    "torch.profiler",
    "torch.autograd.profiler",
    "torch.cuda.nvtx",
    "torch.cuda.profiler",
)
REGISTRY_ENTRY = re.compile(r"((?:analysis|bench|bert|common|records)(?:\.\w+)+)(?::\w+)?")


@dataclass(frozen=True)
class Use:
    """One module using another."""

    target: str
    line: int
    when: str
    """"load" (runs when the module is imported), "call" (inside a function, or a registry's string) or "types"."""


class Tree:
    """The modules below a root and what each uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[str, Path] = {}
        for package in PACKAGES:
            for path in sorted([*root.glob(f"{package}.py"), *(root / package).rglob("*.py")]):
                parts = path.relative_to(root).with_suffix("").parts
                self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.uses = {name: list(self._uses(name, path)) for name, path in self.paths.items()}

    def _uses(self, name: str, path: Path) -> Iterator[Use]:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        yield from self._walk(ast.parse(path.read_text(encoding="utf-8"), str(path)).body, package, "load")

    def _walk(self, nodes: Iterable[ast.AST], package: str, when: str) -> Iterator[Use]:
        for node in nodes:
            inner = when
            if isinstance(node, ast.Import):
                yield from (Use(alias.name, node.lineno, when) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from self._from(node, package, when)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                match = REGISTRY_ENTRY.fullmatch(node.value)
                if match and (":" in node.value or match[1] in self.paths):
                    yield Use(match[1], node.lineno, "call")
            elif isinstance(node, ast.Attribute) and ast.unparse(node) in PROFILERS:
                yield Use(ast.unparse(node), node.lineno, when)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner = "call"
            elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                yield from self._walk(node.body, package, "types")
                yield from self._walk(node.orelse, package, when)
                continue
            yield from self._walk(ast.iter_child_nodes(node), package, inner)

    def _from(self, node: ast.ImportFrom, package: str, when: str) -> Iterator[Use]:
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, base] if base else parents)
        for alias in node.names:
            full = f"{base}.{alias.name}"
            is_module = full in self.paths or full in PROFILERS
            yield Use(full if is_module else base, node.lineno, when)

    def where(self, name: str, use: Use) -> str:
        """Name file and line of a use."""
        return f"{self.paths[name].relative_to(self.root)}:{use.line} uses {use.target}"

    def select(self, package: str) -> Iterator[tuple[str, Use]]:
        """Yield the uses of all modules of a package."""
        for name, uses in self.uses.items():
            if name.split(".")[0] == package:
                yield from ((name, use) for use in uses)


def within(target: str, names: Iterable[str]) -> bool:
    """Whether `target` is one of `names` or lies below one."""
    return any(target == name or target.startswith(name + ".") for name in names)


def wrong_arrows(tree: Tree) -> list[str]:
    """Uses of a package that the using package may not know, types and registry strings included."""
    return [
        tree.where(name, use)
        for package, allowed in ALLOWED.items()
        for name, use in tree.select(package)
        if use.target.split(".")[0] in set(PACKAGES) - allowed
    ] + [
        tree.where(name, use)
        for layer, later in LAYERS.items()
        for name, uses in tree.uses.items()
        if within(name, (layer,))
        for use in uses
        if within(use.target, later) and (layer, use.target) not in EXCEPT
    ]


def forbidden_libraries(tree: Tree) -> list[str]:
    """Torch in analysis, profilers in bert, libraries but msgspec in common and records, what one module has alone."""
    found = [tree.where(n, u) for n, u in tree.select("analysis") if within(u.target, ("torch",))]
    found += [tree.where(n, u) for n, u in tree.select("bert") if within(u.target, PROFILERS)]
    for library, only in ALONE.items():
        others = ((name, use) for name, uses in tree.uses.items() if not within(name, (only,)) for use in uses)
        found += [tree.where(name, use) for name, use in others if within(use.target, (library,))]
    standard = sys.stdlib_module_names | set(PACKAGES) | {"msgspec"}
    for name, uses in tree.uses.items():
        if within(name, ("common", "records")):
            found += [tree.where(name, use) for use in uses if use.target.split(".")[0] not in standard]
    return found


def loaded(tree: Tree, name: str) -> set[str]:
    """Modules of the tree that importing `name` imports directly, parent packages included."""
    targets = {use.target for use in tree.uses[name] if use.when == "load"}
    parents = {target.rsplit(".", depth)[0] for target in targets | {name} for depth in range(1, 9)}
    return ((targets | parents) & set(tree.paths)) - {name}


def cycles(tree: Tree) -> list[str]:
    """Import cycles between modules, as chains of names."""
    edges = {
        name: sorted({u.target for u in uses if u.when == "load" and u.target in tree.paths and u.target != name})
        for name, uses in tree.uses.items()
    }
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, chain: list[str]) -> None:
        if name in chain:
            found.append(" -> ".join([*chain[chain.index(name) :], name]))
        elif name not in done:
            for target in edges[name]:
                visit(target, [*chain, name])
            done.add(name)

    for name in edges:
        visit(name, [])
    return found


def heavy_at_load(tree: Tree, starts: Iterable[str]) -> list[str]:
    """Heavy libraries that importing `starts` imports, each with the chain of modules that leads there."""
    found: list[str] = []
    chains = {start: start for start in starts}
    queue = list(chains)
    while queue:
        name = queue.pop(0)
        for use in tree.uses[name]:
            if use.when == "load" and within(use.target, HEAVY):
                found.append(f"{tree.where(name, use)} (from {chains[name]})")
        for target in sorted(loaded(tree, name) - set(chains)):
            chains[target] = f"{chains[name]} -> {target}"
            queue.append(target)
    return found


def python_in_profiling(root: Path) -> list[str]:
    """Python files below profiling/, which would shadow the standard library's package of Python 3.15."""
    return [str(path.relative_to(root)) for path in sorted((root / "profiling").rglob("*.py"))]
