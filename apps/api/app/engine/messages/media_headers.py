"""Figures read from media files: the size of an image, the length of a recording, the number of pages of a PDF.

Only the header of an image or a recording is decoded. Formats: PNG (W3C, section 11.2.1 IHDR), JPEG (ITU
T.81, annex B, frame headers), GIF (89a specification, logical screen descriptor), WebP (RFC 9649), WAV (RIFF, `fmt `
chunk), MP3 (ISO 11172-3 and 13818-3, frame header; the Xing tag where the bit rate varies), PDF (ISO 32000-1, 7.7.3.3:
a page is an object of the type Page).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

Size = tuple[int, int]
"""Width and height in pixels."""

_LONGEST_SIDE: Final = 65_535
"""Of a JPEG or GIF, in pixels. No provider reads larger images, so the size of one that states more is unknown."""
_PREFIX_CHARS = (128, 32_768, 524_288)
"""Lengths of base64 to decode, tried in this order: most headers are early, but a JPEG's may follow a thumbnail."""
_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD8)})
_HEAD_CHARS: Final = 128
_WHITE_SPACE: Final = re.compile(r"\s")
_MP3_HEAD_CHARS: Final = 4_096
_SLOWEST_BYTES_PER_S: Final = 1000
"""No speech codec or MP3 has a lower bit rate; the length of a file whose header states a lower one is unknown."""
_KBIT_PER_S: Final = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates of layer III, by the bits of the version: 3 is MPEG 1, 2 is MPEG 2."""
_SAMPLES_PER_S: Final = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000)}
_SAMPLES_PER_FRAME: Final = {3: 1152, 2: 576}
_PDF_PAGE: Final = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")


def size_of_base64(encoded: str) -> Size | None:
    """The size of an image in base64; None if its header lacks it."""
    for chars in _PREFIX_CHARS:
        size = size_in_header(decoded(encoded[:chars]))
        if size is not None or len(encoded) <= chars:
            return size
    return None


def size_in_header(head: bytes) -> Size | None:
    """The size in the beginning of an image file; None if the header is cut off or unknown, or if a side is zero or
    longer than any image's."""
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
    return size if size is not None and min(size) > 0 and max(size) <= _LONGEST_SIDE else None


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
    """The size in the first frame header, found by walking the segments."""
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


def seconds_of_wav(encoded: str) -> float | None:
    """The length in seconds of a WAV file in base64; None if its header lacks it."""
    head = decoded(encoded[:_HEAD_CHARS])
    if len(head) < 36 or head[:4] != b"RIFF" or head[8:16] != b"WAVEfmt ":
        return None
    bytes_per_s = int.from_bytes(head[28:32], "little")
    if bytes_per_s < _SLOWEST_BYTES_PER_S:
        return None
    # The length field of a streamed file is a placeholder, so the size of the file is used.
    return max(0, _size_bytes(encoded) - 44) / bytes_per_s


def seconds_of_mp3(encoded: str) -> float | None:
    """The length in seconds of an MP3 file in base64; None if its first frame lacks it."""
    tag = decoded(encoded[:16])
    begins = 10 + _synchsafe(tag[6:10]) if tag.startswith(b"ID3") else 0
    skipped = begins // 3
    head = decoded(encoded[skipped * 4 : skipped * 4 + _MP3_HEAD_CHARS])[begins - skipped * 3 :]
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:  # eleven bits of sync, layer III
        return None
    version, bit_rate, sample_rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version not in _KBIT_PER_S or not 0 < bit_rate < 15 or sample_rate == 3:
        return None
    tagged = re.search(rb"(?:Xing|Info)\0\0\0[\x01\x03\x05\x07\x09\x0b\x0d\x0f](.{4})", head[:200], re.DOTALL)
    if tagged:
        frames = int.from_bytes(tagged[1])
        seconds = frames * _SAMPLES_PER_FRAME[version] / _SAMPLES_PER_S[version][sample_rate]
        return seconds if seconds * _SLOWEST_BYTES_PER_S <= _size_bytes(encoded) else None
    return max(0, _size_bytes(encoded) - begins) / (_KBIT_PER_S[version][bit_rate] * 125)


def pages_of_pdf(encoded: str) -> int | None:
    """The number of pages of a PDF in base64; None if the pages are in a compressed stream."""
    return len(_PDF_PAGE.findall(decoded(encoded))) or None


def unbroken(encoded: str) -> str:
    """The base64 text without line breaks: MIME and the command `base64` put one behind every 76 characters."""
    return "".join(encoded.split()) if _WHITE_SPACE.search(encoded, 0, _HEAD_CHARS) else encoded


def decoded(encoded: str) -> bytes:
    """The bytes of a prefix of base64 text; empty if it is not base64."""
    try:
        return base64.b64decode(encoded[: len(encoded) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _size_bytes(encoded: str) -> int:
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")


def _synchsafe(four: bytes) -> int:
    """Decode a number that is stored as seven bits in each of four bytes."""
    value = 0
    for byte in four:
        value = value << 7 | byte & 0x7F
    return value
