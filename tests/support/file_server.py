"""A small file server with the faults that real ones have, on a port of its own."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Fault:
    """What goes wrong with one request."""

    status: int = 0
    """Answer this instead."""
    headers: dict[str, str] = field(default_factory=dict)
    """With these."""
    cut: int | None = None
    """End the connection after this many bytes of the body."""
    replace: bytes | None = None
    """The file is another one from now on."""


@dataclass
class Site:
    """What the server holds and how it behaves; shared with its handler threads."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    ranges: bool = True
    """Understands Range."""
    pace_seconds: float = 0.0
    """Pause after each 64 KiB."""
    base: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Requests in order: path, range, agent, sent (bytes of the body)."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def paths(self) -> list[str]:
        return [str(request["path"]) for request in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        site = self.site
        about = {"path": self.path, "range": self.headers.get("Range")}
        request: dict[str, Any] = {**about, "agent": self.headers.get("User-Agent"), "sent": 0}
        with site.lock:
            site.asked.append(request)
            queue = site.faults.get(self.path)
            fault = queue.popleft() if queue else Fault()
            if fault.replace is not None:
                site.files[self.path] = fault.replace
        try:
            self.answer(site, fault, request)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, site: Site, fault: Fault, request: dict[str, Any]) -> None:
        content = site.files.get(self.path)
        if fault.status or content is None:
            self.send_response(fault.status or 404)
            for name, value in fault.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start, status = 0, 200
        if request["range"] and site.ranges:
            start = int(request["range"].removeprefix("bytes=").removesuffix("-"))
            status = 206 if start < len(content) else 416
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        body = b"" if status == 416 else content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        body = body[: fault.cut]
        for at in range(0, len(body), 2**16):
            request["sent"] += self.wfile.write(body[at : at + 2**16])
            time.sleep(site.pace_seconds)
        self.close_connection = fault.cut is not None


@contextmanager
def serving(site: Site | None = None) -> Iterator[Site]:
    """Run a server for `site`; `site.base` is its address."""
    site = site or Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    server.daemon_threads = True
    site.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
