"""Stand in for the package that the extra `format` of dimorder-toy installs: a line of JSON before bytes."""

import json


def encode(head: dict, body: bytes) -> bytes:
    return b"TOYTOYS " + json.dumps(head).encode() + b"\n" + body


def decode(data: bytes) -> tuple[dict, bytes]:
    """Raises ValueError for what `encode` has not written."""
    head, newline, body = data.partition(b"\n")
    if not head.startswith(b"TOYTOYS ") or not newline:
        raise ValueError(f"{len(data)} bytes that do not begin as a .toy file does")
    return json.loads(head[8:]), body
