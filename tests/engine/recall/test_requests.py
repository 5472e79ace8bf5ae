"""Which sentences ask for something."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.recall.bm25 import Query, search
from app.engine.recall.index import EMPTY
from app.engine.recall.ranking import wanted_share
from app.engine.recall.requests import request_of

ASKING = (
    "Tell me when Caroline went to the parade.",
    "please remind me where Ottilie keeps her bees",
    "When did Caroline go to the parade.",
    "what kind of car does Evan drive",
    "In which month did the crane arrive",
    "How many square feet is my counter",
    "Who won the match.",
    "Would Caroline like a harp.",
    "do I have a meeting on Monday",
    "Can you tell me the invoice number",
    "I forgot who wanted the report.",
    "I'd like to know the number of the case.",
    "List the books that Tim has read.",
    "Based on his letters, what does Tim collect.",
    "Ottilie: So, why didn't they go",
    "Sag mir bitte, wann das war.",
    "Wann war Caroline auf der Parade",
    "Dime cuándo fue el desfile.",
    "Où est la clé",
    "Zeg me wie het was.",
    "Vem köpte båten",
    "Hvornår var festen",
    "Gdzie mieszka Anna",
    "Kdy přijel vlak",
    "Unde locuiește Ana",
    "Когда родилась моя сестра.",
    "В каком городе живёт Анна",
    "Напомни, где лежат ключи.",
    "Коли приїхав поїзд",
    "Πού μένει η Άννα;",
    "Πότε ήρθε το τρένο",
    "أين تسكن أختي",
    "我妹妹的狗叫什么名字",
    "你还记得我的生日吗",
    "妹の誕生日はいつでしたか",
    "내 여동생 생일이 언제야",
    "น้องสาวของฉันเกิดเมื่อไหร่",
    "मेरी बहन कहाँ रहती है",
    "Kız kardeşim nerede yaşıyor",
    "Em gái tôi sống ở đâu",
    "Hol lakik a nővérem",
    "Missä siskoni asuu",
    "Siapa yang membeli kapal itu",
)
SAYING = (
    "When I was young, I sang.",
    "What you said was kind.",
    "What a day!",
    "I forgot the milk.",
    "Have a good day.",
    "Do your best.",
    "Let me know if you need any help.",
    "Will do.",
    "The parade was on Monday, which is good.",
    "I told Caroline where the bees are.",
    "Give up.",
    "Ich habe gestern meine Schwester besucht.",
    "Hier j'ai vu ma sœur.",
    "Ayer visité a mi hermana.",
    "Вчера я был у сестры.",
    "Χθες είδα την αδελφή μου· ήταν ωραία.",
    "زرت أختي أمس.",
    "我昨天去看了妹妹。",
    "昨日、妹に会いました。",
    "어제 여동생을 만났어요.",
    "เมื่อวานฉันไปหาน้องสาว",
    "मैं कल अपनी बहन से मिला।",
    "Dün kız kardeşimi gördüm.",
    "Hôm qua tôi gặp em gái.",
    "I told Kim about it… AI is what she’s into.",
    "Когда я был маленьким, мы жили у моря.",
    "Kiedy byłem mały, mieszkaliśmy nad morzem.",
    "どうもありがとう。",
    "什么都可以。",
    "늦었으니까.",
)


@pytest.mark.parametrize("text", ASKING)
def test_a_request_is_seen_without_a_question_mark(text: str) -> None:
    assert request_of(f"Nice to see you. {text}").asking == f" {text.lower()}"
    assert wanted_share(text) == 1


@pytest.mark.parametrize("text", SAYING)
def test_a_statement_is_not_a_request(text: str) -> None:
    assert request_of(text).asking == ""
    assert wanted_share(text) <= 0.125


def test_words_that_only_introduce_a_request_are_not_searched() -> None:
    assert request_of("What kind of car is it?").asked_for.split() == ["of", "car", "is", "it?"]
    assert request_of("Thanks, the van is late. So-so.").asked_for == "the van is late. So-so."
    assert request_of("Hey, can you please tell me when Jo left. Remind me why.").asked_for.split() == [
        "when",
        "Jo",
        "left.",
        "why.",
    ]
    assert request_of("Jo told me to list them.").asked_for == "Jo told me to list them."


@given(st.text(max_size=300))
def test_the_request_found_in_any_text_is_taken_from_its_sentences(text: str) -> None:
    assert len(request_of(text).asking) <= 2 * len(text.lower())
    assert request_of(f"{text}\nWhere is it?").asking.endswith("where is it?")
    assert len(request_of(text).asked_for) <= len(text.lower()) + 1


@pytest.mark.parametrize(
    "part",
    [".", "so ", "- ", "what ", "what a ", "\n", "please  ", " ", "a, ", "what is.", "αβγ ", "“yes” ", "何も", "кт "],
)
def test_no_text_takes_long(part: str) -> None:
    text = part * (8_000 // len(part))
    started = process_time()
    request_of(text)
    assert process_time() - started < 0.5  # it takes 2 ms at most; what backtracks takes minutes


@given(
    st.lists(
        st.sampled_from(("can you", "'ve", "tell me", "what kind", "how many", "'s", "we", ".", "bees")), max_size=8
    )
)
def test_any_combination_of_request_phrases_can_be_searched(parts: list[str]) -> None:
    text = "".join(parts)
    search(EMPTY, Query(f"{text} {' '.join(parts)}", 0))
