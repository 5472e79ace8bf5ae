"""The words of the bench's conversations: what people talk about, and how. Written for the bench."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Topic:
    """What one stretch of a conversation is about; every entry is a string of words or short phrases."""

    things: tuple[str, ...]
    actions: tuple[str, ...]
    qualities: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _topic(things: str, actions: str, qualities: str) -> Topic:
    return Topic(*(tuple(part.strip() for part in text.split(",")) for text in (things, actions, qualities)))


TOPICS: Final = (
    _topic(
        "connection pool, replica, write path, index, migration, queue, export, deadlock, backup, partition, vacuum,"
        " query plan, cache, failover, schema, checkpoint",
        "measure, roll back, drain, split, rename, warm up, throttle, shard, archive, rebuild",
        "slow, stale, cold, blocked, oversized, redundant, idempotent, half-finished",
    ),
    _topic(
        "kitchen, oven, sourdough, knife, stew, lentils, freezer, cellar, recipe, dinner party, pan, spice rack,"
        " butter, market stall, leftovers, lemon tart",
        "bake, chop, season, freeze, simmer, double, taste, marinate, reheat, knead",
        "salty, burnt, fresh, tender, bitter, overcooked, crisp, seasonal",
    ),
    _topic(
        "night train, ferry, hostel, visa, suitcase, itinerary, border, coast road, passport, rental car, campsite,"
        " museum pass, layover, trail map, lighthouse, boarding pass",
        "book, cancel, pack, reroute, hike, extend, photograph, insure, share, postpone",
        "crowded, remote, rainy, overpriced, scenic, delayed, affordable, steep",
    ),
    _topic(
        "knee, physiotherapist, sleep diary, prescription, allergy, blood test, running shoes, appointment, vitamin,"
        " shoulder, diet, headache, insurance card, heart rate, yoga class, recovery plan",
        "stretch, rest, track, ask about, avoid, increase, skip, repeat, warm up, schedule",
        "sore, swollen, chronic, mild, exhausting, healthy, painful, gradual",
    ),
    _topic(
        "thesis, lecture, footnote, survey, scholarship, deadline, supervisor, library card, data set, seminar, draft,"
        " reviewer, conference, chapter, citation, lab notebook",
        "revise, cite, submit, outline, present, annotate, defend, shorten, replicate, proofread",
        "rigorous, vague, overdue, preliminary, convincing, significant, biased, unpublished",
    ),
    _topic(
        "roof, landlord, boiler, lease, bathroom tiles, moving van, deposit, balcony, mortgage, neighbour, garden shed,"
        " insulation, spare key, heating bill, attic, fence",
        "repair, paint, insulate, measure, sign, replace, rent out, clear, varnish, inspect",
        "damp, draughty, spacious, noisy, leaking, furnished, unheated, mouldy",
    ),
    _topic(
        "budget, invoice, salary, tax return, savings account, contract, quarterly report, client, proposal, forecast,"
        " supplier, discount, interest rate, pension, expense claim, margin",
        "negotiate, approve, postpone, calculate, transfer, audit, invoice, reduce, renew, compare",
        "unpaid, profitable, tight, seasonal, fixed, optimistic, deductible, recurring",
    ),
    _topic(
        "choir, guitar, rehearsal, gallery, novel, watercolour, film festival, exhibition, poem, concert ticket,"
        " drummer, melody, sketchbook, audition, stage, poster",
        "practise, record, paint, perform, publish, frame, tune, review, improvise, rehearse",
        "melancholic, loud, abstract, unfinished, playful, sold-out, bold, quiet",
    ),
    _topic(
        "daughter, birthday, school play, grandmother, wedding, playground, adoption, cousin, babysitter, photo album,"
        " picnic, bicycle, puppy, reunion, lullaby, summer camp",
        "invite, surprise, visit, call, teach, celebrate, forgive, adopt, remember, comfort",
        "shy, proud, stubborn, cheerful, homesick, tired, generous, nervous",
    ),
    _topic(
        "login page, release, test suite, feature flag, bug report, dashboard, token, webhook, crash, refactoring,"
        " pull request, staging server, build, changelog, license, rate limit",
        "deploy, reproduce, merge, revert, document, profile, mock, deprecate, patch, review",
        "flaky, broken, undocumented, backwards compatible, minimal, urgent, obsolete, intermittent",
    ),
)
NAMES: Final = _words(
    "Ada Bruno Chiara Dmitri Elif Farid Greta Hanna Ivo Jun Katja Leon Mina Noor Olu Pavel Quentin Rosa Sven Tara Uma"
    " Viktor Wanda Xenia Yusuf Zoe Amara Boris Celine Diego"
)
PLACES: Final = _words(
    "Lisbon Tromso Porto Ghent Krakow Oaxaca Kyoto Bergen Tallinn Valencia Leipzig Galway Nairobi Hobart Quito Utrecht"
    " Turin Aarhus Bristol Montreal"
)
DAYS: Final = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS: Final = _words("January February March April May June July August September October November December")

# Slots: {thing} {other} {action} {quality} of the topic; {name} {place} {day} {month}; {number}; and words that hardly
# anybody else uses: {code}, which belongs to a stretch of the conversation, and {rare}.
QUESTIONS: Final = (
    "What did {name} say about the {thing}?",
    "Do you remember which {thing} was {quality}?",
    "Should I {action} the {thing} before {day}, or is it better to wait?",
    "How many of the {number} were for the {thing}?",
    "When did we decide to {action} the {other}?",
    "Is {code} the right name for it, or was that something else?",
    "Could you compare the {thing} with the {other} for me?",
    "Why was the {rare} {other} in {place} so {quality}?",
    "Who was going to {action} it, {name} or me?",
    "What would you do first?",
    "Has anybody heard from {name} since the {other}?",
    "Would {place} work for you as well?",
    "Which of the two costs less, the {thing} or the {rare} one?",
    "Where did I put the receipt for the {other}?",
    "Can this wait, or will {name} be annoyed?",
    "How long does it usually take to {action} a {quality} {thing}?",
    "Am I overthinking the {rare} part?",
    "Does {code} still owe us an answer?",
)
STATEMENTS: Final = (
    "I finally managed to {action} the {thing} on {day}.",
    "{name} thinks the {other} is too {quality}, and I am not sure I agree.",
    "We paid {number} for the {thing} in {place}, which was more than I expected.",
    "The {rare} {thing} was {quality} again, so I had to {action} it twice.",
    "Last {month} I went to {place} with {name} because of the {other}.",
    "By the way, the new one is called {code}.",
    "I would rather {action} the {other} than lose another week, says {code} from the {rare} team.",
    "It has been a long day at the {rare} office, and the {thing} still looks {quality} to me.",
    "My deadline for the {other} is {day}, {number} at the latest.",
    "{name} told me about {code} yesterday and it made me think of our {thing}.",
    "Oh, and please keep in mind that we can not {action} anything in {month}.",
    "Thanks, that helped a lot!",
    "That sounds good.",
    "My brother swears by {rare}, but he always exaggerates.",
    "Nobody warned me that the {other} would smell like this.",
    "I slept badly because of the {rare} business.",
    "You were right about {code}, by the way.",
    "Half of {place} seems to be on holiday, so the {thing} has to wait.",
    "Somebody left {number} pages of notes about {rare} on my desk.",
    "I promised {name} to {action} it myself this time.",
    "Honestly, {quality} is not the word I would have chosen for the {thing}.",
    "The weather ruined our {other}, yet the children loved it.",
    "After lunch I walked past {rare} and thought of you.",
    "There were {number} people in the queue and only one of them had heard of {code}.",
    "It reminds me of the winter when {name} moved to {place}.",
    "We laughed about the {thing} until midnight.",
    "Everybody keeps recommending {rare}, whatever that means.",
    "I found an old picture of {name} holding a {other}.",
    "Please remind me to {action} the {rare} thing tomorrow morning.",
    "Turns out {code} closed down in {month}.",
    "At least the coffee in {place} was excellent.",
    "This is the third {thing} since {month}; something must be wrong with it.",
    "Sorry for the long message, I needed to write it down somewhere.",
    "{name} sends greetings and wants the {rare} back.",
    "I have mixed feelings about selling the {other}.",
    "Never mind, I found it behind the {thing}.",
)
ANSWERS: Final = (
    "I would {action} the {thing} first, since a {quality} {other} is hard to fix later.",
    "If {name} needs it by {day}, plan {number} minutes for the {other} and leave the rest for {month}.",
    "A {quality} {thing} usually means that somebody at {rare} forgot to {action} the {other}.",
    "There are two ways: {action} it now and accept that the {thing} stays {quality}, or wait for {name}.",
    "You mentioned {code} earlier, which suggests the {thing} in {place} is the one you want.",
    "Make a short list: the {thing}, the {other}, and whatever {name} still has from {rare} in {place}.",
    "In my experience it helps to {action} the {other} every {day}, especially while it is {quality}.",
    "That is good news, and it means the {thing} can wait until {month}.",
    "To be safe, write down the {number} before you {action} anything.",
    "Ask {name} or {code} whether the {other} was {quality} before {month}; if so, nothing has changed.",
    "It depends on how {quality} the {thing} is.",
    "Congratulations, that must feel great after such a {quality} week!",
    "How did it go in the end?",
    "Three things come to mind, of which the {rare} one is the cheapest.",
    "Sleep on it: a {quality} decision about {code} rarely gets worse overnight.",
    "I am sorry to hear that; {rare} can be exhausting.",
    "Perhaps {name} simply forgot, which happens to the best of us in {month}.",
    "Keep the receipt, take a photo of the {other}, and let {place} handle the rest.",
    "Nothing in what you wrote suggests that the {thing} is at fault.",
    "Start small, say with {rare}, and see whether it sticks.",
    "The usual rule of thumb is {number} for each {other}.",
    "Oh, wonderful, I did not expect {code} to agree so quickly!",
    "Some people swear that you can {action} it overnight; I would be careful.",
    "Tell {name} exactly what you told me about {rare}.",
    "Yes.",
    "In short: cheaper now, {quality} later.",
    "Travelling through {place} takes longer, but the view makes up for it.",
    "What bothers you most about it, the noise or the {rare}?",
    "I can draft a note to {code} if that saves you an evening.",
)
SYLLABLES: Final = _words(
    "ba ben cor dal del fen gar hol im jor kal len mar nor or pel qui ros sil tan ul vel wes yar zan"
)
