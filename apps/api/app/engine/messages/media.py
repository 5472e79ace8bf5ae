"""How many tokens an image, a recording or a file in a message uses, and the line that replaces one that is left out.

Media are never counted by bytes: a 3 MB photograph is about a thousand tokens at most providers, but a million as
base64 text. Images are counted by the model family's rule (`image_rules.py`), recordings by their length, PDFs by
their pages, plain text by its own tokens, other files by a flat figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, TypeAlias, cast

from app.domain.types import Content, ContentPart
from app.engine.messages.media_headers import (
    Size,
    decoded,
    pages_of_pdf,
    seconds_of_mp3,
    seconds_of_wav,
    size_of_base64,
    unbroken,
)

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


def flat_image_tokens(_part: ContentPart) -> int:
    return FLAT_IMAGE_TOKENS


def is_media(part: ContentPart) -> bool:
    """Whether the part is anything but text."""
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
    return size_of_base64(_url_data(inner if isinstance(inner, str) else _fields(inner).get("url"))[1])


def image_detail(part: ContentPart) -> str:
    """The detail that the client requested: `low`, `high`, `original` or `auto`."""
    detail = _fields(part.get("image_url")).get("detail")
    return detail if isinstance(detail, str) else "auto"


def audio_seconds(part: ContentPart) -> float | None:
    """The length of the recording in seconds; None if its header lacks it."""
    data = _fields(part.get("input_audio")).get("data")
    if not isinstance(data, str):
        return None
    data = unbroken(data)
    seconds = seconds_of_wav(data)
    return seconds_of_mp3(data) if seconds is None else seconds


def pdf_pages(part: ContentPart) -> int | None:
    """The number of pages of a file that is a PDF in a `data:` URL; None if it is unknown."""
    kind, data = _file_data(part)
    return pages_of_pdf(data) if kind == "application/pdf" else None


def file_text(part: ContentPart) -> str | None:
    """The text of a file that is plain text in a `data:` URL, which models read as text; None for any other, and for
    what is not base64."""
    kind, data = _file_data(part)
    text = decoded(data) if kind == "text/plain" else b""
    return None if kind != "text/plain" or (data and not text) else text.decode("utf-8", "replace")


def _file_data(part: ContentPart) -> tuple[str, str]:
    """Media type and base64 of a file's content; two empty strings if it is not a `data:` URL in base64."""
    return _url_data(_fields(part.get("file")).get("file_data")) if part.get("type") == "file" else ("", "")


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
            name = _fields(part.get("file")).get("filename")
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


def _fields(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _one_line(name: str) -> str:
    shown = " ".join(name.split())
    return shown if len(shown) <= _SHOWN_NAME_CHARS else shown[: _SHOWN_NAME_CHARS - 1] + "…"
