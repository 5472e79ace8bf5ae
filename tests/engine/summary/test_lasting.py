"""What a model may not forget: the user's demands, exact values and open tasks outlive its summaries within the cap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.types import SUMMARY_LISTS, SummaryBody, SummaryItem, Turn
from app.engine.summary.block import render_summary
from app.engine.summary.extractive import fallback_summary, keep_lasting
from app.engine.summary.fold import Fold
from tests.engine.histories import History, estimate

_PLANTED = (
    "Never write to the table ledger_entry.",
    "Always answer in British English.",
    "Do not book anything before 11 AM.",
    "The restore command is `pg_restore -j 4 -d ledger`.",
    "Our staging host is db-7.example.org.",
    "The case number is BA-2207-44.",
    "Only use the card that ends in 4471.",
    "The config file is /etc/harbour/cranes.toml.",
    "Please remind me to renew the certificate of the gateway.",
)
_FORGETFUL = SummaryBody("The user and the assistant talked about several things.")


def fold_of(history: History, *texts: str, previous: SummaryBody | None = None, cap_tokens: int = 400) -> Fold:
    """A fold of a turn for each of the texts, as the user's."""
    turns = tuple(spoken(history.turn(("assistant", 20, 1)), text) for text in texts)
    summary = history.summary(previous) if previous else None
    return Fold("turn_count", turns, (), summary, 100, 10_000, cap_tokens)


def spoken(turn: Turn, text: str) -> Turn:
    """The turn with this text as the user's."""
    first, *others = turn.messages
    return replace(turn, messages=(replace(first, content=text), *others))


def texts_of(body: SummaryBody, *, kept: bool | None = None) -> list[str]:
    items = [item for name in SUMMARY_LISTS for item in getattr(body, name)]
    return [item.text for item in items if kept is None or item.kept == kept]


def test_lasting_statements_are_kept_with_citations_when_the_model_leaves_them_out() -> None:
    history = History()
    fold = fold_of(history, *_PLANTED)
    said_in = {text: turn.messages[0].id for text, turn in zip(_PLANTED, fold.turns, strict=True)}
    body = _FORGETFUL
    for number in range(6):
        body = keep_lasting(_FORGETFUL, fold, estimate)
        assert estimate(render_summary(body)) <= fold.cap_tokens
        fold = fold_of(history, f"We talked about boat {number} and the weather at sea.", previous=body)
    assert set(texts_of(body, kept=True)) == set(_PLANTED)
    cited = {item.text: item.message_ids for name in SUMMARY_LISTS for item in getattr(body, name)}
    assert cited == {text: (said_in[text],) for text in _PLANTED}


def test_a_summary_that_keeps_its_items_stays_byte_for_byte_as_the_model_wrote_it() -> None:
    history = History()
    fold = fold_of(history, *_PLANTED)
    ids = (fold.messages[0].id,)
    in_other_words = (
        "The user forbids: never write into table ledger_entry",
        "Answers are always to be in British English",
        "Book nothing before 11 AM: it must not be done",
        "Restoring: the command is `pg_restore -j 4 -d ledger`",
        "Host for staging: db-7.example.org",
        "Case number BA-2207-44",
        "Only the card that ends in 4471 may be used",
        "Config file: /etc/harbour/cranes.toml",
        "Remind the user to renew the gateway certificate",
    )
    whole = SummaryBody("A record.", key_facts=tuple(SummaryItem(text, ids) for text in in_other_words))
    assert keep_lasting(whole, fold, estimate) is whole


@pytest.mark.parametrize(
    ("before", "later", "stands"),
    [
        ("Our staging host is db-7.example.org.", "Our staging host is db-9.example.org.", "db-9.example.org"),
        ("The port is 8443.", "The port is now 9443.", "9443"),
        ("The port is 8443.", "We changed the port to 9443.", "9443"),
        ("My email is bo@old.org.", "Sorry, my email is now bo@new.org.", "bo@new.org"),
        ("The config is at /etc/a/b.toml.", "The config has moved to /srv/c/d.toml.", "/srv/c/d.toml"),
        ("Never write to the table ledger_entry.", "You may write to the table ledger_entry again now.", ""),
        ("Please remind me to book a berth in Bergen.", "The berth in Bergen is booked since March 3.", ""),
        (
            "Remind me to renew the certificate of the gateway, not of the proxy.",
            "The certificate of the gateway is done.",
            "",
        ),
        ("Always answer in French.", "You must not answer in French any more.", "must not answer"),
        ("Always answer in French.", "From now on always answer in German.", "German"),
        ("Always answer in French.", "We sailed to Oslo for a week.", "French"),
        ("Make sure every invoice names the berth.", "We sailed to Oslo for a week.", "berth"),
        (
            "The staging host of the harbour ledger is db-7.example.org.",
            "The staging host of the harbour ledger is db-9.example.org today.",
            "db-9.example.org",
        ),
    ],
)
def test_a_lasting_statement_is_kept_until_it_is_replaced_lifted_or_done(before: str, later: str, stands: str) -> None:
    history = History()
    first = keep_lasting(_FORGETFUL, fold_of(history, before), estimate)
    assert texts_of(first, kept=True) == [before]
    for second in (
        keep_lasting(_FORGETFUL, fold_of(history, later, previous=first), estimate),
        keep_lasting(_FORGETFUL, fold_of(history, before, later), estimate),
    ):
        kept = texts_of(second, kept=True)
        assert len(kept) == bool(stands)
        assert all(stands in text for text in kept)


@pytest.mark.parametrize(
    ("before", "later"),
    [
        ("Please remind me to book a berth in Bergen.", "Is the berth in Bergen booked yet?"),
        ("Please remind me to book a berth in Bergen.", "Could you see if the berth in Bergen is booked?"),
        ("Please remind me to book a berth in Bergen.", "Can you tell me whether the berth in Bergen is booked?"),
        ("Please remind me to book a berth in Bergen.", "We already book a berth in Bergen each May."),
        ("Please remind me to book a berth in Bergen.", "The berth in Bergen is not booked yet."),
        ("Please remind me to book a berth in Bergen.", "I haven’t booked the berth in Bergen."),
        ("Please remind me to book a berth in Bergen.", "The berth in Bergen will be booked tomorrow."),
        ("Please remind me to book a berth in Bergen.", "Once the berth in Bergen is booked, we will sail."),
        ("Never write to the table ledger_entry.", "May I write to the table ledger_entry again?"),
        ("Never write to the table ledger_entry.", "You may not write to the table ledger_entry again."),
        ("Never write to the table ledger_entry.", "You may no longer write to the table ledger_entry."),
        ("Never write to the table ledger_entry.", "We write to the table ledger_entry more than once."),
        ("The port is 8443.", "Is the port 9443?"),
        ("The port is 8443.", "Now the port was 80."),
    ],
)
def test_a_question_a_condition_and_what_is_not_so_close_nothing(before: str, later: str) -> None:
    """The statement was lost from the next summary, as if the question had been its answer."""
    history = History()
    first = keep_lasting(_FORGETFUL, fold_of(history, before), estimate)
    for fold in (fold_of(history, later, previous=first), fold_of(history, before, later)):
        assert before in texts_of(keep_lasting(_FORGETFUL, fold, estimate), kept=True)
    extract = fallback_summary(fold_of(history, later, previous=first), estimate)
    assert extract is not None
    assert before in texts_of(extract)


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        (
            "Never write to the table ledger_entry.",
            "You may write to the table ledger_entry again now, it is no longer locked.",
        ),
        ("The port is 8443.", "The port is 9443."),
    ],
)
def test_an_assistant_lifts_no_demand_of_the_user_and_replaces_no_value(before: str, answer: str) -> None:
    history = History()
    first = keep_lasting(_FORGETFUL, fold_of(history, before), estimate)
    question = "Do we run `pg_restore -j 4` for the ledger?"  # while one waits, what assistants say may close something
    asked = SummaryItem(question, (fold_of(history, "So.").messages[0].id,))
    fold = fold_of(history, "Go on.", previous=replace(first, open_questions=(asked,)))
    user, reply = fold.turns[0].messages
    turn = replace(fold.turns[0], messages=(user, replace(reply, content=answer)))
    assert before in texts_of(keep_lasting(_FORGETFUL, replace(fold, turns=(turn,)), estimate), kept=True)


@pytest.mark.parametrize(
    "later",
    [
        "You may open the table ledger_entry again.",
        "Since the crew never has time for it in winter, Ines may take the old boat out to write letters again.",
        "Instead of the old tariff, both pilots write what they load into the table beside the desk of ledger_entry.",
    ],
)
def test_what_is_allowed_again_lifts_only_what_forbade_it(later: str) -> None:
    history = History()
    first = keep_lasting(_FORGETFUL, fold_of(history, _PLANTED[0]), estimate)
    body = keep_lasting(_FORGETFUL, fold_of(history, later, previous=first), estimate)
    assert _PLANTED[0] in texts_of(body, kept=True)


@pytest.mark.parametrize(
    ("text", "unanswered", "answered"),
    [
        ("I will book a berth in Bergen next week.", False, False),  # a plan of the user's own
        ("Who needs to renew the certificate of the gateway?", False, False),
        ("Can you please answer in French from now on?", True, False),
    ],
)
def test_a_plan_of_the_users_own_is_no_task_and_a_demand_in_a_question_holds_until_its_answer(
    text: str, unanswered: bool, answered: bool
) -> None:
    fold = fold_of(History(), text)
    open_turn = replace(fold.turns[0], messages=fold.turns[0].messages[:1])
    for turn, is_kept in ((open_turn, unanswered), (fold.turns[0], answered)):
        kept = texts_of(keep_lasting(_FORGETFUL, replace(fold, turns=(turn,)), estimate), kept=True)
        assert kept == ([text] if is_kept else [])


def test_what_an_assistant_repeats_takes_the_place_of_no_demand_of_the_user() -> None:
    fold = fold_of(History(), _PLANTED[1])
    user, reply = fold.turns[0].messages
    turn = replace(fold.turns[0], messages=(user, replace(reply, content=f"From now on I {_PLANTED[1].lower()}")))
    extract = fallback_summary(replace(fold, turns=(turn,)), estimate)
    assert extract is not None
    assert _PLANTED[1] in texts_of(extract)


def test_a_model_may_give_another_value_in_place_of_one_of_the_previous_summary() -> None:
    history = History()
    ids = (fold_of(history, "So.").messages[0].id,)
    host = "The staging host of the harbour ledger is db-7.example.org."
    fold = fold_of(history, "Go on.", previous=SummaryBody("A record.", key_facts=(SummaryItem(host, ids, True),)))
    newer = SummaryBody("A record.", key_facts=(SummaryItem(host.replace("db-7", "db-9"), ids),))
    assert keep_lasting(newer, fold, estimate) is newer


def test_a_decision_of_the_previous_summary_that_states_something_is_kept() -> None:
    history = History()
    ids = (fold_of(history, "So.").messages[0].id,)
    decided = "We decided to cut over on 14 March."
    agreed = ("We agreed!", "So we have decided to sail on 14 March, too.", "We decided to go on like this.")
    decisions = tuple(SummaryItem(text, ids) for text in (decided, *agreed))
    fold = fold_of(history, "We sailed to Oslo for a week.", previous=SummaryBody("A record.", decisions=decisions))
    assert texts_of(keep_lasting(_FORGETFUL, fold, estimate), kept=True) == [decided]


def test_a_command_replaces_what_forbade_the_same() -> None:
    fold = fold_of(History(), "Never push to main.", "Always push to main.")
    assert texts_of(keep_lasting(_FORGETFUL, fold, estimate), kept=True) == ["Always push to main."]


def test_a_demand_in_the_form_of_a_question_lifts_what_was_forbidden() -> None:
    history = History()
    first = keep_lasting(_FORGETFUL, fold_of(history, _PLANTED[0]), estimate)
    asked = fold_of(history, "Can you write to the table ledger_entry again from now on?", previous=first)
    assert _PLANTED[0] not in texts_of(keep_lasting(_FORGETFUL, asked, estimate))


@pytest.mark.parametrize("on", ["", "on "])
def test_a_question_about_a_value_does_not_replace_it_in_a_summary_without_a_model(on: str) -> None:
    value = "The staging host of the harbour project is db-7.example.org."
    asked = f"Is the staging host of the harbour project {on}db-9.example.org?"
    fold = fold_of(History(), value, asked)
    unanswered = replace(fold.turns[1], messages=fold.turns[1].messages[:1])
    extract = fallback_summary(replace(fold, turns=(fold.turns[0], unanswered)), estimate)
    assert extract is not None
    assert value in texts_of(extract)


@pytest.mark.parametrize(
    "rules",
    [
        ("Never push to main.", "Never push to release."),
        ("Never write to the table ledger_entry.", "Never write to the table ledger_archive."),
        ("You must not touch pump 7.", "You must not touch pump 12."),
        ("Do not call Anna before 9 AM.", "Do not call Ben before 9 AM."),
        ("Never deploy on Fridays.", "Never deploy on Sundays.", "Never deploy on holidays."),
        (
            "Never ever book a hotel in the city of Bergen.",
            "Please never ever book a hotel in the city of Oslo.",
            "Never ever book a hotel in the city of Tromso, please.",
        ),
    ],
)
def test_what_the_user_forbids_stands_beside_what_was_forbidden_in_the_same_words_of_something_else(
    rules: tuple[str, ...],
) -> None:
    """The newer one was taken for a new version of the older, which was lost."""
    history, body = History(), _FORGETFUL
    for text in (*rules, "We sailed to Oslo for a week."):
        body = keep_lasting(_FORGETFUL, fold_of(history, text, previous=body), estimate)
    assert set(texts_of(body, kept=True)) == set(rules)
    assert set(texts_of(keep_lasting(_FORGETFUL, fold_of(history, *rules), estimate), kept=True)) == set(rules)
    newest = SummaryBody("A record.", key_facts=(SummaryItem(rules[-1], (fold_of(history, "So.").messages[0].id,)),))
    assert set(texts_of(keep_lasting(newest, fold_of(history, *rules), estimate), kept=True)) == set(rules[:-1])
    extract = fallback_summary(fold_of(history, *rules), estimate)
    assert extract is not None
    assert set(texts_of(extract)) >= set(rules)


@pytest.mark.parametrize(
    "statements",
    [
        (
            "The ticket for the broken lamp in the hall on the second floor is OPS-4711.",
            "The ticket for the broken lamp in the hall on the third floor is OPS-4712.",
        ),
        (
            "Run the tests of the api with `make test-api` before each commit to the main branch.",
            "Run the tests of the web with `make test-web` before each commit to the main branch.",
        ),
        ("Remind me to call Anna about the invoice.", "Remind me to call Bert about the invoice."),
        (
            "Please remind me to send the invoice 118 to Anna before the end of March.",
            "Please remind me to send the invoice 119 to Bert before the end of March.",
        ),
    ],
)
def test_values_of_different_things_and_different_tasks_are_kept_although_their_words_are_nearly_the_same(
    statements: tuple[str, str],
) -> None:
    """The older one was lost, as if the newer one had replaced it."""
    history, body = History(), _FORGETFUL
    for text in (*statements, "We sailed to Oslo for a week."):
        body = keep_lasting(_FORGETFUL, fold_of(history, text, previous=body), estimate)
    assert set(texts_of(body, kept=True)) == set(statements)
    assert set(texts_of(keep_lasting(_FORGETFUL, fold_of(history, *statements), estimate))) == set(statements)
    ids = (fold_of(history, "So.").messages[0].id,)
    newer = SummaryBody("A record.", action_items=(SummaryItem(statements[1], ids),))
    assert texts_of(keep_lasting(newer, fold_of(history, *statements), estimate), kept=True) == [statements[0]]
    previous = None
    for texts in (statements, statements[:1], statements[1:]):
        extract = fallback_summary(fold_of(history, *texts, previous=previous), estimate)
        assert extract is not None
        assert set(texts_of(extract)) >= set(statements)
        previous = extract


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (
            "Always answer in French, whatever language I write to you in.",
            "Always answer in German, whatever language I write to you in.",
        ),
        (
            "The staging host is https://a.example.org/api for all of us here.",
            "The staging host is https://b.example.org/api for all of us here.",
        ),
        (
            "Our staging host is https://a.example.org/api for all of us here.",
            "Our newest staging host is https://b.example.org/api for all of us here.",
        ),
        (
            "Run the tests of the api with `make test-api` before each commit to the main branch.",
            "Run the tests of the api with `make check-api` before each commit to the main branch.",
        ),
        ("Never use tabs in the code of the api.", "Never use tabs in the code of the api or docs."),
    ],
)
def test_a_summary_without_a_model_has_what_replaced_a_statement_and_not_what_was_replaced(
    older: str, newer: str
) -> None:
    """It had the older one, which cited the newer one's message as well."""
    history = History()
    for fold in (
        fold_of(history, older, newer),
        fold_of(history, newer, previous=fallback_summary(fold_of(history, older), estimate)),
    ):
        extract = fallback_summary(fold, estimate)
        assert extract is not None
        assert newer in texts_of(extract)
        assert older not in texts_of(extract)


def test_an_assistants_message_closes_a_task_or_a_question_of_the_previous_summary() -> None:
    history = History()
    task, question = "Please remind me to book a berth in Bergen.", "Do we run `pg_restore -j 4` for the ledger?"
    cited = (history.turn(("assistant", 20, 1)).messages[0].id,)
    items = {"action_items": (SummaryItem(task, cited),), "open_questions": (SummaryItem(question, cited),)}
    fold = fold_of(history, "We sailed to Oslo for a week.", previous=SummaryBody("A record.", **items))
    asked, reply = fold.turns[0].messages

    def kept_after(answer: str) -> set[str]:
        turn = replace(fold.turns[0], messages=(asked, replace(reply, content=answer)))
        return set(texts_of(keep_lasting(_FORGETFUL, replace(fold, turns=(turn,)), estimate), kept=True))

    assert kept_after("That sounds like a lovely week.") == {task, question}
    assert kept_after("The berth in Bergen is booked.") == {question}
    assert kept_after("The berth in Bergen costs 40 a night.") == {task, question}
    assert kept_after("For the ledger it needs one more flag.") == {task}
    assert kept_after("Which flags do you use for the ledger?") == {task, question}


@pytest.mark.parametrize("listed_as", SUMMARY_LISTS)
def test_what_the_user_forbids_is_not_closed_as_a_task_in_whichever_list_a_model_put_it(listed_as: str) -> None:
    history = History()
    cited = (history.turn(("assistant", 20, 1)).messages[0].id,)
    before = SummaryBody("A record.", **{listed_as: (SummaryItem(_PLANTED[0], cited),)})
    fold = fold_of(history, "We sailed to Oslo for a week.", previous=before)
    asked, reply = fold.turns[0].messages
    turn = replace(fold.turns[0], messages=(asked, replace(reply, content="The write to table ledger_copy is done.")))
    assert texts_of(keep_lasting(_FORGETFUL, replace(fold, turns=(turn,)), estimate), kept=True) == [_PLANTED[0]]
    lifted = fold_of(history, "You may write to the table ledger_entry again now.", previous=before)
    assert texts_of(keep_lasting(_FORGETFUL, lifted, estimate), kept=True) == []


def test_a_demand_that_a_model_listed_as_a_task_is_closed_when_it_is_done() -> None:
    history = History()
    demand = SummaryItem("Make sure the berth in Bergen is booked.", (history.turn().messages[0].id,))
    before = SummaryBody("A record.", action_items=(demand,))
    fold = fold_of(history, "We sailed to Oslo for a week.", previous=before)
    asked, reply = fold.turns[0].messages
    assert texts_of(keep_lasting(_FORGETFUL, fold, estimate), kept=True) == [demand.text]
    turn = replace(fold.turns[0], messages=(asked, replace(reply, content="The berth in Bergen is booked.")))
    assert texts_of(keep_lasting(_FORGETFUL, replace(fold, turns=(turn,)), estimate), kept=True) == []


@pytest.mark.parametrize(
    ("statement", "item", "cites_it", "covers"),
    [
        ("Our staging host for the harbour is db-7.example.org.", "Staging: db-7.example.org", True, True),
        ("Our staging host for the harbour is db-7.example.org.", "Staging: db-7.example.org", False, False),
        (
            "The staging host of the harbour ledger is db-7.example.org.",
            "The staging host of the harbour ledger is db-9.example.org.",
            True,
            False,
        ),
        (
            "Run the tests of the api with `make check` before each commit.",
            "Run the tests of the api with `make test` before each commit.",
            True,
            False,
        ),
    ],
)
def test_an_item_covers_a_statement_whose_value_it_has_if_it_cites_it_in_fewer_of_its_words(
    statement: str, item: str, cites_it: bool, covers: bool
) -> None:
    history = History()
    fold = fold_of(history, statement)
    cited = (fold.messages[0] if cites_it else history.turn().messages[0]).id
    body = SummaryBody("A record.", key_facts=(SummaryItem(item, (cited,)),))
    assert texts_of(keep_lasting(body, fold, estimate), kept=True) == ([] if covers else [statement])


def test_another_value_in_other_words_does_not_take_the_place_of_one_of_the_previous_summary() -> None:
    history = History()
    ids = (history.turn().messages[0].id,)
    before = SummaryItem("Our staging host is db-7.example.org.", ids, True)
    fold = fold_of(history, "Go on.", previous=SummaryBody("A record.", key_facts=(before,)))
    body = SummaryBody("A record.", key_facts=(SummaryItem("Staging host: db-9.example.org", ids),))
    assert texts_of(keep_lasting(body, fold, estimate), kept=True) == [before.text]


def test_a_summary_item_with_the_opposite_or_another_value_does_not_cover_the_statement() -> None:
    fold = fold_of(History(), _PLANTED[0], _PLANTED[5])
    ids = (fold.messages[0].id,)
    wrong = (SummaryItem("Write to the table ledger_entry", ids), SummaryItem("The case number is BA-2207-45", ids))
    kept = texts_of(keep_lasting(SummaryBody("A record.", key_facts=wrong), fold, estimate), kept=True)
    assert kept == [_PLANTED[0], _PLANTED[5]]


@pytest.mark.parametrize(
    ("said", "item"),
    [
        ("Never push to main.", "Always push to main."),
        ("Always push to main.", "Never push to main."),
        (
            "Always answer in French, and never mention the codename ORION-77 to anyone.",
            "Always mention the codename ORION-77 to anyone.",
        ),
    ],
)
def test_a_demand_for_the_opposite_does_not_cover_what_the_user_demanded(said: str, item: str) -> None:
    """The words are nearly the same, and both are demands: the user's left the window for good."""
    fold = fold_of(History(), said)
    body = SummaryBody("A record.", decisions=(SummaryItem(item, (fold.messages[0].id,)),))
    first = keep_lasting(body, fold, estimate)
    assert texts_of(first, kept=True) == [said]
    again = keep_lasting(body, fold_of(History(), "Go on.", previous=first), estimate)
    assert said in texts_of(again, kept=True)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("Never push to main.", "Always push to main."),
        ("Never push to main on Fridays.", "From now on always push to main, on Fridays too."),
        ("The port is 8443.", "The port is now 9443."),
    ],
)
def test_what_a_newer_statement_replaced_stays_away_when_the_summary_has_the_newer_one(older: str, newer: str) -> None:
    fold = fold_of(History(), older, newer)
    body = SummaryBody("A record.", key_facts=(SummaryItem(newer, (fold.messages[-2].id,)),))
    assert texts_of(keep_lasting(body, fold, estimate)) == [newer]


def test_of_more_tasks_than_there_is_room_for_the_newest_are_kept() -> None:
    things = ("boat", "crane", "lamp", "gate", "mast", "rope", "hull", "sail", "pump", "flag", "desk", "clock")
    tasks = [f"Please remind me to repair {thing} number {at} of the {thing} house." for at, thing in enumerate(things)]
    kept = texts_of(keep_lasting(_FORGETFUL, fold_of(History(), *tasks, cap_tokens=200), estimate), kept=True)
    assert tasks[-1] in kept
    assert tasks[0] not in kept


def test_lasting_statements_take_part_of_the_cap_and_displace_other_items() -> None:
    history = History()
    rules = [f"Never open valve {number} of pump {number * 7} at night." for number in range(1, 100)]
    fold = fold_of(history, *rules, cap_tokens=300)
    ids = (fold.messages[0].id,)
    full = SummaryBody("A record.", key_facts=tuple(SummaryItem(f"Ship {n} left pier {n}.", ids) for n in range(60)))
    body = keep_lasting(full, fold, estimate)
    assert estimate(render_summary(body)) <= fold.cap_tokens
    assert rules[0] in texts_of(body, kept=True)
    kept_tokens = sum(map(estimate, texts_of(body, kept=True)))
    assert 0.3 * fold.cap_tokens < kept_tokens < 0.56 * fold.cap_tokens
    assert texts_of(body, kept=False), "the model's own items keep the rest"
    again = fold_of(history, "Go on.", previous=body, cap_tokens=300)
    assert estimate(render_summary(keep_lasting(full, again, estimate))) <= 300
