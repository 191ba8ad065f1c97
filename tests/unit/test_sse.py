from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_qperf.core.sse import SseDecoder, SseEvent


def decode_all(data: bytes) -> list[SseEvent]:
    return SseDecoder().feed(data)


def decode_parts(parts: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for part in parts for event in decoder.feed(part)]


def message(data: str) -> SseEvent:
    return SseEvent(event="message", data=data)


def test_a_blank_line_ends_an_event() -> None:
    assert decode_all(b"data: a\n\ndata: b\n\n") == [message("a"), message("b")]


def test_an_event_without_its_blank_line_is_not_dispatched() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.close() is True


def test_closing_after_a_whole_event_reports_no_rest() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\n") == [message("a")]
    assert decoder.close() is False


def test_lf_cr_and_crlf_end_lines_alike() -> None:
    for end in (b"\n", b"\r", b"\r\n"):
        stream = b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end
        assert decode_all(stream) == [message("a\nb"), message("c")], end


def test_an_event_is_complete_at_the_cr_of_its_crlf_and_the_lf_adds_nothing() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n\r") == [message("a")]
    assert decoder.feed(b"\ndata: b\r\n\r\n") == [message("b")]


def test_the_space_after_the_colon_is_optional_and_only_one_is_removed() -> None:
    assert decode_all(b"data:a\n\ndata:  b\n\n") == [message("a"), message(" b")]


def test_several_data_lines_are_joined_by_newlines() -> None:
    assert decode_all(b"data: a\ndata:\ndata: b\n\n") == [message("a\n\nb")]


def test_comments_and_unknown_fields_are_read_over() -> None:
    stream = b": keep-alive\n\n:\nid: 7\nretry: 10\nwhatever\ndata: a\n\n"
    assert decode_all(stream) == [message("a")]


def test_the_event_field_names_the_event_and_does_not_leak_into_the_next() -> None:
    stream = b"event: error\ndata: x\n\nevent: dropped\n\ndata: y\n\n"
    assert decode_all(stream) == [SseEvent("error", "x"), message("y")]


def test_a_byte_order_mark_is_dropped_once_at_the_start() -> None:
    bom = b"\xef\xbb\xbf"
    assert decode_all(bom + b"data: a\n\n" + bom + b"data: b\n\n") == [message("a")]


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    assert decode_all(b"data: \xff\n\n") == [message("\ufffd")]


def test_a_character_split_over_two_reads_is_whole() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert decode_parts([b"data: " + first, second + b"\n\n"]) == [message("é")]


def test_one_line_of_300_kilobytes_in_reads_of_one_byte_is_one_event() -> None:
    stream = b"data: " + b"a" * 300_000 + b"\n\n"
    events = decode_parts([stream[i : i + 1] for i in range(len(stream))])
    assert events == [message("a" * 300_000)]


_LINES = st.lists(
    st.sampled_from(
        [b"data: a", b"data:b", b"data: \xc3\xa9", b": c", b"event: error", b"id: 1", b"", b"data"]
    ),
    max_size=20,
)
_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@settings(deadline=None)
@given(st.data(), _LINES, st.booleans())
def test_any_split_of_the_bytes_gives_the_same_events(
    data: st.DataObject, lines: list[bytes], has_bom: bool
) -> None:
    stream = b"\xef\xbb\xbf" if has_bom else b""
    for line in lines:
        stream += line + data.draw(_ENDS)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=10)))
    borders = [0, *cuts, len(stream)]
    parts = [stream[a:b] for a, b in pairwise(borders)]
    assert b"".join(parts) == stream
    assert decode_parts(parts) == decode_all(stream)


@settings(deadline=None)
@given(_LINES, _ENDS)
def test_reads_of_one_byte_give_the_same_events(lines: list[bytes], end: bytes) -> None:
    stream = b"".join(line + end for line in lines)
    assert decode_parts([bytes([byte]) for byte in stream]) == decode_all(stream)
