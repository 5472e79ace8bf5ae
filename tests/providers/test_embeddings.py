"""Vectors from an endpoint `/embeddings` on a real socket: what is asked for, and every answer that is none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from app.domain.errors import ProviderDown, ProviderError, ProviderRateLimited, ProviderTimeout
from app.providers.base import Embedded, Endpoint
from app.providers.catalogue_file import ModelEntry
from app.providers.openai import OpenAIProvider
from tests.providers.server import Answer, Raw, Reset, Step, Stream, serving


async def _embedded(step: Step, *texts: str, timeout_s: float = 60.0, **fields: Any) -> tuple[Embedded, Any]:
    """What the answer gives for the texts, and the request."""
    async with serving(step) as server:
        entry = ModelEntry(provider="openai", model="test-embedding", base_url=server.base_url, **fields)
        provider = OpenAIProvider(Endpoint("vectors", entry, "key-1"), now=lambda: datetime.now(UTC))
        try:
            return await provider.embed(texts, timeout_s=timeout_s), server.seen[0]
        finally:
            await provider.aclose()


def _rows(*rows: Any, **members: Any) -> Answer:
    return Answer({"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)], **members})


async def test_vectors_come_in_the_order_of_the_texts_with_what_was_used() -> None:
    data = [{"index": 1, "embedding": [0, 2.5]}, {"index": 0, "embedding": [1.0, -1.0]}]
    step = Answer({"data": data, "usage": {"prompt_tokens": 9, "total_tokens": 9}})
    found, seen = await _embedded(step, "One", "Two", parameters={"dimensions": 2})
    assert found.vectors.tolist() == [[1.0, -1.0], [0.0, 2.5]]
    assert found.prompt_tokens == 9
    assert (seen.path, seen.headers["authorization"]) == ("/v1/embeddings", "Bearer key-1")
    sent = {"model": "test-embedding", "input": ["One", "Two"], "encoding_format": "float", "dimensions": 2}
    assert seen.json == sent


async def test_an_answer_without_usage_and_indexes_is_read_in_its_order() -> None:
    found, _ = await _embedded(Answer({"data": [{"embedding": [1]}, {"embedding": [2]}]}), "One", "Two")
    assert (found.vectors.tolist(), found.prompt_tokens) == ([[1.0], [2.0]], None)


async def test_non_finite_numbers_of_an_embedding_are_passed_on() -> None:
    found, _ = await _embedded(Answer(b'{"data": [{"index": 0, "embedding": [NaN, 1e300, 1.0]}]}'), "One")
    assert not np.isfinite(found.vectors[0][:2]).any()


@pytest.mark.parametrize(
    "step",
    [
        _rows([1.0]),
        _rows([1.0], [1.0], [1.0]),
        _rows([1.0], [1.0, 2.0]),
        _rows([], []),
        _rows([0.5] * 4097, [0.5] * 4097),
        _rows(["1.0"], ["2.0"]),
        _rows([[1.0]], [[2.0]]),
        _rows([True], [False]),
        _rows([10**400], [1]),
        _rows(None, None),
        Answer({"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}),
        Answer({"data": [{"index": "0", "embedding": [1.0]}, {"index": 7, "embedding": [1.0]}]}),
        Answer({"data": [1, "x"]}),
        Answer([]),
        Answer(b"no JSON"),
        Answer(b"[" * 100_000),
        Answer(json.dumps({"data": [[0.0] * 200_000]}).encode()),
        Stream([b" " * 65_536] * 100, ending="open", content_type="application/json"),
        Raw(b"no HTTP"),
        Reset(),
        Answer(status=500),
    ],
)
async def test_an_answer_that_is_no_vectors_is_an_error_of_the_provider(step: Step) -> None:
    with pytest.raises(ProviderDown):
        await _embedded(step, "One", "Two")


async def test_a_refusal_and_silence_are_errors_of_their_own() -> None:
    with pytest.raises(ProviderRateLimited):
        await _embedded(Answer({"error": {"message": "Slow down."}}, status=429), "One")
    with pytest.raises(ProviderTimeout):
        await _embedded(Answer(_rows([1.0]).body, after=lambda: False), "One", timeout_s=0.2)


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="the extra `embeddings` is not installed")
async def test_the_local_model_puts_near_each_other_what_means_the_same() -> None:
    from app.providers.local_embeddings import LocalEmbeddings  # noqa: PLC0415 - of the extra

    local = LocalEmbeddings()
    texts = (
        "My sister keeps bees.",
        "A sibling of mine is an apiarist.",
        "The invoice is number 4711.",
        "\ud800 " * 999,
    )
    found = await local.embed(texts, timeout_s=60)
    again = await local.embed(texts[:1], timeout_s=60)
    await local.aclose()
    sister, sibling, invoice, _ = found.vectors / np.linalg.norm(found.vectors, axis=1, keepdims=True)
    assert found.vectors.shape == (4, 384)
    assert np.array_equal(again.vectors[0], found.vectors[0]), "whatever else is asked for beside it"
    assert sister @ sibling > 0.4 > sister @ invoice
    with pytest.raises(ProviderError):
        await LocalEmbeddings().embed(texts * 50, timeout_s=0)
