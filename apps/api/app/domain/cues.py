"""The words and phrases by which a sentence shows what kind of statement it is: English ones, and of demands also those
of other languages.

A cue is a bit, a regular expression, and its `PARTS`: every ASCII text that the expression matches contains one of
these in lower case. Looking for them is much faster than the expression, and a cached lookup by word is faster still.
Expressions are for `plain` text, unless they say otherwise: one that ignores case takes up to three times as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import digits
from typing import Final

DECIDES, PROPOSES, ACTS, CONSTRAINS, NUMBERS, RULES, FINISHES, LIFTS, WANTS = (1 << bit for bit in range(9))
"""The last four: what has to hold from now on; that a question or a task may be finished; that a demand may no longer
hold; what a person wants."""
ANYTHING: Final = (1 << 9) - 1


def plain(text: str) -> str:
    """The text in lower case, with the apostrophe of typewriters in place of the one of printers, which phones and
    models write."""
    return text.replace("’", "'").lower()


PARTS: Final[Mapping[int, Sequence[str]]] = {
    DECIDES: ("decid", "decis", "agreed", "chose", "settle", "instead", "moved", "changed", "switched", "new"),
    PROPOSES: ("let's", "lets", "go with", "going with", "'ll use", "will use"),
    ACTS: ("'ll", "will", "should", "todo", "to-do", "next", "action", "need", "remind", "follow"),
    CONSTRAINS: (
        "always", "never", "must", "requir", "only", "at most", "at least", "no more", "don't", "dont", "do not",
        "cannot", "can't", "prefer", "budget", "deadline", "allergic", "important", "remember", "note that",
    ),
    NUMBERS: digits,
    RULES: ("do not", "remember that"),
    FINISHES: (
        "done", "finish", "complet", "ready", "sent", "fixed", "merged", "closed", "shipped", "ordered", "paid",
        "signed", "booked", "delivered", "solved", "cancel", "longer",
    ),
    LIFTS: ("longer", "more", "now", "instead", "lifted", "mind", "again", "after"),
    WANTS: (
        "want", "need", "like", "love", "look", "try", "plan", "hope", "build", "mov", "work", "open", "have", "help",
        "goal", "aim", "task",
    ),
}  # fmt: skip
RULE_WORDS: Final = frozenset((
    "always", "never", "must", "mustn't", "don't", "dont", "only", "sure", "avoid", "stop", "circumstances", "now",
    "please", "pls", "allergic", "whenever", "every", "answer", "answers", "reply", "replies", "response",
    "responses", "niemals", "nie", "immer", "keinen", "keine", "nur", "jetzt", "sofort", "allergisch", "jamais",
    "toujours", "pas", "uniquement", "allergique", "nunca", "siempre", "uses", "ahora", "agora", "sempre", "mai",
    "non", "poi", "nooit", "altijd", "geen", "alleen", "nu", "nigdy", "zawsze", "asla", "sadece", "daima", "solo",
    "apenas", "favor",
))  # fmt: skip
"""Whole words, of which `RULE` and `RULE_ELSEWHERE` need one if the text has none of the parts of `RULES`."""
FORBIDDING_WORDS: Final = frozenset((
    "never", "no", "not", "don't", "don’t", "dont", "mustn't", "cannot", "can't", "nie", "niemals", "nicht", "jamais",
    "nunca", "jamás", "mai", "nooit", "никогда", "nigdy", "asla", "đừng", "ποτέ",
))  # fmt: skip
"""Whole words, of which a demand that something is not done has one."""

DECIDED: Final = re.compile(
    r"\b(?:(?:we|i|they)(?:'ve| have)? (?:decided|agreed|chose|settled)|decision|decided (?:to|on|that)"
    r"|agreed|settled? on|^settled|^new (?:\w+ ){0,2}(?:date|day|time|plan|price|deadline)"
    r"|instead of|(?:moved|changed|switched) (?:it )?to)\b"
)
PROPOSED: Final = re.compile(
    r"\blet'?s (?:use|go|keep|stick|make|do|take|switch)\b|\bgo(?:ing)? with\b|\bwe(?:'ll| will) use\b"
)
"""A decision if a person writes it, a proposal if an assistant does."""
CONSTRAINT: Final = re.compile(
    r"\b(?:always|never|must(?:n't)?|required?|only|at most|at least|no more than|don'?t|do not|cannot|can't|prefers?"
    r"|budget|deadline|allergic|important|remember|note that)\b"
)
_COMMANDS: Final = (
    r"do not |only |make sure |never (?!been|had|seen|heard|tried|done|thought|knew)"
    r"|don'?t (?!know|think|mind|worry|have|forget)|niemals |immer |jamais |toujours "
)
_ANSWERS: Final = r"(?:answers?|reply|replies|responses?)\b"
_NO_VERB: Final = r"(?:wie|noch|schon|für|auch|und|aber|oder|das|es|alles|habe|war|bin|depuis|comme|et|mais|pas)\b"
RULE: Final = re.compile(
    r"(?:^|\b(?=\w)|(?=[.,;:–-]))(?:"  # where each of them begins: tried at every letter, they take twice as long
    rf"(?:^\W{{0,3}}|[.,;:–-] |\b(?:please|pls|now on|must|may|should|shall|will|you to) )(?:always |{_COMMANDS})\w"
    r"|(?:^\W{0,3}|[.,;:–-] |\b(?:please|pls|must|should) )(?:avoid |stop (?=\w+ing\b)|under no circumstances )\w"
    r"|\bfrom now on\b|\ballergic to \w|\bremember that (?:i|we|my|our)\b"
    r"|^\W{0,3}(?:please |pls )?(?:answer|reply|respond|write|speak|talk|use|return) (?:\w+ ){0,2}only \w"
    r"|^\W{0,3}(?:please|pls),? no \w|^\W{0,3}no (?:\w+ ){0,3}\w+,? (?:please|pls)\W{0,3}$"
    rf"|^\W{{0,3}}(?:(?:please |pls )?keep (?:every|each|all|your|all your|the) {_ANSWERS}"
    rf"|(?:every|each) {_ANSWERS} (?:must|should|has to|needs to) \w)"
    r"|^\W{0,3}(?:whenever|every time) (?:i|we) [^,]+, (?!(?:i|we|he|she|it|they|my|our|the|th[ei][rs]e?)\b)\w"
    # After the verb in German and French: "Antworte immer auf Deutsch", "Ne réponds jamais en anglais".
    rf"|^\W{{0,3}}(?:bitte )?(?!{_NO_VERB})(?:\w*[^\Wt]|\w+en sie) (?:immer|niemals|nie) (?!noch\b|wieder\b|mehr\b)\w"
    rf"|^\W{{0,3}}(?:n(?:e |')(?:\w+ )?jamais|(?!{_NO_VERB})[\w-]+ toujours) \w"
    rf"|\b(?:(?:and|but|so|can) (?:{_COMMANDS})\w|must(?: not|n't)? (?!have|be (?!\w+(?:ed|en)\b))))"
)
"""Clauses that say what has to hold from now on: commands, not reports of the past."""
RULE_ELSEWHERE: Final = re.compile(
    r"""\W{0,3}+
    (?:(?:bitte|por\ favor|per\ favore|s'il\ (?:te|vous)\ plaît|пожалуйста|proszę|lütfen|कृपया|xin|hãy),?\ )?
    (?:
      (?:verwend|benutz|nimm|schreib|antwort|sag|nenn|zeig|mach|schlag)\w*\ (?:\w+\ ){0,2}(?:nur|nie|keine?n?|immer)\ \w
    | bitte\ keine?n?\ \w | keine?n?\ (?:\w+\ )?\w+,?\ bitte\b | sin\ \w+,?\ por\ favor\b
    | pas\ d(?:e\ |')\w+,?\ s'il\ (?:te|vous)\b
    | .*\b(?:ab\ (?:jetzt|sofort)|a\ partir\ de\ a(?:hor|gor)a|désormais|d'ora\ in\ poi|vanaf\ nu)\b
    | .*\b(?:allergisch\ gegen|allergique\ (?:à|aux?)|al+[eé]rgic[oa]\ (?:a|à|ao|al|all[ae'])|アレルギー)\b
    | erwähn\w*\ (?:\w+\ )?(?:auf\ keinen\ fall|nie|nicht)\b | auf\ keinen\ fall\b
    | n(?:e\ |'(?!est))(?:\w+\ ){1,2}(?:jamais|pas|plus)\ \w
    | (?:utilise|emploie|réponds|répond|écris|écrive|parle)[rz]?\ (?:\w+\ )?(?:uniquement|seulement|toujours)\b
    | (?:no|nunca|jamás)\ (?:(?:me|nos|le|les|l[oa]s?)\ )?
      (?:us|respond|contest|escrib|habl|mencion|propong|recomiend|sugier|incluy|añad|pong|cambi|borr|toqu|llam|enví|muestr
        |utilic|pregunt|olvid|hag|dig)(?:es|as|en|an)\b
    | siempre\ (?:(?:us|respond|contest|escrib|habl|incluy)[ea]|menciona|añade|pon|llama|muestra|pregunta|haz)\b
    | (?:(?:us|resp[oó]nd|cont[eé]st|escr[ií]b|h[aá]bl)[ea](?:me|nos)?|utiliza)\ (?:siempre|s[oó]lo|únicamente)\b
    | (?:não|nunca)\ (?:me\ )?(?:use|responda|escreva|fale|mencione|proponha|recomende|sugira|inclua|mude|apague|chame
        |envie|mostre|utilize|pergunte|esqueça|faça|diga)m?\b
    | sempre\ (?:use|responda|escreva|fale|inclua|mostre|pergunte)\b
    | (?:me\ )?(?:use|responda|escreva|fale|utilize)\ (?:sempre|apenas|só|somente)\b
    | (?:rispond[ia]|scriv[ia]|parla|usa|utilizza)(?:mi|ci)?\ (?:sempre|solo|soltanto)\b
    | non\ \w*(?:are|ere|ire|rmi|rci|rlo|rla)(?:\ mai)?\ \w
    | (?:gebruik|antwoord|schrijf|stel|noem|zeg|geef|toon|vraag|maak|stuur)\ (?:\w+\ )?(?:nooit|altijd|geen|alleen)\ \w
    | (?:никогда\ |больше\ )*не\ (?:\w+(?:йте|ите|ьте)|используй|пиши|говори|предлагай|забывай|забудь|меняй|называй
        |упоминай|советуй)\b
    | (?:всегда|обязательно|только)\ (?:\w+(?:йте|ите|ьте)|отвечай|пиши|используй|говори|называй|указывай|спрашивай)\b
    | (?:отвечай|пиши|используй|говори)(?:те)?\ (?:всегда|только|исключительно)\b
    | (?:nigdy\ )?nie\ (?:używaj|pisz|mów|proponuj|zapominaj|zmieniaj|podawaj|wspominaj|polecaj)(?:cie)?\b
    | (?:zawsze|tylko)\ (?:używaj|pisz|mów|odpowiadaj|podawaj|pytaj)(?:cie)?\b
    | (?:używaj|pisz|odpowiadaj)(?:cie)?\ tylko\b
    | (?:bana\ )?asla\ .*m[ae](?:y[ıi]n(?:[ıi]z)?)?[.!\s]*$
    | (?:her\ zaman|daima|sadece)\ .*\ (?:ver|kullan|yaz|söyle|yanıtla|göster|sor)(?:[ıiuü]n(?:[ıiuü]z)?)?[.!\s]*$
    | لا\ ت(?!وجد|زال|عرف|علم)\w+ | (?:أجب|استخدم|اكتب|تحدث|اذكر)\b.*\b(?:دائما|دائماً|فقط)\b
    | (?:ποτέ\ )?μην?\ \w | να\ \w+ς\ (?:\w+\ )?(?:πάντα|μόνο)\b | πάντα\ να\ \w
    | (?:हमेशा|केवल|सिर्फ)\ .*\ (?:दो|दें|करो|करें|कीजिए|लिखो|लिखें|बताओ)[।.!\s]*$ | .*\ मत\ \S+[।.!\s]*$
    | (?:đừng|không\ được)\ \w | (?:luôn|chỉ)\ (?:trả\ lời|dùng|sử\ dụng|viết|gọi|nói|hỏi)\b
    | [请請]?(?:禁止|必[须須]|始[终終]|只[能用准])
    | (?:.*[，。；！])?[请請]?(?:千万|千萬)?(?:永[远遠])?(?:不要(?!紧|緊)|[别別](?!的|人)|[请請切]勿|[务務]必|一定要)
    | .*ないで(?:ください|下さい|ね)?[。！\s]*$ | (?=.*(?:ください|下さい|こと)[。！\s]*$).*(?:必ず|常に|絶対に|決して)
    | .*지\ ?(?:마(?:세요|라|요)?|말(?:아\ ?(?:줘|주세요)?|고))[.!\s]*$
    | (?=.*(?:세요|줘|십시오)[.!\s]*$).*(?:절대|항상|반드시|꼭)[ ]
    )""",
    re.VERBOSE,
)
"""The same in some other languages, at the beginning of lower-case text."""
VALUE_OF: Final = re.compile(
    r"(?:\b(?:is|are|called|named|at|on|with|use|run|file|path|command|host|url|(?:moved|changed|switched)\s+to)"
    r"(?:\s+now)?|[:=])"
    r"\s+[\"'(]?(?:`[^`\n]+`|\w+://\w"
    r"|/\w[\w.-]*/\w|[\w.+-]+@[\w-]+\.\w|\w[\w-]*(?:\.[\w-]+)*\.[a-z]{2,}\b|[A-Z]{2}[A-Z0-9]*-?\d)"
    r"|\b(?:[nN]umber|[iI][dD]|[cC]ode|[pP]ort|[kK]ey)(?::|(?:\s+(?:is|now|changed|moved|to)){1,3})?\s+#?[\w-]*\d{3}",
)
"""The value of something, in text of any case: a command, a path, an address, a reference number."""
_TASKS: Final = r"\bto-?do\b|\baction item|\bremind (?:me|us) (?:to|about)\b|\bfollow up\b|\bneeds? to\b"
TASK: Final = re.compile(_TASKS)
"""In the user's words, a task for someone to do, as opposed to the user's own plans."""
ACTION: Final = re.compile(rf"\bi(?:'ll| will)\b|\bnext(?: step|,|:)|\bwe(?:'ll| will| should)\b|{_TASKS}")
_DONE: Final = (
    r"\b(?:done|finished|completed?|ready|sent|fixed|merged|closed|shipped|ordered|paid|signed|booked|delivered|solved"
    r"|resolved|cancell?ed|no longer)\b"
)
FINISHED: Final = re.compile(_DONE)
NOT_FINISHED: Final = re.compile(
    rf"(?:\bnot|n't|\bnever|\b(?:to|must|should|shall|will|'ll|would) be)(?: \w+){{0,3}} {_DONE}"
    rf"|\b(?:if|once|unless|until|when)\b[^,;]*{_DONE}"
)
"""What is not done yet, or a condition: in a text that `FINISHED` matches, not a report."""
LIFTED: Final = re.compile(
    r"\b(?:no longer|any ?more|from now on|instead|lifted|never mind)\b"
    r"|\b(?:can|may|allowed to|fine to|ok(?:ay)? to)\b.*\b(?:now|again|after all)\b|\bnow (?:can|may)\b"
)
NOT_LIFTED: Final = re.compile(r"\b(?:can|may|must) (?:not|no longer|never)\b|\bcan'?t\b|\bcannot\b|\bnot allowed\b")
"""What forbids: in a text that `LIFTED` matches, it does not lift what was forbidden."""
ASKED_OF_YOU: Final = re.compile(r"\b(?:can|could|will|would) you\b")
"""A demand in the form of a question."""
GOAL: Final = re.compile(
    r"\b(?:i|we)(?:'m| am|'re| are|'d| would|'ve| have)? ?(?:finally )?(?:want|need|like|love|look|try|plan|hope|build"
    r"|mov|work|open|have to)|\b(?:help (?:me|us)|(?:goal|aim|task) is)\b"
)
NO_ANSWER: Final = re.compile(
    r"\b(?:don't know|do not know|not sure|can(?:'t|not) say|let me check|(?:will|'ll) check|find out|get back to)\b"
)
LEANS: Final = re.compile(
    r"(?:[a-z]\w+: )?(?:and|but|so|then|also|because|he|she|it|they|that|this|these|those|which|there|yes|yep|yeah|no"
    r"|nope|oh|ok(?:ay)?|well|great|sure|thanks|hey|haha|wow|cool|nice|agreed|totally|glad|noted|good|excellent|perfect|understood|aw+)\b(?!-)"
)
"""A sentence that begins like this depends on the one before it, and states little alone."""
NO_QUESTION: Final = re.compile(
    r"\b(?:right|huh|eh|ok(?:ay)?|you know(?: what)?|might ask|(?:is|does|do)n't (?:it|they))\?$"
)
"""Question tags that do not expect an answer, in text of any case."""
LONGEST_TAG_CHARS: Final = 16
