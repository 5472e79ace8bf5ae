"""What the first bytes of a picture say of its size; nothing is decoded beyond its header.

Formats: PNG (W3C, section 11.2.1 IHDR), JPEG (ITU T.81, annex B, frame headers), GIF (89a specification, logical screen
descriptor), WebP (RFC 9649).
"""

from __future__ import annotations

from app.engine.messages.media_lengths import decoded

Size = tuple[int, int]
"""Width and height in pixels."""

_PREFIX_CHARS = (128, 32_768, 524_288)
"""How much base64 is looked at, in turn: most headers are in the first piece, a JPEG's may follow a thumbnail."""
_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD8)})


def size_of_base64(encoded: str) -> Size | None:
    """The size of the image whose bytes these are in base64; None when its header lacks it."""
    for chars in _PREFIX_CHARS:
        size = size_in_header(decoded(encoded[:chars]))
        if size is not None or len(encoded) <= chars:
            return size
    return None


def size_in_header(head: bytes) -> Size | None:
    """The size that the beginning of an image file states; None when it is cut short, unknown or nought."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR" and len(head) >= 24:
        size = int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    elif head[:6] in {b"GIF87a", b"GIF89a"} and len(head) >= 10:
        size = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        size = _webp_size(head)
    elif head.startswith(b"\xff\xd8"):
        size = _jpeg_size(head)
    else:
        return None
    return size if size is not None and min(size) > 0 else None


def _webp_size(head: bytes) -> Size | None:
    if len(head) < 30:
        return None
    match head[12:16]:
        case b"VP8 ":
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case _:
            return None


def _jpeg_size(head: bytes) -> Size | None:
    """Walks the segments to the first frame header."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _JPEG_BARE_MARKERS:
            at += 2
        elif marker in _JPEG_FRAME_MARKERS:
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        else:
            at += 2 + int.from_bytes(head[at + 2 : at + 4])
    return None
