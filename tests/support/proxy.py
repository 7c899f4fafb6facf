"""Stands between clients and a server: acts before a request is handed on, or loses its answer."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class Proxy:
    """``before(method, path)`` is called before a request is handed on; if ``lose(method, path)``, no answer comes."""

    def __init__(self, url: str) -> None:
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.lose: Callable[[str, str], bool] = lambda method, path: False
        self.seen: list[tuple[str, str]] = []
        target = urlsplit(url)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                method = self.command
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                proxy.seen.append((method, self.path))
                proxy.before(method, self.path)
                upstream = http.client.HTTPConnection(str(target.hostname), target.port, timeout=60)
                try:
                    headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                    upstream.request(method, self.path, body, headers)
                    answer = upstream.getresponse()
                    content = answer.read()
                finally:
                    upstream.close()
                if proxy.lose(method, self.path):
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("content-length", "connection", "date", "server", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                if method != "HEAD":
                    self.wfile.write(content)

            do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = _forward

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
