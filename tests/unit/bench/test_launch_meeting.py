"""The launches of several nodes meet, over loopback: agreement, absence, and what each hears of the others."""

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.refusals import refused

from bench.cluster import meeting
from bench.cluster.meeting import Hub, Line, Spoke
from bench.cluster.node import interface_of, listen
from bench.cluster.statements import PROTOCOL, Failure, Report, Statement
from common.errors import UsageError

HOST = "127.0.0.1"
COUNTS = (1, 2, 3)


def statement(node_rank: int, **changes: Any) -> Statement:
    given = {"counts": COUNTS, "max_restarts": 0, "host": f"host{node_rank}", "process": 10 + node_rank}
    given |= {"command": "train.py", "command_hash": "a"}
    return Statement(**{"node_rank": node_rank, "device": "cpu", **given, **changes})


class Meeting:
    """A hub and spokes that agree in threads."""

    def __init__(self) -> None:
        self.listener = listen(HOST, 0)
        self.port = int(self.listener.getsockname()[1])
        self.found: dict[int, Any] = {}
        self.codes: dict[int, str] = {}
        self.told: list[str] = []
        self._threads: list[threading.Thread] = []

    def hub(self, seconds: float = 20.0, **changes: Any) -> Hub:
        hub = Hub(self.listener, statement(0, **changes), 4242)
        self._run(0, lambda: hub.agree(seconds, self.told.append))
        return hub

    def spoke(self, node_rank: int, seconds: float = 20.0, key: int | None = None, **changes: Any) -> Spoke:
        spoke = Spoke(HOST, self.port, statement(node_rank, **changes))
        self._run(node_rank if key is None else key, lambda: spoke.agree(seconds, self.told.append))
        return spoke

    def _run(self, key: int, action: Callable[[], Any]) -> None:
        def work() -> None:
            try:
                self.found[key] = action()
            except UsageError as error:
                self.codes[key], self.found[key] = error.code, str(error)

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def end(self) -> dict[int, Any]:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.found


def agreed() -> tuple[Hub, Spoke, Spoke]:
    made = Meeting()
    links = made.spoke(2), made.hub(), made.spoke(1)
    made.end()
    return links[1], links[2], links[0]


def until(condition: Callable[[], object], *links: Hub | Spoke) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        for link in links:
            link.look()
        time.sleep(0.01)


def test_all_nodes_start_with_the_same_agreement_whoever_comes_first() -> None:
    made = Meeting()
    made.spoke(2)
    time.sleep(0.2)
    made.hub()
    made.spoke(1)
    first, second, third = (made.end()[node] for node in range(3))
    assert first.run_id == second.run_id == third.run_id
    assert first.store_port == second.store_port == 4242
    assert first.nodes == second.nodes == third.nodes == {node: statement(node) for node in range(3)}
    assert sorted(made.told) == ["node 1 (host host1) has joined", "node 2 (host host2) has joined"]


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        (
            {"counts": (1, 2, 4)},
            ("node 0 (host host0)", "1 + 2 + 3 = 6 processes on 3 nodes", "node 1 (host host1)", "1 + 2 + 4"),
        ),
        ({"counts": (1, 2)}, ("1 + 2 + 3 = 6 processes", "1 + 2 = 3 processes on 2 nodes")),
        ({"max_restarts": 3}, ("--max-restarts", "node 0 (host host0) has 0", "node 1 (host host1) has 3")),
        (
            {"command": "train.py --x 2", "command_hash": "b"},
            ("node 0 (host host0) runs `train.py`", "node 1 (host host1) runs `train.py --x 2`"),
        ),
        ({"device": "cuda"}, ("node 0 (host host0) runs on cpu", "node 1 (host host1) on cuda")),
        (
            {"node_rank": 0, "host": "host1", "process": 11},
            ("node 0", "host host0 (process 10)", "host host1 (process 11)", "--node-rank"),
        ),
    ],
)
def test_a_disagreement_is_told_to_every_node_with_both_sides(changes: dict[str, Any], facts: tuple[str, ...]) -> None:
    made = Meeting()
    made.spoke(2)
    made.hub()
    while not made.told:  # node 2 is there
        time.sleep(0.01)
    made.spoke(changes.get("node_rank", 1), key=1, **{k: v for k, v in changes.items() if k != "node_rank"})
    found = made.end()
    for node in range(3):
        assert made.codes[node] == "nodes-disagree"
        assert not [fact for fact in (*facts, "node 0 (host host0, 1 process)") if fact not in found[node]], node


def test_absent_nodes_are_named_to_those_that_came() -> None:
    made = Meeting()
    made.hub(1.5)
    made.spoke(2)
    found = made.end()
    for node in (0, 2):
        assert made.codes[node] == "node-unreachable"
        facts = ("node 1 ", "1.5 s", "4 of 6 processes", "node 2 (host host2, 3 processes)", "--join-timeout")
        assert not [fact for fact in facts if fact not in found[node]], node


def test_a_node_that_leaves_before_the_start_may_come_again() -> None:
    made = Meeting()
    made.spoke(1, 0.5, key=10)
    made.hub()
    deadline = time.monotonic() + 20
    while "node 1 (host host1) has left" not in made.told:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made.spoke(1)
    made.spoke(2)
    found = made.end()
    assert "nodes 0, 2" in found[10] or "node 2 " in found[10]
    assert found[0].nodes.keys() == {0, 1, 2}


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"[1]\n",
        b'{"statement": {}, "protocol": 1}\n',
        b'{"statement": 1, "protocol": []}\n',
        b"\xff\n",
    ],
)
def test_strangers_at_the_port_change_nothing(content: bytes) -> None:
    made = Meeting()
    with socket.create_connection((HOST, made.port)) as stranger:
        stranger.sendall(content)
        made.hub()
        made.spoke(1)
        made.spoke(2)
        assert made.end()[0].nodes.keys() == {0, 1, 2}


def test_another_release_is_told_why_it_is_not_taken_and_the_others_go_on() -> None:
    made = Meeting()
    with socket.create_connection((HOST, made.port)) as other:
        other.sendall(json.dumps({"statement": {"of": "another form"}, "protocol": 99}).encode() + b"\n")
        made.hub()
        made.spoke(1)
        other.settimeout(20)
        said = json.loads(other.makefile().readline())
        assert said["refused"] and said["code"] == "tool-version"
        made.spoke(2)
        assert made.end()[0].nodes.keys() == {0, 1, 2}


def test_no_answer_and_a_stranger_in_the_place_of_node_0_are_told_apart() -> None:
    with refused("node-unreachable", "within 0.5 s", f"{HOST}:1", "refused", "the 2 of this node"):
        Spoke(HOST, 1, statement(1)).agree(0.5, print)
    silent = socket.create_server((HOST, 0))
    with silent, refused("node-unreachable", silent.getsockname()[1], "another program"):
        Spoke(HOST, silent.getsockname()[1], statement(1)).agree(0.5, print)
    with refused("node-unreachable", "within 0.5 s", "no-such-host.invalid:1"):
        Spoke("no-such-host.invalid", 1, statement(1)).agree(0.5, print)


def test_a_node_that_hangs_up_with_its_statement_and_a_strange_node_0_do_no_harm() -> None:
    made = Meeting()
    with socket.create_connection((HOST, made.port)) as hasty:
        hasty.sendall(json.dumps({"statement": statement(1).to_json(), "protocol": PROTOCOL}).encode() + b"\n")
    made.hub()
    made.spoke(2)
    deadline = time.monotonic() + 20
    while "node 1 (host host1) has left" not in made.told and time.monotonic() < deadline:
        time.sleep(0.01)
    made.spoke(1)
    assert made.end()[0].nodes.keys() == {0, 1, 2}
    stranger = socket.create_server((HOST, 0))
    spoke = Spoke(HOST, stranger.getsockname()[1], statement(1))
    answers = b'{"go": 3}\n{"came": 7}\n{"go": {"store_port": 1, "nodes": [1]}}\n'
    greet = threading.Thread(target=lambda: stranger.accept()[0].sendall(answers))
    greet.start()
    with stranger, refused("node-unreachable", stranger.getsockname()[1]):
        spoke.agree(1.0, print)
    greet.join()


def test_a_refusal_has_the_code_of_node_0() -> None:
    server = socket.create_server((HOST, 0))
    answer = json.dumps({"refused": "the host is full", "code": "rank-failed"}).encode() + b"\n"
    greet = threading.Thread(target=lambda: server.accept()[0].sendall(answer))
    greet.start()
    with server, refused("rank-failed", "the host is full", server.getsockname()[1]):
        Spoke(HOST, server.getsockname()[1], statement(1)).agree(20.0, print)
    greet.join()


def test_who_comes_when_all_are_there_is_told_so() -> None:
    made = Meeting()
    hub, one, two = made.hub(), made.spoke(1), made.spoke(2)
    made.end()
    late = made.spoke(1, key=11)
    until(lambda: 11 in made.found, hub)
    assert made.codes[11] == "port-in-use" and "node 0 (host host0)" in made.found[11]
    assert [link.stop for link in (hub, one, two, late)] == [None] * 4


def test_all_reports_are_one_verdict() -> None:
    hub, one, two = agreed()
    for link in (one, two, hub):
        assert link.verdict is None
        link.report(Report(True))
    until(lambda: one.verdict and two.verdict, hub, one, two)
    assert hub.verdict == one.verdict == two.verdict
    assert hub.verdict is not None and hub.verdict.ok and hub.stop is None


def test_a_failed_rank_stops_all_and_is_the_verdict_of_all() -> None:
    hub, one, two = agreed()
    one.report(Report(False, (Failure(2, -9, 100.0), Failure(1, 1, 99.0))))
    until(lambda: two.stop and hub.stop, hub, two)
    assert two.stop is not None and not two.stop.asked and two.stop.why == "node 1 (host host1) failed"
    two.report(Report(False, (Failure(3, 1, 98.0),)))
    hub.report(Report(False, (Failure(0, -15, 97.0),)))
    until(lambda: one.verdict and two.verdict, hub, one, two)
    assert one.verdict == two.verdict == hub.verdict
    assert one.verdict is not None and one.verdict.why == "rank 2 on node 1 (host host1) died by SIGKILL"


def test_a_request_reaches_all_and_a_failure_after_it_hurries_them() -> None:
    hub, one, two = agreed()
    one.ask("stopped by SIGTERM on node 1")
    until(lambda: two.stop, hub, one, two)
    assert two.stop is not None and two.stop.asked
    one.report(Report(False, (Failure(1, -15, 1.0),)))
    until(lambda: not two.stop.asked, hub, one, two)
    for link in (hub, two):
        link.report(Report(True))
    until(lambda: one.verdict and two.verdict, hub, one, two)
    assert one.verdict is not None and one.verdict.why == "stopped by SIGTERM on node 1" and not one.verdict.ok


def test_a_node_that_hangs_up_or_falls_silent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, one, two = agreed()
    one.close()
    until(lambda: two.stop, hub, two)
    assert two.stop is not None
    assert two.stop.why.startswith("node 1 (host host1, ranks 1 to 2) ")
    monkeypatch.setattr(meeting, "SILENCE_SECONDS", 0.5)
    hub, one, two = agreed()
    until(lambda: two.stop, hub, two)  # node 1 says nothing, as behind a cut link
    assert two.stop is not None and "host1, ranks 1 to 2)" in two.stop.why and "0.5 s" in two.stop.why
    hub, one, two = agreed()
    until(lambda: one.stop, one)
    assert one.stop is not None and "node 0 (host host0) " in one.stop.why and "0.5 s" in one.stop.why
    one.report(Report(False))
    until(lambda: one.verdict, one)
    assert one.verdict is not None and not one.verdict.ok


def test_a_taken_port_names_a_free_one_and_a_foreign_address_is_refused() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with refused("port-in-use", f"--master-port {port}") as caught:
            listen(HOST, port)
        free = int(str(caught.value).rpartition("--master-port ")[2].split(",")[0])
        assert free != port
        listen(HOST, free).close()
    with refused("option-value", "192.0.2.1:29500", "--master-addr"):
        listen("192.0.2.1", 29500)
    with refused("option-value", "--master-addr no-such-host.invalid"):
        listen("no-such-host.invalid", 29500)


def test_the_free_port_of_an_ipv6_address_is_named() -> None:
    try:
        taken = listen("::1", 0)
    except UsageError:
        pytest.skip("this machine has no IPv6")
    with taken, refused("port-in-use") as found:
        listen("::1", taken.getsockname()[1])
    assert "--master-port 0" not in str(found.value)


def test_messages_arrive_whole_however_they_are_cut() -> None:
    with socket.create_server((HOST, 0)) as server:
        other = socket.create_connection(server.getsockname())
        line = Line(server.accept()[0])
    content = json.dumps({"text": "ä" * 1000}).encode() + b"\n" + b'{"second": 2}\n{"thi'
    got: list[dict[str, Any]] = []
    for place in range(0, len(content), 97):
        other.sendall(content[place : place + 97])
        got += line.receive()
    deadline = time.monotonic() + 20
    while len(got) < 2 and time.monotonic() < deadline:
        got += line.receive()
    assert [list(message) for message in got] == [["text"], ["second"]]
    other.close()
    while not line.closed and time.monotonic() < deadline:
        assert line.receive() == []
    assert line.closed


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
