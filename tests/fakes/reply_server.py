"""An HTTP server whose answers are written down beforehand."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@dataclass(slots=True)
class ReplyServer:
    """Answers each path from its list, in order; the last answer of a list repeats.

    An answer is (status, body); a body that is no str is sent as JSON. Status 0 drops the
    connection, status -1 holds it open, unanswered, until the server is closed.
    """

    replies: Mapping[str, list[tuple[int, object]]]
    base_url: str = ""
    posted: list[dict[str, object]] = field(default_factory=list)
    num_asked: dict[str, int] = field(default_factory=dict)
    closing: Event = field(default_factory=Event)

    def next_reply(self, path: str) -> tuple[int, object]:
        replies = self.replies.get(path, [(404, "no such path")])
        index = self.num_asked.get(path, 0)
        self.num_asked[path] = index + 1
        return replies[min(index, len(replies) - 1)]


@contextmanager
def serve_replies(replies: Mapping[str, list[tuple[int, object]]]) -> Iterator[ReplyServer]:
    """Yield a listening server on a free port of 127.0.0.1."""
    script = ReplyServer(replies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            script.posted.append(json.loads(body))
            self._answer()

        def _answer(self) -> None:
            status, body = script.next_reply(self.path)
            if status == -1:
                script.closing.wait()
            if status > 0:
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        script.base_url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield script
        finally:
            script.closing.set()
            server.shutdown()
            thread.join()
