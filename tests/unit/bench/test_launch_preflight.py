"""Launchers that meet at a real store, and what they decide before and after the start."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from bench.launch import preflight, watch
from bench.launch.preflight import Node, meet, objection
from bench.launch.torchrun import FAILED, KILLED, LOST, OK, STOPPED, Ending
from bench.launch.watch import Watch
from bench.run.processes import StopRequest
from common.errors import UsageError


def node(rank: int, *counts: int, **changes: Any) -> Node:
    same = {"device": "cpu", "command": "train.py", "host": f"host-{rank}", "pid": rank}
    return Node(rank=rank, counts=counts or (1, 2), **same | changes)


@pytest.mark.parametrize(
    ("nodes", "waited_seconds", "facts"),
    [
        ([node(0), node(1)], 5, ()),
        ([node(0)], None, ()),
        ([node(0), node(1, 1, 3)], 5, ("1 + 2 = 3 processes", "1 + 3 = 4 processes", "node 1 (host host-1)")),
        ([node(0), node(1, 1, 2, 1)], 5, ("on 2 nodes", "on 3 nodes")),
        ([node(0), node(1, command="other.py")], 5, ("train.py", "other.py")),
        ([node(0), node(1, device="cuda")], 5, ("has cpu", "has cuda")),
        ([node(0)], 5, ("node 1 did not join within 5 s", "1 of 3 processes", "node 0 (host host-0)")),
        ([node(0, 1, 1, 1, 1), node(2, 1, 1, 1, 1)], 5, ("node 1, 3 did not join", "2 of 4")),
    ],
)
def test_an_objection_names_the_node_and_both_numbers(
    nodes: list[Node], waited_seconds: float | None, facts: tuple[str, ...]
) -> None:
    refusal = objection(nodes[0], nodes, waited_seconds)
    assert (refusal is None) == (not facts)
    if refusal is not None:
        assert all(fact in refusal.text for fact in facts) and "\n" not in refusal.text, refusal
        assert refusal.code == ("node-unreachable" if "did not join" in refusal.text else "nodes-disagree")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def met(*nodes: Node, seconds: float = 30.0) -> list[Any]:
    """What each node comes to: the nodes that start, or the error."""
    port, results = free_port(), [None] * len(nodes)

    def work(number: int) -> None:
        try:
            results[number] = meet(nodes[number], "127.0.0.1", port, seconds)
        except UsageError as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_nodes_that_agree_start_with_the_same_port() -> None:
    starts = [nodes for _, nodes in met(node(0), node(1))]
    assert starts[0] == starts[1] and [one.rank for one in starts[0]] == [0, 1]
    assert starts[0][0].port > 0 and starts[0][1].address == "127.0.0.1"


def test_nodes_that_disagree_get_the_same_message() -> None:
    first, second = met(node(0), node(1, 1, 2, 4))
    assert first.code == second.code == "nodes-disagree" and str(first) == str(second)


KILL, EXIT, LATER = Ending(KILLED, "k", 9.0), Ending(FAILED, "x", 2.0), Ending(FAILED, "y", 3.0)


def test_an_interrupted_node_leaves_its_rank_to_another_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(store: Any, *_: Any) -> Any:
        stores.append(store)
        raise KeyboardInterrupt

    stores: list[Any] = []
    monkeypatch.setattr(preflight, "_look", interrupt)
    monkeypatch.setattr(preflight, "answer", lambda call, *words, seconds=0: call(*words))
    with pytest.raises(KeyboardInterrupt):
        meet(node(0), "127.0.0.1", free_port(), 1)
    assert not stores[0].check(["node/0"])


@pytest.mark.parametrize(
    ("endings", "request_", "verdict"),
    [
        ([Ending(OK), Ending(OK)], None, Ending(OK)),
        ([EXIT, KILL], None, Ending(KILLED, "node 1 (host host-1): k")),
        ([LATER, EXIT], None, Ending(FAILED, "node 1 (host host-1): x")),
        ([KILL, Ending(LOST, "lost")], None, Ending(LOST, "node 1 (host host-1): lost")),
        ([Ending(STOPPED, "s", 1.0), LATER], None, Ending(FAILED, "node 1 (host host-1): y")),
        ([Ending(OK), Ending(OK)], "stopped", Ending(OK, "stopped")),
        ([EXIT, Ending(STOPPED, "s", 1.0)], "stopped", Ending(FAILED, "stopped")),
    ],
)
def test_the_verdict_names_the_cause(
    endings: list[Ending], request_: str | None, verdict: Ending, tmp_path: Path
) -> None:
    seen = watched(tmp_path, 0)
    seen.endings, seen.request = dict(enumerate(endings)), request_
    judged = seen._verdict()
    assert (judged.kind, judged.text) == (verdict.kind, verdict.text)


def watched(folder: Path, rank: int, store: Any = None) -> Watch:
    class Child:
        pid, returncode = 0, None

        def poll(self) -> None:
            return None

    nodes = [node(0), node(1)]
    return Watch(
        node=nodes[rank],
        nodes=nodes,
        store=store,
        child=Child(),  # type: ignore[arg-type]
        record=folder / "ending.json",
        stop=StopRequest(),
    )


def exchanged(store: Any, *watches: Watch) -> None:
    for each in watches:
        each._exchange(store)


def test_every_node_learns_of_requests_and_endings_and_comes_to_the_same_verdict(tmp_path: Path) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    first, second = watched(tmp_path, 0, store), watched(tmp_path, 1, store)
    second.request = "stopped by SIGINT"
    exchanged(store, first, second, first)
    assert first.request == "stopped by SIGINT" and not first.failed
    first.request = second.request = None
    store.delete_key("request")
    second.endings[1] = KILL
    exchanged(store, second, first)
    assert first.failed
    first.endings[0] = EXIT
    exchanged(store, first, second)
    assert first._verdict() == second._verdict() == Ending(KILLED, "node 1 (host host-1): k")


@pytest.mark.parametrize(("failed", "silence"), [(False, "SILENCE_SECONDS"), (True, "_SHORT_SILENCE_SECONDS")])
def test_a_node_without_a_sign_is_lost_and_sooner_after_a_failure(
    failed: bool, silence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    first = watched(tmp_path, 0, store)
    exchanged(store, first)
    if failed:
        first.endings[0] = EXIT
    exchanged(store, first)
    assert 1 not in first.endings
    monkeypatch.setattr(watch, silence, 0.0)
    exchanged(store, first)
    assert first.endings[1].kind == LOST and first.failed


def test_a_torchrun_that_dies_is_the_cause(tmp_path: Path) -> None:
    seen = watched(tmp_path, 0)
    seen.child.poll = lambda: 137  # type: ignore[method-assign]
    seen._look()
    assert (seen.endings[0].kind, seen.endings[0].text) == (KILLED, "torchrun died by SIGKILL")
