"""The terms by which messages are found, in several languages and scripts."""

from __future__ import annotations

import unicodedata
from struct import pack
from typing import Literal

import numpy as np
import pytest

from app.engine.recall.bm25 import Query, search
from app.engine.recall.index import EMPTY, Index, Packed, packed_text
from app.engine.recall.ranking import wanted_share
from app.engine.recall.terms import query_terms, query_words, term_hash, terms_of


def _index(*texts: str) -> Index:
    seqs = np.arange(1, len(texts) + 1)
    return EMPTY.extended(Packed(seqs, seqs, b"".join(map(packed_text, texts))), len(texts))


def _found(index: Index, text: str) -> list[int]:
    return index.seqs[search(index, Query(text, len(index))).positions].tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Wie heißt der Hund von meiner Schwester?", "heisst hund schwester"),
        ("Comment s'appelle le chien de ma sœur ?", "s'appelle chien sœur"),
        ("¿Cómo se llama el perro de mi hermana?", "llama perro hermana"),
        ("Come si chiama il cane di mia sorella?", "chiama cane sorella"),
        ("Como se chama o cachorro da minha irmã?", "chama cachorro irma"),
        ("Hoe heet de hond van mijn zus?", "heet hond zus"),
        ("Как зовут собаку моей сестры?", "зовут собаку сестры"),
        ("Jak ma na imię pies mojej siostry?", "imie pies mojej siostry"),
        ("Πώς λένε τον σκύλο της αδελφής μου;", "λενε σκυλο αδελφησ"),
        ("Kız kardeşimin köpeğinin adı ne?", "kız kardesimin kopeginin adı ne"),
    ],
)
def test_function_words_of_a_query_are_not_looked_for(text: str, words: str) -> None:
    assert " ".join(dict.fromkeys(query_words(text).values())) == words


@pytest.mark.parametrize(
    "text",
    [
        "Did my son come in the van or on foot?",
        "Will the den die or son alle come?",
        "die",
        "La Paz",
        "What is the main point?",
    ],
)
def test_words_of_an_english_query_are_looked_for_though_they_are_function_words_elsewhere(text: str) -> None:
    assert query_terms(text) == tuple(dict.fromkeys(terms_of(text)))


def test_contractions_are_function_words_with_either_apostrophe() -> None:
    assert terms_of("I don’t know what’s in the depot, it’s said you’d look") == ["know", "depot", "said", "look"]


def test_a_query_of_function_words_alone_has_no_terms_in_any_language() -> None:
    assert query_terms("Who are you?") == query_terms("Wer bist du?") == query_terms("Кто ты?") == ()


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("Nous dormons à l'hôtel.", "Quel hôtel"),
        ("Un hôtel près du port.", "l’hôtel"),
        ("Ho perso l'ombrello nell'ufficio.", "ombrello"),
        ("L'ufficio chiude presto.", "dell'ufficio"),
        ("اشتريت الكتاب أمس.", "كتاب"),
        ("هذا كتاب جديد.", "بالكتاب"),
    ],
)
def test_a_word_is_found_with_and_without_what_is_written_together_with_it(stored: str, text: str) -> None:
    assert _found(_index(stored, "Etwas anderes."), text) == [1]


@pytest.mark.parametrize("stored", ["It is in `load_user_profile`.", "It is in loadUserProfile()."])
@pytest.mark.parametrize("text", ["loadUserProfile?", "Tell me about load_user_profile.", "Which profile is loaded?"])
def test_a_name_in_code_is_found_however_its_words_are_joined(stored: str, text: str) -> None:
    assert _found(_index("The usual one.", stored, "A loader."), text)[0] == 2
    assert wanted_share(text) == 1


@pytest.mark.parametrize(("word", "term"), [("l'hôtel", "l'hotel"), ("الكتاب", "الكتاب")])
def test_a_word_is_found_in_messages_that_were_stored_with_its_prefix(word: str, term: str) -> None:
    packed = packed_text("x") + pack("<I", term_hash(term) << 5 | 1)
    index = EMPTY.extended(Packed(np.array([1]), np.array([1]), packed), 1)
    assert _found(index, word) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "Kannst du mir bitte noch einmal sagen, wie der Hund von meiner Schwester heißt und wo wir ihn gekauft haben?",
        "Peux-tu me redire comment s'appelle le chien de ma sœur et où nous l'avons acheté ?",
        "¿Me puedes recordar cómo se llama el perro de mi hermana y dónde lo compramos?",
        "Напомни, пожалуйста, как зовут собаку моей сестры и где мы её купили?",
        "你还记得我妹妹的狗叫什么名字，我们在哪里买的吗",
        "妹の犬の名前は何でしたか",
        "หมาของน้องสาวฉันชื่ออะไร",
        "Πώς λένε τον σκύλο της αδελφής μου και πού τον πήραμε;",
    ],
)
def test_a_question_gets_its_room_in_any_language(text: str) -> None:
    assert wanted_share(text) > 0.6


def test_marks_without_letters_are_sorted_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting them takes quadratic time, in a call that blocks all threads."""
    lengths: list[int] = []
    normalize = unicodedata.normalize

    def measured(form: Literal["NFC", "NFKD"], text: str) -> str:
        lengths.append(len(text))
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", measured)
    marks = "\u0301" * 4_000 + "\u0316" * 4_000
    assert terms_of(f"Garten {marks} Höhle {marks} Größe") == ["garten", "hohl", "gross"]
    assert max(lengths) < 1_000


def test_letters_that_stand_for_phrases_give_no_more_words_than_a_long_text() -> None:
    assert len(terms_of("\ufdfa" * 64_000)) < 64_000
