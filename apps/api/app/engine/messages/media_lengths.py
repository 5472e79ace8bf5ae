"""How long a recording is by its header, and how many pages a PDF has.

Formats: WAV (RIFF, `fmt ` chunk), MP3 (ISO 11172-3 and 13818-3, frame header; the Xing tag where the bit rate varies),
PDF (ISO 32000-1, 7.7.3.3: a page is an object of the type Page).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

_HEAD_CHARS: Final = 128
_MP3_HEAD_CHARS: Final = 4_096
_SLOWEST_WAV_BYTES_PER_S: Final = 1000
"""No codec of speech is slower; a header that claims so is not believed."""
_KBIT_PER_S: Final = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Of layer III, by the bits of the version: 3 is MPEG 1, 2 is MPEG 2."""
_SAMPLES_PER_S: Final = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000)}
_SAMPLES_PER_FRAME: Final = {3: 1152, 2: 576}
_PDF_PAGE: Final = re.compile(rb"/Type\s*/Page(?![a-zA-Z])")


def seconds_of_wav(encoded: str) -> float | None:
    """How long the WAV file is whose bytes these are in base64; None when its header lacks it."""
    head = decoded(encoded[:_HEAD_CHARS])
    if len(head) < 36 or head[:4] != b"RIFF" or head[8:16] != b"WAVEfmt ":
        return None
    bytes_per_s = int.from_bytes(head[28:32], "little")
    if bytes_per_s < _SLOWEST_WAV_BYTES_PER_S:
        return None
    # The length field of a streamed file is a placeholder, so the file's own length is what counts.
    return max(0, _size_bytes(encoded) - 44) / bytes_per_s


def seconds_of_mp3(encoded: str) -> float | None:
    """How long the MP3 file is whose bytes these are in base64; None when its first frame lacks it."""
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
        return frames * _SAMPLES_PER_FRAME[version] / _SAMPLES_PER_S[version][sample_rate]
    return max(0, _size_bytes(encoded) - begins) / (_KBIT_PER_S[version][bit_rate] * 125)


def pages_of_pdf(encoded: str) -> int | None:
    """How many pages the PDF has whose bytes these are in base64; None when they are in a compressed stream."""
    return len(_PDF_PAGE.findall(decoded(encoded))) or None


def decoded(encoded: str) -> bytes:
    """The bytes of a beginning of base64; none when it is no base64."""
    try:
        return base64.b64decode(encoded[: len(encoded) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _size_bytes(encoded: str) -> int:
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")


def _synchsafe(four: bytes) -> int:
    """A number of four times seven bits."""
    value = 0
    for byte in four:
        value = value << 7 | byte & 0x7F
    return value
