"""Server-sent events as bytes: one data line per event, comments, the end mark. Owns framing and escaping only.

Line readers in clients split at more than \\n: U+0085, U+2028, U+2029, DEL and the C1 controls are JSON-escaped, the
others are escaped by JSON itself.
"""

import re

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_UNSAFE = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")


def encode_data(payload: bytes) -> bytes:
    """One event from encoded JSON."""
    return b"data: " + escape_lines(payload) + b"\n\n"


def escape_lines(payload: bytes) -> bytes:
    """Encoded JSON without any byte sequence that a reader could take for a line end."""
    return _UNSAFE.sub(_escape, payload)


def _escape(match: "re.Match[bytes]") -> bytes:
    return b"\\u%04x" % ord(match[0].decode())
