"""The bench's streams and loops, as the service and the bare handler take them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import filling, programs
from bench.cases import BARE, SERVICE, loop_case, stream_case
from bench.load import drive
from bench.measuring import add_sessions, take_batch
from bench.mock_provider import PIECES
from bench.targets import Site, drop_databases, make_databases, started
from bench.tokens import fill_tiktoken_cache

_TAKEN = """
SELECT t.status, (SELECT count(*) FROM messages AS m WHERE m.turn_id = t.id) AS messages,
       (SELECT max(round) FROM turn_context_audit AS a WHERE a.turn_id = t.id) AS rounds,
       cardinality(string_to_array(t.assistant_output, ' ')) AS words
  FROM turns AS t WHERE t.session_id = $1 ORDER BY t.seq DESC
"""


@pytest.mark.filterwarnings("ignore:open_binary is deprecated")  # by bpe_openai, when it is imported
@pytest.mark.parametrize("name", [SERVICE, BARE])
async def test_streams_end_with_the_whole_answer_and_loops_go_on_after_the_rounds_before(
    name: str, postgres_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # what the next line sets is gone after the test
    fill_tiktoken_cache(tmp_path)
    site = Site(postgres_server, programs.free_port(), tmp_path)
    programs.write_models_file(site.models_file, site.provider_port)
    await make_databases(site, [name])
    async with programs.mock_provider(site.provider_port, 0.0, tmp_path), started(site, name) as target:
        streams = replace(stream_case(20), sessions=1)
        await add_sessions(target, streams, filling.texts_of(site.conversation, streams.length))
        session_ids = target.sessions[streams.name]
        await drive(target.client, session_ids, target.texts, 1, 1, streams.options)
        newest = (await target.admin.fetch(_TAKEN, session_ids[0]))[0]
        assert (newest["status"], newest["messages"], newest["words"]) == ("completed", 2, PIECES)

        loops = replace(loop_case(3), sessions=1, turns=2)
        load, _ = await take_batch(target, loops, concurrency=1)
        (turn,) = await target.admin.fetch(_TAKEN, target.sessions[loops.name][0])
        assert len(load.answered) == loops.turns
        assert (turn["status"], turn["rounds"], turn["messages"]) == ("awaiting_tools", 5, 2 * 5)
    await drop_databases(site, [name])
