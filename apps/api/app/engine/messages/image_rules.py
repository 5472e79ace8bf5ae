"""How many tokens an image uses in each family of models, by the rules that their makers publish.

- OpenAI, "Images and vision" (developers.openai.com, guides/images-vision: "Model sizing behavior", "Calculating
  costs"): tiles of 512 px for the 4o, 4.1, o and first 5 series, patches of 32 px times a multiplier for the others.
- Anthropic, "Vision" (platform.claude.com, build-with-claude/vision: "Resolution and token cost"): a token for each
  patch of 28 px, within 1,568 px and 1,568 tokens before Claude 4.7, within 2,576 px and 4,784 tokens from 4.7 on.
- Google, "Image understanding" and "Understand and count tokens" (ai.google.dev): 258 tokens for each tile of at most
  768 px; from Gemini 3 on up to 1,120 tokens for an image.

An image with more patches than a model's limit is scaled down by its provider until it fits. It is counted at the whole
limit, which is a few percent too high. An image of unknown size is counted as the larger count of two large sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil
from typing import NamedTuple, TypeAlias

from app.domain.types import ContentPart
from app.engine.messages.media import ImageTokens, Size, flat_image_tokens, image_detail, image_size

_ASSUMED_SIZES: tuple[Size, ...] = ((2048, 2048), (2048, 768))


SizeRule: TypeAlias = Callable[[Size, str], int]
"""Returns the tokens of an image of this size and detail."""


def _tiles(base: int, tile: int) -> SizeRule:
    """OpenAI's tiles of 512 px: `base` + `tile` for each, after scaling into 2,048 px and the short side to 768 px."""

    def tokens(size: Size, detail: str) -> int:
        if detail == "low":
            return base
        long_side, short_side = max(size), min(size)
        scale = min(1.0, 2048 / long_side)
        scale = min(scale, 768 / short_side)
        # Rounded so that a rounding error does not add a tile: 512.0000001 px are one tile.
        tiles = ceil(round(long_side * scale, 3) / 512) * ceil(round(short_side * scale, 3) / 512)
        return base + tile * tiles

    return tokens


class _Bound(NamedTuple):
    """An image is scaled down to at most this many pixels of its long side, and this many patches."""

    side: int
    patches: int


def _patches(patch: int, multiplier: float, auto: _Bound, **by_detail: _Bound) -> SizeRule:
    """Patches of `patch` pixels, `multiplier` tokens each, within the bound of the detail; `auto` is the default."""

    def tokens(size: Size, detail: str) -> int:
        bound = by_detail.get(detail, auto)
        scale = min(1.0, bound.side / max(size))
        columns, rows = (ceil(max(1, round(side * scale)) / patch) for side in size)
        # Rounded before it is rounded up, so that 100 x 1.2 is 120 and not 121.
        return ceil(round(min(columns * rows, bound.patches) * multiplier, 6))

    return tokens


def _gemini_tiles(size: Size, _detail: str) -> int:
    """Tiles of two thirds of the short side, 256 to 768 px each; one tile for an image within 384 px."""
    if max(size) <= 384:
        return 258
    tile = min(768, max(256, int(min(size) / 1.5)))
    return 258 * ceil(size[0] / tile) * ceil(size[1] / tile)


def _gemini_3(_size: Size, _detail: str) -> int:
    return 1120


_LOW = _Bound(512, 256)
_BOX = _Bound(2048, 6144)
_FINE = _Bound(2048, 2500)
_LARGE = _Bound(6000, 10_000)
_WHOLE = _Bound(65_535, 30_000)
_CLAUDE = _patches(28, 1.0, _Bound(1568, 1568))
_CLAUDE_4_7 = _patches(28, 1.0, _Bound(2576, 4784))

_BY_NAME: tuple[tuple[re.Pattern[str], SizeRule], ...] = tuple(
    (re.compile(rf"(?:^|[/.:]){pattern}"), rule)
    for pattern, rule in (
        ("gpt-4o-mini", _tiles(2833, 5667)),
        ("gpt-4\\.1-mini", _patches(32, 1.62, _BOX)),
        ("gpt-4\\.1-nano", _patches(32, 2.46, _BOX)),
        ("(?:chat)?gpt-4(?:o|\\.1|\\.5|-turbo|-vision)", _tiles(85, 170)),
        ("gpt-(?:[6-9]|\\d\\d|5\\.(?:[6-9]|\\d\\d))", _patches(32, 1.2, _WHOLE, low=_LOW, high=_Bound(65_535, 2500))),
        ("gpt-5\\.5", _patches(32, 1.2, _LARGE, low=_LOW, high=_FINE)),
        ("gpt-5\\.4", _patches(32, 1.2, _FINE, low=_BOX, original=_LARGE)),
        ("gpt-5\\.[23]|gpt-5\\.1-codex-mini|gpt-5-codex-mini", _patches(32, 1.2, _BOX)),
        ("gpt-5-mini", _patches(32, 1.2, _BOX)),
        ("gpt-5-nano", _patches(32, 1.5, _BOX)),
        ("gpt-5", _tiles(70, 140)),
        ("o4-mini", _patches(32, 1.72, _BOX)),
        ("o[134](?:$|-)", _tiles(75, 150)),
        ("computer-use-preview", _tiles(65, 129)),
        ("gemini-(?:[3-9]|\\d\\d)", _gemini_3),
        ("gemini-", _gemini_tiles),
    )
)
_CLAUDE_NAME = re.compile(r"(?:^|[/.:])claude-")
_CLAUDE_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


def image_rule_for(model: str) -> ImageTokens:
    """The rule that counts an image's tokens for the model of this name, whatever the prefix of a gateway (`openai/…`,
    `us.anthropic.…`); the flat figure for an unknown family."""
    rule = size_rule_for(model)
    if rule is None:
        return flat_image_tokens

    def image_tokens(part: ContentPart) -> int:
        size, detail = image_size(part), image_detail(part)
        sizes = _ASSUMED_SIZES if size is None else (size,)
        return max(rule(each, detail) for each in sizes)

    return image_tokens


def size_rule_for(model: str) -> SizeRule | None:
    """The rule of the model's family, or None if the family is unknown."""
    name = model.lower()
    if _CLAUDE_NAME.search(name):
        version = _CLAUDE_VERSION.search(name)
        # A name without a version is taken for the newest model.
        is_older = version is not None and (int(version[1]), int(version[2] or 0)) < (4, 7)
        return _CLAUDE if is_older else _CLAUDE_4_7
    return next((rule for pattern, rule in _BY_NAME if pattern.search(name)), None)
