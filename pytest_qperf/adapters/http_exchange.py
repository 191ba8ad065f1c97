"""One HTTP exchange with a server, without proxies, that can be watched while it is open."""

import http.client
import json
import selectors
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Status and decoded body of an answer."""

    status: int
    body: str

    def json_object(self) -> dict[str, object] | None:
        """Return the body as a JSON object, or None if it is anything else."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


class OpenExchange:
    """A request that was sent and whose answer has not been read yet."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def wait_for_answer(self, seconds: float) -> bool:
        """Return whether the answer, or the end of the connection, came within ``seconds``."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.sock, selectors.EVENT_READ)
            return bool(selector.select(seconds))

    def read(self) -> HttpReply:
        """Return the answer and close the connection; raises OSError if it broke."""
        try:
            self._connection.sock.settimeout(READ_TIMEOUT_S)
            response = self._connection.getresponse()
            return HttpReply(response.status, response.read().decode("utf-8", "replace"))
        except http.client.HTTPException as error:
            raise _broken(error) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, whether or not an answer came."""
        self._connection.close()


def send(url: str, *, payload: Mapping[str, object] | None = None) -> OpenExchange:
    """Send a GET, or with ``payload`` a POST of that JSON object; raises OSError."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_TIMEOUT_S)
    body = None if payload is None else json.dumps(payload).encode()
    headers = {"Accept": "*/*", "Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request("GET" if body is None else "POST", parts.path or "/", body, headers)
    except http.client.HTTPException as error:
        connection.close()
        raise _broken(error) from error
    except OSError:
        connection.close()
        raise
    return OpenExchange(connection)


def fetch(url: str, *, timeout_s: float = READ_TIMEOUT_S) -> HttpReply:
    """Return the answer to a GET; raises OSError, TimeoutError after ``timeout_s`` of silence."""
    exchange = send(url)
    if not exchange.wait_for_answer(timeout_s):
        exchange.close()
        raise TimeoutError(f"no answer from {url} within {timeout_s:g} s")
    return exchange.read()


def _broken(error: http.client.HTTPException) -> ConnectionError:
    """Return the same failure as an OSError, so that callers handle one family."""
    return ConnectionError(f"{type(error).__name__}: {error}")
