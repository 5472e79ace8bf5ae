"""How many tokens an image, a recording or a file in a message uses, and the line that replaces one that is left out.

Media are never counted by bytes: a 3 MB photograph is about a thousand tokens at most providers, but a million as
base64 text. Images are counted by the model family's rule (`image_rules.py`), recordings by their length, PDFs by
their pages, plain text by its own tokens, other files by a flat figure.

Sizes, lengths and pages are read from the files. Only the header of an image or a recording is decoded. Formats: PNG
(W3C, section 11.2.1 IHDR), JPEG (ITU T.81, annex B, frame headers), GIF (89a specification, logical screen descriptor),
WebP (RFC 9649), WAV (RIFF, `fmt ` chunk), MP3 (ISO 11172-3 and 13818-3, frame header; the Xing tag where the bit rate
varies), PDF (ISO 32000-1, 7.7.3.3: a page is an object of the type Page).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from math import ceil
from typing import Any, Final, TypeAlias

from app.domain.content import fields_of
from app.domain.types import Content, ContentPart

ImageTokens: TypeAlias = Callable[[ContentPart], int]
"""Returns the tokens that an `image_url` part uses in some model."""

FLAT_IMAGE_TOKENS = 1600
"""Tokens of an image if the model family is unknown: more than a large image uses in most known families (OpenAI's
tiles at most 1,445, Gemini 3 1,120, Claude before 4.7 1,568)."""
AUDIO_TOKENS_PER_S = 32
"""Gemini's figure ("Understand and count tokens", ai.google.dev), the highest that is published."""
FLAT_AUDIO_TOKENS = 1000
"""Tokens of a recording whose header lacks its length: about half a minute."""
FLAT_FILE_TOKENS = 2000
PDF_PAGE_TOKENS = 2250
"""The middle of Anthropic's figures for the text of a page, 1,500 to 3,000 ("PDF support", platform.claude.com).
Google's 258 tokens for a page count only its image."""
UNKNOWN_PART_TOKENS = 1000
_SHOWN_NAME_CHARS = 80

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


def flat_image_tokens(_part: ContentPart) -> int:
    return FLAT_IMAGE_TOKENS


def is_media(part: ContentPart) -> bool:
    return part.get("type") != "text"


def has_media(content: Content) -> bool:
    return content is not None and not isinstance(content, str) and any(is_media(part) for part in content)


def media_tokens(part: ContentPart) -> int:
    """Tokens of a part that is not text; those of an image as in an unknown model family."""
    match part.get("type"):
        case "image_url":
            return FLAT_IMAGE_TOKENS
        case "input_audio":
            seconds = audio_seconds(part)
            return FLAT_AUDIO_TOKENS if seconds is None else ceil(seconds * AUDIO_TOKENS_PER_S)
        case "file":
            pages = pdf_pages(part)
            return FLAT_FILE_TOKENS if pages is None else pages * PDF_PAGE_TOKENS
        case _:
            return UNKNOWN_PART_TOKENS


def image_size(part: ContentPart) -> Size | None:
    """Width and height of an image that comes as a `data:` URL; None for any other, which is not fetched."""
    inner = part.get("image_url")
    encoded = _url_data(inner if isinstance(inner, str) else fields_of(inner).get("url"))[1]
    for chars in _PREFIX_CHARS:
        size = size_in_header(decoded(encoded[:chars]))
        if size is not None or len(encoded) <= chars:
            return size
    return None


def image_detail(part: ContentPart) -> str:
    """The detail that the client requested: `low`, `high`, `original` or `auto`."""
    detail = fields_of(part.get("image_url")).get("detail")
    return detail if isinstance(detail, str) else "auto"


def audio_seconds(part: ContentPart) -> float | None:
    """The length of the recording in seconds; None if its header lacks it."""
    data = fields_of(part.get("input_audio")).get("data")
    if not isinstance(data, str):
        return None
    data = unbroken(data)
    seconds = seconds_of_wav(data)
    return seconds_of_mp3(data) if seconds is None else seconds


def pdf_pages(part: ContentPart) -> int | None:
    """The number of pages of a file that is a PDF in a `data:` URL; None if they are in a compressed stream."""
    kind, data = _file_data(part)
    return len(_PDF_PAGE.findall(decoded(data))) or None if kind == "application/pdf" else None


def file_text(part: ContentPart) -> str | None:
    """The text of a plain text file in a `data:` URL, which models read as text; None for any other."""
    kind, data = _file_data(part)
    text = decoded(data) if kind == "text/plain" else b""
    return None if kind != "text/plain" or (data and not text) else text.decode("utf-8", "replace")


def _file_data(part: ContentPart) -> tuple[str, str]:
    """Media type and base64 of a file's content; two empty strings if it is not a `data:` URL in base64."""
    return _url_data(fields_of(part.get("file")).get("file_data")) if part.get("type") == "file" else ("", "")


def _url_data(url: object) -> tuple[str, str]:
    """Media type and base64 of a `data:` URL in base64; two empty strings for anything else."""
    if not isinstance(url, str) or url[:5].lower() != "data:":
        return "", ""
    comma = url.find(",", 0, 256)
    media_type, *parameters = url[5:comma].lower().split(";") if comma > 0 else [""]
    return (media_type, unbroken(url[comma + 1 :])) if parameters[-1:] == ["base64"] else ("", "")


def marker(part: ContentPart) -> str:
    """The line that replaces a part that is left out."""
    match part.get("type"):
        case "image_url":
            size = image_size(part)
            mark = f"image left out: {size[0]}x{size[1]}" if size else "image left out"
        case "input_audio":
            seconds = audio_seconds(part)
            mark = "audio left out" if seconds is None else f"audio left out: {round(seconds)} s"
        case "file":
            name = fields_of(part.get("file")).get("filename")
            mark = f"file left out: {_one_line(name)}" if isinstance(name, str) and name.strip() else "file left out"
        case kind:
            mark = f"{_one_line(str(kind))} left out"
    return f"[{mark}]"


def marked_parts(content: Content) -> list[dict[str, Any]]:
    """The parts of a content, in which a line of text replaces each part that is not text."""
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content or ""}]
    return [{"type": "text", "text": marker(part)} if is_media(part) else dict(part) for part in content]


def marked_text(content: Content) -> str:
    """A content as one text, in which such a line replaces each part that is not text."""
    return "\n".join(str(part.get("text", "")) for part in marked_parts(content))


def _one_line(name: str) -> str:
    shown = " ".join(name.split())
    return shown if len(shown) <= _SHOWN_NAME_CHARS else shown[: _SHOWN_NAME_CHARS - 1] + "…"


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
    # The tag's size is stored as seven bits in each of four bytes.
    size = sum((byte & 0x7F) << bits for byte, bits in zip(tag[6:10], (21, 14, 7, 0), strict=False))
    begins = 10 + size if tag.startswith(b"ID3") else 0
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
