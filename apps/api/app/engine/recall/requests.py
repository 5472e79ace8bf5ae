"""Which sentences of a message ask for something: those with a question mark, or with the first words of a request.

A request often has no question mark: it may be a sentence such as "Tell me when …", and chats often omit the mark.
The first words are those of English and of some other languages; some languages ask by words anywhere in a sentence.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from app.domain.sentences import QUESTION_MARKS

_SENTENCE: Final = re.compile(r"[^.!?…。！？؟\n]*(?:[.!?…。！？؟\n]|$)")
_LEAST_CHARS: Final = 8
"""Shortest sentence that can ask without a question mark."""
_OPENER: Final = (
    r"(?:please|ok(?:ay)?|yes|yeah|yep|hey|hi|hello|so|and|but|also|now|well|wait|sorry|thanks|actually|great|good|nice"
    r"|cool|sure|perfect)\b"
)
_OPENERS: Final = rf"(?>(?:{_OPENER}[,:;\s]+)*)"
_OPENING: Final = re.compile(rf"\W*+(?>(?:{_OPENER}(?:[,:;\s]+|(?=\W*$)))+)")
"""What says nothing to look for at the beginning of a sentence, or alone."""
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
    | (?:dis|dites|rappelle|rappelez)[-\ ](?:moi|nous)\b | est-ce\ qu | qu['’]est-ce\b
    | (?:dime|dinos|recu[eé]rdame|dimmi|ricordami|diga-me|lembra-me|zeg\ me|(?:spune|amintește)-mi)\b
    | (?:(?:powiedz|przypomnij|řekni|připomeň)\ mi|(?:πες|θύμισέ)\ μου|أخبرني|ذكرني)\b
    | (?:(?:рас)?скажи|напомни|подскажи|нагадай)(?:те)?\b
    | wie\ (?:viele?|oft|lange|hei(?:ß|ss)t)\b | was\ (?:habe?n?|hat|hast|ist|sind|war|waren|wird|soll|kann)\b
    | wo(?:mit|von|für|her|hin|zu|durch)\b
    | (?:vem|varför|vilke[nt]|vilka|hvem|hvad|hvorfor|hvornår|hvordan|hvilke[nt]?|hvor\ (?:mange|meget|er|har))\b
    | (?:kuka|mikä|missä|milloin|miksi|miten|montako|siapa|kapan|mengapa|kenapa|bagaimana|berapa)\b
    | (?:ποι\w{1,3}|τι|πού|πότε|γιατί|πώς|πόσ\w{1,4}|ماذا|ما|أين|متى|لماذا|كيف|كم|هل|أي|أية)\b
    | من\ (?:هو|هي|هم|الذي|التي|كان)\b | come\ (?:si|ti|è|sono)\b | o\ que\b
    | (?:[^\W\d]{1,6}\ )?(?:  # after a preposition, too; they also begin clauses, which a comma ends
        wann|wo|wer|wem|wen|wessen|warum|welche[rsmn]? | où|quel(?:le)?s?|combien|pourquoi|comment
        | cuándo|dónde|quién(?:es)?|qué|cuál(?:es)?|cuánt[oa]s?|cómo | quant[oaie]|quali|perché
        | quem|onde|quais|quantos | wanneer|welke?|hoeveel|waarom
        | kto|gdzie|kiedy|dlaczego|ile|któr(?:y|a|e|ego|ej|ym)|jakie?|jaka|jakim
        | kdo|kde|kdy|proč|kolik|kter(?:ý|á|é|ého|ém)|jak[ýá] | cine|unde|când|câ[tț]i?|câte
        | hol|mikor|miért|hogyan|mennyi|hány
        | кто|кого|кому|кем|ком|где|куда|откуда|когда|почему|зачем|сколько|как(?:ой|ого|ому|им|ом|ая|ую|ое|ие|их)
        | хто|де|куди|коли|чому|скільки|як(?:ий|а|е|і|ому|ій)
    )\b(?!.*,)
    | (?:qui|quand|chi|cosa|dove|quando|quale|qual|wie|wat|waar|ce|что|чего|чем|чей|чья|що)\b(?!.*,)
    | (?:în|la|cu|de|din|pe|pentru|despre|spre|em|com|por)\ (?:ce|que|cui)\b | (?:à|de|avec|pour|chez)\ qui\b
"""
_ANYWHERE: Final = re.compile(
    r"[;\u037e](?<=[\u0370-\u03ff\u1f00-\u1fff].)|¿"
    r"|什[么麼](?!都|也)|[谁誰](?!都|也|か|も|でも)|哪(?!怕)|怎[么麼样樣]|[为為]何|多少|[几幾][点點时時岁歲月号號年]|[吗嗎][。\s]*$"
    r"|告[诉訴]我|提醒我|何(?!か|も|でも)|どこ(?!か|も|でも)|いつ(?!か|も)|なぜ|どう(?!も|ぞ)|どれ|どの|どんな|いくつ|いくら"
    r"|教えて|か[。\s]*$"
    r"|무엇|무슨|뭐|뭘|(?:누구|언제|어디)(?!나|든)|누가|어느|어떻게|얼마(?! ?전)|몇 |왜 "
    r"|(?:나요|습니까|까요)[.\s]*$|알려"
    r"|อะไร|ใคร(?!ๆ)|ไหน|ทำไม|อย่างไร|ยังไง|เท่า(?:ไร|ไหร่)|เมื่อ(?:ไร|ไหร่)|ใด(?!ๆ)|กี่|ไหม(?!้)"
    r"|หรือ(?:ไม่|ยัง)|บอก(?:ฉัน|ผม|เรา)"
    r"|क्या|कौन|कहाँ|कहां|कब|क्यों|कैसे|कितन|किस(?!ी)|बताओ|बताइए|याद दिला"
    r"|\b(?:kimin|kimdir|ne zaman|nere(?:de|ye|den)|neden|niçin|nasıl|kaç|hangi|nedir|hatırlat)\b"
    r"|\bm[ıü](?:yd[ıü])?[.\s]*$"
    r"|\b(?:gì|đâu|khi nào|bao (?:giờ|nhiêu)|(?:tại|vì) sao|thế nào|mấy|nào|nhắc tôi"
    r"|ai (?:đã|đang|sẽ|là)|không[.\s]*$)\b"
)
"""What asks anywhere in a sentence, in languages whose question words do not stand first. No ASCII text is searched."""
_BEFORE: Final = rf"[^\w.!?…\n]*+(?:\w++:\ )?{_OPENERS}"
_ASKS: Final = re.compile(rf"{_BEFORE}(?:(?P<wish>{_WISHES})|{_QUESTIONS}|{_OF_OTHER_LANGUAGES})", re.VERBOSE)
_FRAMES: Final = re.compile(
    r"w(?<!\ww)(?:hat|hich)(?: \w+)? (?:kind|type|sort)s?\b|h(?<!\wh)ow (?:many times|many|much|long|often)\b",
    re.IGNORECASE,
)


class Request(NamedTuple):
    """A text as a request. `asking` are its sentences that ask for something, in lower case. `asked_for` is the text
    without the words that only express that, or in which form, something is asked ("please tell me", "what kind"), and
    without those that only open a sentence ("ok", "thanks"). Questions about any subject have these words, and messages
    have them for other reasons."""

    asking: str
    asked_for: str


@lru_cache(maxsize=16)  # a turn needs it for the size of the recalled block, and again to search
def request_of(text: str) -> Request:
    small = text.lower()
    asking, asked_for = list[str](), list[str]()
    typed = _SENTENCE.findall(text if len(text) == len(small) else small)
    for sentence, as_typed in zip(_SENTENCE.findall(small), typed, strict=True):
        begins = _ASKS.match(sentence) if len(sentence) >= _LEAST_CHARS else None
        if begins or sentence.endswith(QUESTION_MARKS) or (not sentence.isascii() and _ANYWHERE.search(sentence)):
            asking.append(sentence)
        opening = begins if begins and begins["wish"] else _OPENING.match(sentence)
        asked_for.append(as_typed[opening.end() :] if opening else as_typed)
    left = _FRAMES.sub(" ", "".join(asked_for))
    return Request(" ".join(asking), text if left == text else left)  # an unchanged text is kept in memory once
