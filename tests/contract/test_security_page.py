"""SECURITY.md names tests that are there, and what it says of the whole tree is so."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("analysis", "bench", "bert", "common", "records")


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_every_test_that_the_page_names_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 15 and all(len(row) == 4 and "tests/" in row[3] for row in rows)
    named = set(re.findall(r"`(tests/[^`]+)`", text))
    assert named and [name for name in named if not (ROOT / name).is_file()] == []


def test_no_code_uses_a_shell_eval_exec_or_unsafe_formats() -> None:
    found = []
    inside = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for path in sorted([ROOT / "bertbench.py", *inside]):
        name = path.relative_to(ROOT).as_posix()
        for function, call in calls(ast.parse(path.read_text(encoding="utf-8"))):
            keywords = {word.arg: ast.unparse(word.value) for word in call.keywords}
            if function in ("eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "compile"):
                found.append(f"{name}: {function}")
            if {keywords.get("shell", "False"), keywords.get("allow_pickle", "False")} != {"False"}:
                found.append(f"{name}: {ast.unparse(call)}")
            if function == "torch.load" and keywords.get("weights_only") != "True":
                found.append(f"{name}: {ast.unparse(call)}")
            if function.startswith(("pickle.", "marshal.", "shelve.", "yaml.")) and "load" in function:
                found.append(f"{name}: {function}")
            if function.endswith((".extractall", "unpack_archive")):
                found.append(f"{name}: {function}")
    assert found == []
