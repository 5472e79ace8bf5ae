"""`/v1/sessions/{session_id}/context`, `/search`, `/look-back`, `/timeline`, `/summaries`, `/simulate`: the window,
the messages outside it, and the window under other policies. `/v1/search`: the messages of all sessions."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from app.api import problems
from app.api.direct_route import Call, DirectRoute, HeavyRoute, SessionInPath
from app.api.openapi import READ, WRITE, Cursor, FromSeq, NewestFirst, Order, refusals
from app.api.routes.turns import turn_request
from app.api.schemas import context as schemas
from app.api.schemas.turns import PreviewIn, PreviewOut
from app.domain.figures import CurrentWindow, Found, FoundInSession, FoundPage, TimelineRange, TurnPoint
from app.domain.frozen import replace
from app.domain.stored import StoredSummary
from app.domain.types import LARGEST, SUMMARY_LISTS, JsonObject, MessageId, SummaryId, SummaryItem
from app.services import summaries
from app.services.paging import Page, PageRequest
from app.services.views import context as window
from app.services.views import preview, search, simulation

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["context"], route_class=DirectRoute)
search_router = APIRouter(prefix="/v1/search", tags=["context"], route_class=DirectRoute)
simulate_router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["policies"], route_class=HeavyRoute)

SearchWords = Annotated[str, Query(min_length=1, max_length=1000, description="Words to look for.")]
MostFound = Annotated[int, Query(ge=1, le=50, description="Maximum number of messages.")]
LookBackWords = Annotated[str, Query(max_length=1000, description="Words to look for.")]
Handle = Annotated[str | None, Query(max_length=32, description="Handle of a message: `m12` has `seq` 12.")]
PageNumber = Annotated[
    int | None,
    Query(ge=1, le=1_000_000, description="Page number; defaults to the first, or the one that matches `q`."),
]
DEFAULT_FOUND = 10
_NOTHING_GIVEN = schemas.SimulateIn()
_NO_FOCUS = schemas.SummarizeIn()
Points = Annotated[int, Query(ge=1, le=500, description="Maximum number of groups.")]
ThroughSeq = Annotated[
    int | None, Query(ge=1, le=LARGEST, description="Number of the last turn; defaults to the newest.")
]
Turns = Annotated[int, Query(ge=1, le=500, description="Maximum page size.")]


@router.get("/context", response_model=schemas.WindowOut)
async def get_context(call: Call, session: SessionInPath) -> CurrentWindow:
    """The current window: tokens by region, budget, limit and its source, turns until the next summary."""
    return await window.window_now(call.rt, session)


@router.get("/search", response_model=schemas.FoundOut)
async def search_session(call: Call, session: SessionInPath, q: SearchWords, limit: MostFound = DEFAULT_FOUND) -> Found:
    """The session's messages that contain words of `q`, in the window or not, best match first. Writes nothing but
    an embedding model's usage."""
    return await search.search_session(call.rt, session, q, limit)


@router.get("/look-back", response_model=schemas.LookBackOut)
async def look_back(
    call: Call, session: SessionInPath, q: LookBackWords = "", handle: Handle = None, page: PageNumber = None
) -> FoundPage:
    """Stored messages as a model reads them back: those that match `q`, best first, or the one with the `handle`, page
    by page. With both, the page of that message that has the words. Writes nothing but an embedding model's usage."""
    return await search.look_back(call.rt, session, query=q.strip(), handle=handle, page=page)


@search_router.get("", response_model=schemas.FoundInSessions)
async def search_messages(
    call: Call, q: SearchWords, limit: MostFound = DEFAULT_FOUND, cursor: Cursor = None
) -> Page[FoundInSession]:
    """Messages of all sessions that contain all words of `q`, newest session first, and at most the newest three of
    each session. A short page may not be the last."""
    return await search.search_messages(call.rt, call.tenant_id, q, limit, cursor)


@router.post("/context/preview", response_model=PreviewOut)
async def preview_turn(call: Call, session: SessionInPath, body: PreviewIn) -> preview.Preview:
    """The prompt that the next turn would send, or its refusal, as a 200. Calls no language model, but the
    provider may count the tokens if the alias has `exact_counts`. Writes nothing but an embedding model's usage."""
    request = await call.aside(partial(turn_request, call, body))
    seen = await preview.preview_turn(call.rt, session, request)
    return replace(seen, refusal=seen.refusal and problems.complete(seen.refusal))


@router.get("/timeline", response_model=schemas.TimelinePage)
async def get_timeline(
    call: Call, session: SessionInPath, limit: Turns = 200, cursor: Cursor = None, order: Order = "desc"
) -> Page[TurnPoint]:
    """Turn by turn: tokens by region, budget, thresholds, and what was summarized, pruned or recalled."""
    wanted = PageRequest(limit, cursor, newest_first=order == "desc")
    return await window.read_timeline(call.rt, session, wanted)


@router.get("/timeline/overview", response_model=schemas.OverviewOut)
async def get_overview(
    call: Call, session: SessionInPath, points: Points = 200, from_seq: FromSeq = 1, through_seq: ThroughSeq = None
) -> Page[TimelineRange]:
    """The timeline, or a range of it, as at most `points` groups of turns, oldest first, each with its largest turn."""
    return await window.read_overview(call.rt, session, points=points, first_seq=from_seq, last_seq=through_seq)


@router.get("/summaries", response_model=schemas.SummaryPage)
async def list_summaries(call: Call, session: SessionInPath, wanted: NewestFirst) -> Page[StoredSummary]:
    """The session's summaries, active and past."""
    return await summaries.list_summaries(call.rt, session, wanted)


@router.post("/summaries", status_code=201, response_model=schemas.SummaryOut, responses=refusals(*WRITE, 502, 504))
async def summarize_now(call: Call, session: SessionInPath, body: schemas.SummarizeIn = _NO_FOCUS) -> StoredSummary:
    """Summarizes now what can be summarized, regardless of thresholds."""
    return await summaries.summarize_now(call.rt, session, body.focus)


@router.patch("/summaries/{summary_id}", response_model=schemas.SummaryOut)
async def edit_summary(
    call: Call, session: SessionInPath, summary_id: SummaryId, body: schemas.SummaryPatch
) -> StoredSummary:
    """Stores an edited version of the active summary as the active one. An undo makes the original active again.

    Absent fields do not change; a list is replaced as a whole.
    """
    return await summaries.edit_summary(call.rt, session, summary_id, _changes(body))


@router.post("/summaries/active/undo", response_model=schemas.SummaryOut, responses=refusals(*READ))
async def undo_active_summary(call: Call, session: SessionInPath) -> StoredSummary:
    """Withdraws the summary that is active now, even one that was made meanwhile. Takes no body."""
    return await summaries.undo_summary(call.rt, session, None)


@router.post("/summaries/{summary_id}/undo", response_model=schemas.SummaryOut, responses=refusals(*READ))
async def undo_summary(call: Call, session: SessionInPath, summary_id: SummaryId) -> StoredSummary:
    """Withdraws the active summary: the previous one becomes active again. Takes no body."""
    return await summaries.undo_summary(call.rt, session, summary_id)


def _changes(body: schemas.SummaryPatch) -> summaries.SummaryChanges:
    lists: dict[str, str | tuple[SummaryItem, ...]] = {
        name: tuple(SummaryItem(item.text, tuple(map(MessageId, item.message_ids)), item.kept) for item in items)
        for name in SUMMARY_LISTS
        if (items := getattr(body, name)) is not None
    }
    return lists if body.summary_text is None else lists | {"summary_text": body.summary_text}


@simulate_router.post("/simulate", response_model=schemas.SimulationOut)
async def simulate(call: Call, session: SessionInPath, body: schemas.SimulateIn = _NOTHING_GIVEN) -> JsonObject:
    """Computes the session's turns under other policies and models. Calls no model and writes nothing."""
    given = call.raw_body.get("policies")
    variants = simulation.THRESHOLDS if given is None else tuple(map(simulation.variant_of, given))
    aliases = body.model_aliases or []
    return await simulation.simulate(
        call.rt, session, variants, aliases, most_turns=body.max_turns, most_work=simulation.MOST_WORK
    )
