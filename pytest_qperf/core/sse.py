"""Server-sent events from bytes, however the network cut them."""

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DEFAULT_EVENT = "message"


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One dispatched event: its type (``message`` unless the stream names one) and its data."""

    event: str
    data: str


class SseDecoder:
    """Turns the body of one response into events; the same events for every split of the bytes.

    Lines end with CR, LF or CRLF and may have any length. ``id`` and ``retry`` are read over: a
    measured request is never reconnected. Bytes that are not UTF-8 become U+FFFD.
    Source: WHATWG HTML, sections 9.2.5 "Parsing an event stream" and 9.2.6 "Interpreting an event
    stream".
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data_lines: list[str] = []
        self._event = ""
        self._is_first_line = True
        self._is_lf_pending = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that these bytes complete, in order; cost is linear in the bytes."""
        if not data:
            return []
        # An event ends at its CR; the LF of a CRLF may only come with the next read.
        if self._is_lf_pending and data.startswith(b"\n"):
            data = data[1:]
        self._is_lf_pending = data.endswith(b"\r")
        events: list[SseEvent] = []
        *ended, rest = _LINE_END.split(data)
        for part in ended:
            self._line += part
            event = self._end_line()
            if event is not None:
                events.append(event)
        self._line += rest
        return events

    def close(self) -> bool:
        """End the stream; return whether it ended inside an event, which is then discarded."""
        is_inside_event = bool(self._line or self._data_lines or self._event)
        self._line.clear()
        self._data_lines, self._event = [], ""
        return is_inside_event

    def _end_line(self) -> SseEvent | None:
        line = bytes(self._line)
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", errors="replace")
        if name == b"data":
            self._data_lines.append(text)
        elif name == b"event":
            self._event = text
        return None

    def _dispatch(self) -> SseEvent | None:
        data_lines, event = self._data_lines, self._event
        self._data_lines, self._event = [], ""
        if not data_lines:
            return None
        return SseEvent(event=event or _DEFAULT_EVENT, data="\n".join(data_lines))
