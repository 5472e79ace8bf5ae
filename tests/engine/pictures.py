"""Parts of messages that are no text: headers of real formats, with nothing behind them but padding."""

from __future__ import annotations

import base64
from typing import Any

from app.domain.types import ContentPart


def png(width: int, height: int) -> bytes:
    return (
        b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4) + b"IHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\x06" + _REST
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + _REST


def jpeg(width: int, height: int, *, thumbnail_bytes: int = 0) -> bytes:
    """A JPEG with an Exif segment of that size before its frame header, as a camera writes it."""
    segments = [b"\xff\xe0" + (16).to_bytes(2) + b"JFIF\0".ljust(14, b"\0")]
    while thumbnail_bytes > 0:
        size = min(thumbnail_bytes, 65_533)
        # A thumbnail is a JPEG too: its frame header is not the picture's.
        inner = (b"\xff\xd8\xff\xc0" + (17).to_bytes(2) + b"\x08\0\x10\0\x10").ljust(size, b"\0")[:size]
        segments.append(b"\xff\xe1" + (size + 2).to_bytes(2) + inner)
        thumbnail_bytes -= size
    frame = b"\xff\xff\xc2" + (17).to_bytes(2) + b"\x08" + height.to_bytes(2) + width.to_bytes(2)
    return b"\xff\xd8" + b"".join(segments) + frame + _REST


def webp(kind: str, width: int, height: int) -> bytes:
    """`kind` is `VP8 ` (lossy), `VP8L` (lossless) or `VP8X` (extended)."""
    match kind:
        case "VP8 ":
            body = b"\0\0\0\x9d\x01\x2a" + width.to_bytes(2, "little") + height.to_bytes(2, "little")
        case "VP8L":
            body = b"\x2f" + (width - 1 | height - 1 << 14).to_bytes(4, "little")
        case _:
            body = b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + bytes(4) + b"WEBP" + kind.encode() + bytes(4) + body + _REST


def wav(seconds: float, *, bytes_per_s: int = 32_000) -> bytes:
    fmt = (
        b"\x01\0\x01\0" + (bytes_per_s // 2).to_bytes(4, "little") + bytes_per_s.to_bytes(4, "little") + b"\x02\0\x10\0"
    )
    head = b"RIFF" + b"\xff" * 4 + b"WAVEfmt " + (16).to_bytes(4, "little") + fmt + b"data" + b"\xff" * 4
    return head + bytes(int(seconds * bytes_per_s))


def image(picture: bytes, *, detail: str | None = None, media_type: str = "image/png") -> ContentPart:
    """An image in a `data:` URL."""
    url = f"data:{media_type};base64,{base64.b64encode(picture).decode()}"
    return image_at(url, detail=detail)


def image_at(url: str, *, detail: str | None = None) -> ContentPart:
    inner: dict[str, Any] = {"url": url} | ({"detail": detail} if detail else {})
    return {"type": "image_url", "image_url": inner}


def audio(recording: bytes, form: str = "wav") -> ContentPart:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(recording).decode(), "format": form}}


def file(name: str | None = None) -> ContentPart:
    inner = {"file_data": "data:application/pdf;base64,JVBERi0="} | ({"filename": name} if name else {})
    return {"type": "file", "file": inner}


def file_of(media_type: str, content: bytes) -> ContentPart:
    """A file with its content in a `data:` URL."""
    return {"type": "file", "file": {"file_data": f"data:{media_type};base64,{base64.b64encode(content).decode()}"}}


def mp3(kbit_per_s: int, seconds: int, *, frames: int | None = None) -> bytes:
    """MPEG 1 layer III at 44,100 samples a second; with `frames` a Xing tag that says how many there are."""
    rates = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
    head = bytes((0xFF, 0xFB, rates.index(kbit_per_s) << 4, 0))
    tag = b"" if frames is None else bytes(32) + b"Xing\0\0\0\x01" + frames.to_bytes(4)
    return (head + tag).ljust(kbit_per_s * 125 * seconds, b"\0")


_REST = bytes(range(40))
