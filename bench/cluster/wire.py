"""What nodes say to each other: JSON objects, one per line, over TCP. Nothing here ever waits."""

import contextlib
import errno
import json
import socket
import time
from typing import Any

from common.errors import UsageError

# No message is longer; a line that is comes from something else than a launch.
_MOST_BYTES = 2**20


class Line:
    """A connection to the launch of another node."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._incoming = b""
        self._outgoing = b""
        self._parting = False
        self.closed = False
        """Whether the other side is gone, or said something that no launch says."""
        self.heard_at = time.monotonic()
        """When the last bytes came."""

    @property
    def own_address(self) -> str:
        """Address of this end."""
        return str(self._socket.getsockname()[0])

    def send(self, **message: Any) -> None:
        """Send a message; what the network does not take now goes with the next call."""
        self._outgoing += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Send what is left to send; return whether nothing is."""
        while self._outgoing and not self.closed:
            try:
                self._outgoing = self._outgoing[self._socket.send(self._outgoing) :]
            except BlockingIOError:
                return False
            except OSError:
                self.closed = True
        if self._parting and not self._outgoing:
            self._parting = False
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        return not self._outgoing

    def part(self) -> None:
        """Say nothing more; `receive` sets `closed` once the other side has heard all and hung up."""
        self._parting = True
        self.flush()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come."""
        while not self.closed:
            try:
                part = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            if not part:
                self.closed = True
                break
            self._incoming += part
            self.heard_at = time.monotonic()
            if len(self._incoming) > _MOST_BYTES:
                self.closed = True
        *lines, self._incoming = self._incoming.split(b"\n")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.closed = True
                break
            messages.append(message)
        return messages

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.close()


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens at an address of this node; port 0 takes a free one.

    Raises:
        UsageError: the port is in use, a free one is named; or the address is none of this node's.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            "option-value", f"--master-addr {address} cannot be resolved here ({error}): give an address of node 0"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                "port-in-use",
                f"--master-port {port} is in use on this machine, by another job perhaps: give every node of this job "
                f"--master-port {_free_port(address, port)}, which is free here",
            ) from error
        raise UsageError(
            "option-value",
            f"cannot listen at {address}:{port} ({error.strerror}): --master-addr is an address of node 0, and this is "
            "node 0; the other nodes have --node-rank 1 and above",
        ) from error


def _free_port(address: str, taken: int) -> int:
    """Return the next free port above one that is taken, or any."""
    for port in [*range(taken + 1, min(taken + 100, 65536)), 0]:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((socket.gethostbyname(address), port))
            return int(probe.getsockname()[1])
    return 0


def interface_of(address: str) -> str | None:
    """Return the network interface that has an address, None where none has."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address.partition("%")[0] == address for found in addresses):
            return name
    return None
