"""Which sentences of a message ask for something: those with a question mark, or with the first words of a request.

A request often has no question mark: it may be a sentence such as "Tell me when …", and chats often omit the mark.
The first words are those of English and of some other languages.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from app.engine.recall.index import QUESTION_MARKS

_SENTENCE: Final = re.compile(r"[^.!?…。！？؟\n]*(?:[.!?…。！？؟\n]|$)")
_LEAST_CHARS: Final = 8
"""Shortest sentence that can ask without a question mark."""
_OPENERS: Final = (
    r"(?>(?:please|ok(?:ay)?|hey|hi|hello|so|and|but|also|now|well|wait|sorry|thanks|actually)\b[,:;\s]+)*+"
)
_WISHES: Final = r"""
    (?:can|could|would|will|do)\ you\b(?:\ (?:please|still)\b)?
      (?:\ (?:remember|recall|know|(?:tell|remind|show|give)\ (?:me|us))\b)?
    | (?:tell|remind|show|give)\ (?:me|us)\b
    | let\ (?:me|us)\ know\ (?=who|what|which|where|when|why|how)
    | i\ (?:wonder|forgot|forget|(?:can(?:no|['’])t|don['’]t|do\ not)\ (?:remember|recall|know))\ (?=wh|how)
    | i(?:\ |['’]d\ |\ would\ )(?:like|love|want|need)\ to\ (?:know|hear|be\ (?:told|reminded))\b
    | (?:name|list|recall|repeat|summari[sz]e|describe|explain|find|look\ up|search|give|say|return)\ (?!up\b|it\b)
"""
_SUBJECT: Final = r"(?:i|you|he|she|it|we|they|the|this|that|these|those|my|your|his|her|its|our|their|an?|there)\b"
_AUXILIARY: Final = (
    r"(?:do|does|did|am|is|are|was|were|has|have|had|can|could|will|would|should|may|might|must)(?:n?['’]t)?\b"
)
_WHAT: Final = r"(?:what|which|whose|how)\b"
_QUESTIONS: Final = rf"""
    (?:who|what|which|where|when|why|how)(?:['’]s\b|\ {_AUXILIARY})
    | who\ (?!{_SUBJECT}|knows\b|cares\b)[a-z]
    | (?:(?:in|on|at|by|for|from|to|with|of|about|around|after|before|during|since|until)\ +)?
      {_WHAT}\ +(?!{_SUBJECT})(?:[^\s,]+\ +){{1,5}}?{_AUXILIARY}
    | (?:what|which|how\ (?:many|much))\ (?!{_SUBJECT})[a-z]+\ [a-z]+
    | (?:did|does|is|are|was|were|has|can|could|should|would|will)\ (?!(?:an?|be|do|love|like|quite|so|not)\b)\w+\ \w+
    | (?:do|have)\ (?:i|we|they)\b
    | [^,]++,\ (?:what|why|how\ (?:many|much|long|often|old))\b.*?\b{_AUXILIARY}
"""
_OF_OTHER_LANGUAGES: Final = r"""
    (?:sag(?:t|e|en\ sie)?|zeig(?:e|en\ sie)?)\ (?:mir|uns)\b | erinner(?:e|n\ sie)?\ mich\b | nenne\b | liste\b
    | (?:wann|wo|wer|wem|wen|wessen|warum|welche[rsmn]?)\b
    | wie\ (?:viele?|oft|lange|hei(?:ß|ss)t)\b | was\ (?:hat|habe|ist)\b
    | (?:dis|dites|rappelle|rappelez)[-\ ](?:moi|nous)\b | (?:où|quel(?:le)?s?|combien|pourquoi)\b | est-ce\ qu
    | (?:dime|dinos|recu[eé]rdame|cuándo|dónde|quién(?:es)?|qué|cuál(?:es)?|cuánt[oa]s?|por\ qué|cómo)\b
    | (?:dimmi|ricordami|quanti|quante|perché)\b | (?:diga-me|lembra-me|quem|onde|quais|quantos)\b
    | zeg\ me\b | (?:wanneer|welke|hoeveel)\b
"""
_BEFORE: Final = rf"[^\w.!?…\n]*+(?:\w++:\ )?{_OPENERS}"
_ASKS: Final = re.compile(rf"{_BEFORE}(?:(?P<wish>{_WISHES})|{_QUESTIONS}|{_OF_OTHER_LANGUAGES})", re.VERBOSE)
_FRAMES: Final = re.compile(
    r"w(?<!\ww)(?:hat|hich)(?: \w+)? (?:kind|type|sort)s?\b|h(?<!\wh)ow (?:many times|many|much|long|often)\b"
)


class Request(NamedTuple):
    """A text as a request. `asking` are its sentences that ask for something, in lower case. `asked_for` is the text
    without the words that only express that, or in which form, something is asked ("please tell me", "what kind").
    Questions about any subject have these words, and messages have them for other reasons."""

    asking: str
    asked_for: str


@lru_cache(maxsize=16)  # a turn needs it for the size of the recalled block, and again to search
def request_of(text: str) -> Request:
    small = text.lower()
    asking, asked_for = list[str](), list[str]()
    for sentence in _SENTENCE.findall(small):
        begins = _ASKS.match(sentence) if len(sentence) >= _LEAST_CHARS else None
        if begins or sentence.endswith(QUESTION_MARKS):
            asking.append(sentence)
        asked_for.append(sentence[begins.end("wish") :] if begins and begins["wish"] else sentence)
    left = _FRAMES.sub(" ", "".join(asked_for))
    return Request(" ".join(asking), text if left == small else left)  # an unchanged text finds its terms cached
