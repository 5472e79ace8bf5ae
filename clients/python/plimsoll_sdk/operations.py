"""Every operation of the service, defined once: its parameters, its route, its answer.

Both clients have each of these as a method of the same name, parameters and documentation. Parameters are those of the
service's OpenAPI document; what is left out is the service's own choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from plimsoll_sdk.call import (
    NOT_GIVEN,
    NotGiven,
    Reply,
    Request,
    given,
    operation,
    query,
    reads,
    reads_nothing,
    reads_text,
)
from plimsoll_sdk.models import (
    Audit,
    Found,
    FoundInSession,
    Health,
    ListedModel,
    ListedPin,
    ListedSession,
    ListedTurn,
    LookBackPage,
    Message,
    Models,
    Page,
    Pin,
    Policies,
    Preview,
    Prompt,
    Readiness,
    RegeneratedAnswer,
    Root,
    Session,
    SessionDetail,
    Simulation,
    Summary,
    TimelineRange,
    TimelineTurn,
    Turn,
    TurnAnswer,
    TurnChange,
    Window,
)

Json: TypeAlias = Mapping[str, Any]
Order: TypeAlias = Literal["asc", "desc"]
Content: TypeAlias = str | Sequence[Json]
"""Text, or parts in the OpenAI form: `text`, `image_url`, `input_audio`, `file`."""

_SESSION = "/v1/sessions/{session_id}"
_TURN = f"{_SESSION}/turns/{{turn_id}}"


def _key_header(idempotency_key: str | None) -> dict[str, str]:
    """The header of an idempotency key: the given one, or a new one."""
    return {"Idempotency-Key": idempotency_key or f"client-{uuid4().hex}"}


@operation("POST", "/v1/sessions")
def create_session(
    *,
    model_alias: str | None = None,
    mode: str | None = None,
    agent_role: str | None = None,
    room_goal: str | None = None,
    instructions: str | None = None,
    policy: Json | None = None,
    metadata: Json | None = None,
    limits: Json | None = None,
) -> Request[Session]:
    """Creates a session. All fields are optional."""
    body = given(
        model_alias=model_alias,
        mode=mode,
        agent_role=agent_role,
        room_goal=room_goal,
        instructions=instructions,
        policy=policy,
        metadata=metadata,
        limits=limits,
    )
    return Request(reads(Session), body=body)


@operation("GET", "/v1/sessions", repeatable=True)
def list_sessions(
    *,
    limit: int | None = None,
    cursor: str | None = None,
    q: str | None = None,
    figures: bool | None = None,
    order: Order | None = None,
) -> Request[Page[ListedSession]]:
    """One page of the tenant's sessions, newest first unless `order` is `asc`; `q` selects those with its words,
    `figures` adds window, use and state.

    A page of a search may be short, or empty, and still go on.
    """
    return Request(
        reads(Page[ListedSession]), query=query(limit=limit, cursor=cursor, q=q, figures=figures, order=order)
    )


@operation("GET", _SESSION, repeatable=True)
def get_session(session_id: str) -> Request[SessionDetail]:
    """One session, with its tokens and cost so far."""
    return Request(reads(SessionDetail), {"session_id": session_id})


@operation("PATCH", _SESSION, repeatable=True)
def change_session(
    session_id: str,
    *,
    model_alias: str | NotGiven | None = NOT_GIVEN,
    mode: str | NotGiven | None = NOT_GIVEN,
    agent_role: str | NotGiven | None = NOT_GIVEN,
    room_goal: str | NotGiven | None = NOT_GIVEN,
    instructions: str | NotGiven | None = NOT_GIVEN,
    policy: Json | NotGiven | None = NOT_GIVEN,
    metadata: Json | NotGiven | None = NOT_GIVEN,
    limits: Json | NotGiven | None = NOT_GIVEN,
) -> Request[Session]:
    """Sets the given fields: None removes a value; `policy`, `metadata` and `limits` are replaced whole."""
    fields = {
        "model_alias": model_alias,
        "mode": mode,
        "agent_role": agent_role,
        "room_goal": room_goal,
        "instructions": instructions,
        "policy": policy,
        "metadata": metadata,
        "limits": limits,
    }
    body = {name: value for name, value in fields.items() if value is not NOT_GIVEN}
    return Request(reads(Session), {"session_id": session_id}, body=body)


@operation("DELETE", _SESSION, repeatable=True)
def delete_session(session_id: str) -> Request[None]:
    """Permanently deletes the session with everything in it."""
    return Request(reads_nothing, {"session_id": session_id})


@operation("POST", f"{_SESSION}/fork")
def fork_session(session_id: str, *, through_turn_id: str | None = None) -> Request[Session]:
    """Creates a new session with the same history, through the given turn or the last one that has ended."""
    return Request(reads(Session), {"session_id": session_id}, body=given(through_turn_id=through_turn_id))


@operation("GET", f"{_SESSION}/export", repeatable=True)
def export_session(session_id: str) -> Request[dict[str, Any]]:
    """The whole session as one JSON document, for `import_session`."""
    return Request(reads(dict[str, Any]), {"session_id": session_id})


@operation("POST", "/v1/sessions/import")
def import_session(document: Json) -> Request[Session]:
    """Creates a session from an export, with new ids: completely or not at all."""
    return Request(reads(Session), body=document)


@operation("POST", "/v1/sessions/import")
def import_messages(
    messages: Sequence[Json],
    *,
    model_alias: str | None = None,
    mode: str | None = None,
    agent_role: str | None = None,
    room_goal: str | None = None,
    instructions: str | None = None,
    policy: Json | None = None,
    metadata: Json | None = None,
    limits: Json | None = None,
) -> Request[Session]:
    """Creates a session from existing messages in OpenAI's form: completely or not at all."""
    body = given(
        messages=list(messages),
        model_alias=model_alias,
        mode=mode,
        agent_role=agent_role,
        room_goal=room_goal,
        instructions=instructions,
        policy=policy,
        metadata=metadata,
        limits=limits,
    )
    return Request(reads(Session), body=body)


@operation("POST", f"{_SESSION}/turns")
def post_turn(
    session_id: str,
    content: Content,
    *,
    tools: Sequence[Json] | None = None,
    tool_choice: str | Json | None = None,
    max_output_tokens: int | None = None,
    instructions: str | None = None,
    options: Json | None = None,
    model_alias: str | None = None,
    policy: Json | None = None,
    name: str | None = None,
    said_at: str | None = None,
    recorded_reply: Json | None = None,
    idempotency_key: str | None = None,
) -> Request[TurnAnswer]:
    """Sends a message and returns the answer. Retries do not create another turn.

    `stream_turn` gives the events of the turn instead, and takes a stream that breaks up again where it broke.

    `instructions` are a system layer in the prompts of this turn only. `options` are the model's, by their names in
    chat completions (`temperature`, `response_format` …). `name` is who of several people speaks,
    `said_at` when, in UTC (`2026-05-08T13:56:00Z`), where that is not now.
    `idempotency_key` is made where none is given; give one of your own where the same message may come from another
    process too.
    """
    body = given(
        content=content,
        tools=tools,
        tool_choice=tool_choice,
        max_output_tokens=max_output_tokens,
        instructions=instructions,
        options=options,
        model_alias=model_alias,
        policy=policy,
        name=name,
        said_at=said_at,
        recorded_reply=recorded_reply,
    )
    return Request(reads(TurnAnswer), {"session_id": session_id}, body=body, headers=_key_header(idempotency_key))


@operation("GET", f"{_SESSION}/turns", repeatable=True)
def list_turns(
    session_id: str,
    *,
    limit: int | None = None,
    cursor: str | None = None,
    from_seq: int | None = None,
    order: Order | None = None,
) -> Request[Page[ListedTurn]]:
    """One page of the session's turns from number `from_seq` on, oldest first unless `order` is `desc`."""
    parameters = query(limit=limit, cursor=cursor, from_seq=from_seq, order=order)
    return Request(reads(Page[ListedTurn]), {"session_id": session_id}, parameters)


@operation("GET", _TURN, repeatable=True)
def get_turn(session_id: str, turn_id: str) -> Request[Turn]:
    """One turn."""
    return Request(reads(Turn), {"session_id": session_id, "turn_id": turn_id})


@operation("POST", f"{_TURN}/tool-outputs")
def post_tool_outputs(
    session_id: str,
    turn_id: str,
    outputs: Mapping[str, Content],
    *,
    recorded_reply: Json | None = None,
    idempotency_key: str | None = None,
) -> Request[TurnAnswer]:
    """Answers a turn's open tool calls, all of them, by call id, and returns the answer of its next round;
    `stream_tool_outputs` gives that round's events instead. The outputs are stored once, also with retries;
    `idempotency_key` is made where none is given."""
    listed = [{"tool_call_id": call_id, "content": content} for call_id, content in outputs.items()]
    body = given(outputs=listed, recorded_reply=recorded_reply)
    places = {"session_id": session_id, "turn_id": turn_id}
    return Request(reads(TurnAnswer), places, body=body, headers=_key_header(idempotency_key))


@operation("POST", f"{_TURN}/cancel")
def cancel_turn(session_id: str, turn_id: str) -> Request[Turn]:
    """Ends a turn that runs or waits for tools. Its message is kept."""
    return Request(reads(Turn), {"session_id": session_id, "turn_id": turn_id})


@operation("POST", f"{_TURN}/regenerate")
def regenerate_turn(
    session_id: str,
    turn_id: str,
    *,
    content: Content | None = None,
    tools: Sequence[Json] | None = None,
    tool_choice: str | Json | None = None,
    max_output_tokens: int | None = None,
    instructions: str | None = None,
    options: Json | None = None,
    model_alias: str | None = None,
    policy: Json | None = None,
    recorded_reply: Json | None = None,
) -> Request[RegeneratedAnswer]:
    """Runs the session's last turn again in a fork that ends before it, with the given fields changed."""
    body = given(
        content=content,
        tools=tools,
        tool_choice=tool_choice,
        max_output_tokens=max_output_tokens,
        instructions=instructions,
        options=options,
        model_alias=model_alias,
        policy=policy,
        recorded_reply=recorded_reply,
    )
    return Request(reads(RegeneratedAnswer), {"session_id": session_id, "turn_id": turn_id}, body=body)


@operation("GET", f"{_TURN}/audit", repeatable=True)
def get_audit(
    session_id: str,
    turn_id: str,
    *,
    round: int | None = None,  # noqa: A002 - the parameter's public name
    expand: Literal["actions"] | None = None,
) -> Request[Audit]:
    """How the turn's prompt was built, in the last tool round or in `round`.

    With `expand="actions"` the trim log has each message and turn of its ranges by itself.
    """
    return Request(reads(Audit), {"session_id": session_id, "turn_id": turn_id}, query(round=round, expand=expand))


@operation("GET", f"{_TURN}/prompt", repeatable=True)
def get_prompt(session_id: str, turn_id: str, *, round: int | None = None) -> Request[Prompt]:  # noqa: A002 - the parameter's public name
    """The exact messages and tools that were sent, in the last tool round or in `round`."""
    return Request(reads(Prompt), {"session_id": session_id, "turn_id": turn_id}, query(round=round))


@operation("GET", f"{_SESSION}/context", repeatable=True)
def get_context(session_id: str) -> Request[Window]:
    """The window now: tokens by region, budget, limit and its source, turns to the next summary."""
    return Request(reads(Window), {"session_id": session_id})


@operation("POST", f"{_SESSION}/context/preview", repeatable=True)
def preview_turn(
    session_id: str,
    content: Content,
    *,
    tools: Sequence[Json] | None = None,
    tool_choice: str | Json | None = None,
    max_output_tokens: int | None = None,
    instructions: str | None = None,
    options: Json | None = None,
    model_alias: str | None = None,
    policy: Json | None = None,
    name: str | None = None,
    said_at: str | None = None,
) -> Request[Preview]:
    """The prompt that the next turn would send. Calls no language model; writes only an embedding model's usage."""
    body = given(
        content=content,
        tools=tools,
        tool_choice=tool_choice,
        max_output_tokens=max_output_tokens,
        instructions=instructions,
        options=options,
        model_alias=model_alias,
        policy=policy,
        name=name,
        said_at=said_at,
    )
    return Request(reads(Preview), {"session_id": session_id}, body=body)


@operation("GET", f"{_SESSION}/timeline", repeatable=True)
def get_timeline(
    session_id: str, *, limit: int | None = None, cursor: str | None = None, order: Order | None = None
) -> Request[Page[TimelineTurn]]:
    """The window turn by turn, newest first unless `order` is `asc`: tokens by region, budget, thresholds, summaries,
    prunes and recalls."""
    parameters = query(limit=limit, cursor=cursor, order=order)
    return Request(reads(Page[TimelineTurn]), {"session_id": session_id}, parameters)


@operation("GET", f"{_SESSION}/timeline/overview", repeatable=True)
def get_overview(
    session_id: str, *, points: int | None = None, from_seq: int | None = None, through_seq: int | None = None
) -> Request[Page[TimelineRange]]:
    """The timeline, or a part of it, oldest first, in at most `points` ranges of turns, each with its largest prompt.

    `from_seq` and `through_seq` are the numbers of the first and the last turn. There is only one page.
    """
    parameters = query(points=points, from_seq=from_seq, through_seq=through_seq)
    return Request(reads(Page[TimelineRange]), {"session_id": session_id}, parameters)


@operation("GET", f"{_SESSION}/messages", repeatable=True)
def list_messages(
    session_id: str,
    *,
    limit: int | None = None,
    cursor: str | None = None,
    ids: Sequence[str] | None = None,
    order: Order | None = None,
) -> Request[Page[Message]]:
    """One page of the session's messages, oldest first unless `order` is `desc`; or those of `ids`, at most 100."""
    some = None if ids is None else ",".join(ids)
    parameters = query(limit=limit, cursor=cursor, ids=some, order=order)
    return Request(reads(Page[Message]), {"session_id": session_id}, parameters)


@operation("GET", f"{_SESSION}/search", repeatable=True)
def search_session(session_id: str, q: str, *, limit: int | None = None) -> Request[Found]:
    """The session's messages that match the words of `q`, best first."""
    return Request(reads(Found), {"session_id": session_id}, query(q=q, limit=limit))


@operation("GET", f"{_SESSION}/look-back", repeatable=True)
def look_back(
    session_id: str, *, q: str | None = None, handle: str | None = None, page: int | None = None
) -> Request[LookBackPage]:
    """Stored messages as a model reads them back: those that match `q`, or the one with the `handle` page by page."""
    return Request(reads(LookBackPage), {"session_id": session_id}, query(q=q, handle=handle, page=page))


@operation("GET", "/v1/search", repeatable=True)
def search_messages(q: str, *, limit: int | None = None, cursor: str | None = None) -> Request[Page[FoundInSession]]:
    """One page of the messages of all sessions that have all the words of `q`, newest session first.

    Of each session there are at most the newest three, and never more than `limit`. A page may be short, or empty, and
    still go on.
    """
    return Request(reads(Page[FoundInSession]), query=query(q=q, limit=limit, cursor=cursor))


@operation("GET", f"{_SESSION}/summaries", repeatable=True)
def list_summaries(
    session_id: str, *, limit: int | None = None, cursor: str | None = None, order: Order | None = None
) -> Request[Page[Summary]]:
    """One page of the session's summaries, newest first unless `order` is `asc`, active and past."""
    return Request(reads(Page[Summary]), {"session_id": session_id}, query(limit=limit, cursor=cursor, order=order))


@operation("POST", f"{_SESSION}/summaries")
def summarize_now(session_id: str, *, focus: str | None = None) -> Request[Summary]:
    """Summarizes now what can be summarized, regardless of thresholds; `focus` is kept in most detail."""
    return Request(reads(Summary), {"session_id": session_id}, body=given(focus=focus))


@operation("PATCH", f"{_SESSION}/summaries/{{summary_id}}")
def edit_summary(
    session_id: str,
    summary_id: str,
    *,
    summary_text: str | None = None,
    key_facts: Sequence[Json] | None = None,
    open_questions: Sequence[Json] | None = None,
    decisions: Sequence[Json] | None = None,
    action_items: Sequence[Json] | None = None,
) -> Request[Summary]:
    """Makes a person's version of the active summary the active one; an undo brings the summary back.

    An item is `{"text": …, "message_ids": […]}`; a list that is given replaces the whole list.
    """
    body = given(
        summary_text=summary_text,
        key_facts=key_facts,
        open_questions=open_questions,
        decisions=decisions,
        action_items=action_items,
    )
    return Request(reads(Summary), {"session_id": session_id, "summary_id": summary_id}, body=body)


@operation("POST", f"{_SESSION}/summaries/active/undo")
def undo_active_summary(session_id: str) -> Request[Summary]:
    """Withdraws whichever summary is active now, also one that was made meanwhile."""
    return Request(reads(Summary), {"session_id": session_id})


@operation("POST", f"{_SESSION}/summaries/{{summary_id}}/undo")
def undo_summary(session_id: str, summary_id: str) -> Request[Summary]:
    """Withdraws the active summary: the previous one becomes active again."""
    return Request(reads(Summary), {"session_id": session_id, "summary_id": summary_id})


@operation("GET", f"{_SESSION}/pins", repeatable=True)
def list_pins(
    session_id: str, *, limit: int | None = None, cursor: str | None = None, figures: bool | None = None
) -> Request[Page[ListedPin]]:
    """One page of the session's pins, by name."""
    parameters = query(limit=limit, cursor=cursor, figures=figures)
    return Request(reads(Page[ListedPin]), {"session_id": session_id}, parameters)


@operation("PUT", f"{_SESSION}/pins/{{name}}", repeatable=True)
def put_pin(
    session_id: str, name: str, content: str, *, relevance: float | None = None, source: str | None = None
) -> Request[Pin]:
    """Adds content to every prompt of the session, or replaces the pin of this name."""
    body = given(content=content, relevance=relevance, source=source)
    return Request(reads(Pin), {"session_id": session_id, "name": name}, body=body)


@operation("GET", f"{_SESSION}/pins/{{name}}", repeatable=True)
def get_pin(session_id: str, name: str) -> Request[Pin]:
    """One pin."""
    return Request(reads(Pin), {"session_id": session_id, "name": name})


@operation("DELETE", f"{_SESSION}/pins/{{name}}", repeatable=True)
def delete_pin(session_id: str, name: str) -> Request[None]:
    """Removes the pin."""
    return Request(reads_nothing, {"session_id": session_id, "name": name})


@operation("POST", f"{_SESSION}/simulate", repeatable=True)
def simulate(
    session_id: str,
    *,
    policies: Sequence[str | Json] | None = None,
    model_aliases: Sequence[str] | None = None,
    max_turns: int | None = None,
) -> Request[Simulation]:
    """Computes the session's turns under other policies and models. Calls no model and writes nothing."""
    body = given(policies=policies, model_aliases=model_aliases, max_turns=max_turns)
    return Request(reads(Simulation), {"session_id": session_id}, body=body)


@operation("GET", "/v1/events", repeatable=True)
def list_open_turns() -> Request[Page[TurnChange]]:
    """The tenant's open turns, of all sessions."""
    return Request(reads(Page[TurnChange]))


@operation("GET", "/v1/policies", repeatable=True)
def get_policies() -> Request[Policies]:
    """The presets with all their values, and each field with its range and meaning."""
    return Request(reads(Policies))


@operation("GET", "/v1/models", repeatable=True)
def get_models() -> Request[Models]:
    """The aliases: window and its source, prices where known."""
    return Request(reads(Models))


@operation("GET", "/v1/models/{alias}", repeatable=True)
def get_model(alias: str) -> Request[ListedModel]:
    """One alias, as OpenAI lists a model."""
    return Request(reads(ListedModel), {"alias": alias})


def _completion(reply: Reply) -> tuple[str, dict[str, Any]]:
    return reply.headers.get("x-session-id", ""), reads(dict[str, Any])(reply)


@operation("POST", "/v1/chat/completions")
def complete_chat(
    body: Json,
    *,
    session_id: str | None = None,
    session_new: bool = False,
    idempotency_key: str | None = None,
) -> Request[tuple[str, dict[str, Any]]]:
    """OpenAI's form, without its streams: gives the session's id and the completion. The `openai` package does more.

    `session_id` may also be a name of your own, under which the session is created at first. Without it the session is
    recognized by the messages before the newest ones, or created; `session_new=True` always creates one.
    """
    headers = _key_header(idempotency_key)
    if session_id is not None:
        headers["X-Session-Id"] = session_id
    if session_new:
        headers["X-Session-New"] = "true"
    return Request(_completion, body=body, headers=headers)


@operation("GET", "/", repeatable=True)
def get_root() -> Request[Root]:
    """The service's name, version and addresses."""
    return Request(reads(Root))


@operation("GET", "/healthz", repeatable=True)
def get_health() -> Request[Health]:
    """Whether the process serves."""
    return Request(reads(Health))


@operation("GET", "/readyz", repeatable=True)
def get_readiness() -> Request[Readiness]:
    """Whether the database answers and has this version's schema; also where it does not."""
    return Request(reads(Readiness))


@operation("GET", "/metrics", repeatable=True)
def get_metrics() -> Request[str]:
    """Prometheus text, of all workers."""
    return Request(reads_text)
