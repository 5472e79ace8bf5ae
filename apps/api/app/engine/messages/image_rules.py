"""What an image costs each family of models, by the rules their makers publish.

- OpenAI, "Images and vision" (developers.openai.com, guides/images-vision: "Model sizing behavior", "Calculating
  costs"): tiles of 512 px for the 4o, 4.1, o and first 5 series, patches of 32 px times a multiplier for the others.
- Anthropic, "Vision" (platform.claude.com, build-with-claude/vision: "Resolution and token cost"): a token for each
  patch of 28 px, within 1,568 px and 1,568 tokens before Claude 4.7, within 2,576 px and 4,784 tokens from there on.
  Earlier editions of the page gave width x height / 750, about the same but for the rounding to whole patches.
- Google, "Image understanding" and "Understand and count tokens" (ai.google.dev): 258 tokens for each tile, of 768 px
  at most; from Gemini 3 on up to 1,120 an image.

An image over a budget of patches is scaled down by its provider until it fits: it is counted at the whole budget, a few
percent on the high side. An image of unknown size is counted as the dearer of two large ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from app.domain.types import ContentPart
from app.engine.messages.media import ImageTokens, flat_image_tokens, image_detail, image_size
from app.engine.messages.media_headers import Size

_ASSUMED_SIZES: tuple[Size, ...] = ((2048, 2048), (2048, 768))


class SizeRule(Protocol):
    """Tokens by size and detail."""

    def tokens(self, size: Size, detail: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Tiles:
    """OpenAI's tiles: into 2,048 px, the short side to 768 px, then `tile` for each 512 px tile, and `base`."""

    base: int
    tile: int

    def tokens(self, size: Size, detail: str) -> int:
        if detail == "low":
            return self.base
        long_side, short_side = max(size), min(size)
        scale = min(1.0, 2048 / long_side)
        scale = min(scale, 768 / short_side)
        # Not a hair above a whole tile: 768 px scaled to 767.9999 is 768.
        tiles = ceil(round(long_side * scale, 3) / 512) * ceil(round(short_side * scale, 3) / 512)
        return self.base + self.tile * tiles


@dataclass(frozen=True, slots=True)
class Bound:
    """An image is scaled down to this: pixels of its long side, and patches."""

    side: int
    patches: int


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of `patch` pixels, `multiplier` tokens each, within the bound of the detail; `auto` is for the others."""

    patch: int
    multiplier: float
    auto: Bound
    by_detail: Mapping[str, Bound] = field(default_factory=dict[str, Bound])

    def tokens(self, size: Size, detail: str) -> int:
        bound = self.by_detail.get(detail, self.auto)
        scale = min(1.0, bound.side / max(size))
        columns, rows = (ceil(max(1, round(side * scale)) / self.patch) for side in size)
        # Rounded before it is rounded up: 100 x 1.2 is 120.
        return ceil(round(min(columns * rows, bound.patches) * self.multiplier, 6))


@dataclass(frozen=True, slots=True)
class GeminiTiles:
    """Tiles of two thirds of the short side, 256 to 768 px each; one tile for an image within 384 px."""

    def tokens(self, size: Size, detail: str) -> int:  # noqa: ARG002 - its detail is no part of a message
        if max(size) <= 384:
            return 258
        tile = min(768, max(256, int(min(size) / 1.5)))
        return 258 * ceil(size[0] / tile) * ceil(size[1] / tile)


@dataclass(frozen=True, slots=True)
class Flat:
    """The same for every image."""

    each: int

    def tokens(self, size: Size, detail: str) -> int:  # noqa: ARG002 - by no detail and no size
        return self.each


_LOW = Bound(512, 256)
_BOX = Bound(2048, 6144)
_FINE = Bound(2048, 2500)
_WHOLE = Bound(65_535, 30_000)
_GPT_6 = Patches(32, 1.2, _WHOLE, {"low": _LOW, "high": Bound(65_535, 2500)})
_GPT_5_5 = Patches(32, 1.2, Bound(6000, 10_000), {"low": _LOW, "high": _FINE})
_GPT_5_4 = Patches(32, 1.2, _FINE, {"low": _BOX, "original": Bound(6000, 10_000)})
_CLAUDE = Patches(28, 1.0, Bound(1568, 1568))
_CLAUDE_4_7 = Patches(28, 1.0, Bound(2576, 4784))

_BY_NAME: tuple[tuple[re.Pattern[str], SizeRule], ...] = tuple(
    (re.compile(rf"(?:^|[/.:]){pattern}"), rule)
    for pattern, rule in (
        ("gpt-4o-mini", Tiles(2833, 5667)),
        ("gpt-4\\.1-mini", Patches(32, 1.62, _BOX)),
        ("gpt-4\\.1-nano", Patches(32, 2.46, _BOX)),
        ("(?:chat)?gpt-4(?:o|\\.1|\\.5|-turbo|-vision)", Tiles(85, 170)),
        ("gpt-(?:[6-9]|\\d\\d|5\\.(?:[6-9]|\\d\\d))", _GPT_6),
        ("gpt-5\\.5", _GPT_5_5),
        ("gpt-5\\.4", _GPT_5_4),
        ("gpt-5\\.[23]|gpt-5\\.1-codex-mini|gpt-5-codex-mini", Patches(32, 1.2, _BOX)),
        ("gpt-5-mini", Patches(32, 1.2, _BOX)),
        ("gpt-5-nano", Patches(32, 1.5, _BOX)),
        ("gpt-5", Tiles(70, 140)),
        ("o4-mini", Patches(32, 1.72, _BOX)),
        ("o[134](?:$|-)", Tiles(75, 150)),
        ("computer-use-preview", Tiles(65, 129)),
        ("gemini-(?:[3-9]|\\d\\d)", Flat(1120)),
        ("gemini-", GeminiTiles()),
    )
)
_CLAUDE_NAME = re.compile(r"(?:^|[/.:])claude-")
_CLAUDE_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


def image_rule_for(model: str) -> ImageTokens:
    """What an image costs the model of this name; the flat figure for an unknown family.

    Prefixes of gateways (`openai/…`, `us.anthropic.…`) are looked through.
    """
    rule = size_rule_for(model)
    if rule is None:
        return flat_image_tokens

    def image_tokens(part: ContentPart) -> int:
        size, detail = image_size(part), image_detail(part)
        sizes = _ASSUMED_SIZES if size is None else (size,)
        return max(rule.tokens(each, detail) for each in sizes)

    return image_tokens


def size_rule_for(model: str) -> SizeRule | None:
    """The family's rule, or None."""
    name = model.lower()
    if _CLAUDE_NAME.search(name):
        version = _CLAUDE_VERSION.search(name)
        # A name without a version is the newest.
        is_older = version is not None and (int(version[1]), int(version[2] or 0)) < (4, 7)
        return _CLAUDE if is_older else _CLAUDE_4_7
    return next((rule for pattern, rule in _BY_NAME if pattern.search(name)), None)
