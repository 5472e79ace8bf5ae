"""Pictures, recordings, files and tool outputs over whole turns: kept, or replaced by what says so, and logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.domain.types import JsonObject, ToolCall
from app.services.views.turns import get_audit, get_prompt
from tests.engine.pictures import audio, file, image, png, wav
from tests.providers.server import serving
from tests.providers.wires import OPENAI, ModelReply
from tests.services.service import chat, models_toml, ref_of, service
from tests.services.test_tools import TOOLS


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


async def test_older_media_give_way_to_a_line_each_and_the_log_says_so(database_url: str, tmp_path: Path) -> None:
    """A window of 8,192 has an input budget of 5,530, and prunes from 4,977."""
    parts: list[Any] = [audio(wav(30, bytes_per_s=8_000)), file("ledger.pdf"), image(png(1024, 768))]
    async with (
        serving(chat("Noted.")) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summarize_when": "never", "protected_turns": 1, "prune_block_share": 0})
        *_, kept = [
            await at.turn(session.id, [text(f"Here is part {number}."), part]) for number, part in enumerate(parts, 1)
        ]
        assert kept.context["context_trim_log"]["actions"] == []
        assert kept.context["estimated_input_tokens_before"] > 960 + 2000 + 700
        sent = server.seen[-1].json["messages"]
        assert [message["content"][1] for message in sent if message["role"] == "user"] == parts
        done = await at.turn(session.id, "word " * 3000)
        actions = done.context["context_trim_log"]["actions"]
        assert {(action["kind"], action["reason"]) for action in actions} == {("media_marked", "prune_threshold")}
        sent = server.seen[-1].json["messages"]
        assert sent[0]["content"] == [text("Here is part 1."), text("[audio left out: 30 s]")]
        assert sent[2]["content"] == [text("Here is part 2."), text("[file left out: ledger.pdf]")]
        assert [action["count"] for action in actions] == [2]
        prompt = await get_prompt(at.rt, ref_of(session.id), done.turn.id, None)
        assert prompt.messages == sent
        stored = await at.rows("SELECT content FROM messages WHERE role = 'user' ORDER BY seq LIMIT 3")
        assert [row["content"][1] for row in stored] == parts, "what is stored was changed"


async def test_a_tool_output_that_alone_is_over_the_budget_is_shortened_with_a_mark_that_says_by_how_much(
    database_url: str, tmp_path: Path
) -> None:
    called = OPENAI.whole(ModelReply("", "", (ToolCall("a", "look_up", "{}"),)))
    output = "".join(f"row {number}\n" for number in range(4000))
    async with (
        serving(called, chat("Read.")) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        turn = (await at.turn(session.id, "Read the ledger", tools=TOOLS)).turn
        done = await at.outputs(session.id, turn.id, {"a": output})
        (action,) = done.context["context_trim_log"]["actions"]
        assert (action["kind"], action["reason"]) == ("tool_result_shortened", "newest_result_too_large")
        sent = server.seen[-1].json["messages"][-1]["content"]
        assert sent.startswith("row 0\n")
        assert sent.endswith("row 3999\n")
        left_out = int(sent.split("[… ")[1].split(" characters")[0])
        kept = len(sent) - len(f"\n[… {left_out} characters of this tool result left out; look_back handle m3 …]\n")
        assert left_out + kept == len(output)
        audit = await get_audit(at.rt, ref_of(session.id), turn.id, 2)
        assert audit.estimated_input_tokens_after_prune <= audit.input_budget
        await get_prompt(at.rt, ref_of(session.id), turn.id, 2)
