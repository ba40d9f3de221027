"""What the extra `format` of dimorder-counted would install: a line of JSON in front of some bytes."""

import json

_MARK = b"COUNTED "


def encode(head: dict, body: bytes) -> bytes:
    return _MARK + json.dumps(head).encode() + b"\n" + body


def decode(data: bytes) -> tuple[dict, bytes]:
    """Raises ValueError for what `encode` has not written."""
    head, newline, body = data.partition(b"\n")
    if not head.startswith(_MARK) or not newline:
        raise ValueError(f"{len(data)} bytes that do not begin as a .counted file does")
    return json.loads(head[len(_MARK) :]), body
