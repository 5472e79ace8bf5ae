"""What a sentence says by itself, whatever it consists of."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.cues import FINISHES, LIFTS
from app.domain.extractive import SourceText, gather
from app.domain.sentences import DEMAND, demands, proposes_only, read_lasting, read_sentence


@pytest.mark.parametrize("letters", ["aB", "é", "漢", "1"])
def test_one_word_of_a_megabyte_is_read_in_one_pass(letters: str) -> None:
    """From each of its letters again it would take hours, in which no other thread runs."""
    word = letters * (1_000_000 // len(letters))
    assert read_sentence(word).words == (word.lower(),)


def test_long_words_are_not_kept_in_memory() -> None:
    """A summary that was imported or edited may consist of them."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            read_sentence(f"word{number}" * 10_000)
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_long_run_of_capitals_is_no_reference_number_and_is_read_in_one_pass() -> None:
    begun = time.process_time()
    assert read_sentence(f"Case 1 is {'A' * 20_000}").standing == 0
    assert time.process_time() - begun < 1.0  # generous: it takes a few milliseconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("see `a b`x_y", 2),
        ("https://foo_bar", 2),
        ("call run() or x_y", 2),
        ("a@b.de, /etc/hosts", 2),
        ("plain words", 0),
    ],
)
def test_identifiers_count_wherever_one_ends_and_the_next_begins(text: str, count: int) -> None:
    assert read_sentence(text).signals == 0.75 * count


@pytest.mark.parametrize("text", ["Where does the train leave?", "電車はどこから出ますか？", "من أين يغادر القطار؟"])
def test_a_question_ends_in_the_mark_of_its_script(text: str) -> None:
    assert read_sentence(text).kind == "open_questions"


@pytest.mark.parametrize("mark", ["'", "’"])
def test_the_apostrophe_of_phones_and_of_typewriters_is_the_same(mark: str) -> None:
    assert demands(f"Please don{mark}t restart the pump.")
    assert not proposes_only(f"We{mark}ve decided, the oak it is.")
    wanted = SourceText("1", "user", f"I{mark}m looking for a bicycle for 450 euro.")
    assert [unit.text for unit in gather([wanted]).goals] == [wanted.text]


@pytest.mark.parametrize(
    ("text", "kind", "standing", "signals"),
    [
        ("lets keep the oak", "decisions", 0, 0.0),
        ("i would be going with the oak", "decisions", 0, 0.0),
        ("tomorrow we'll use the oak", "decisions", 0, 0.0),
        ("and we will use it", "decisions", 0, 0.0),
        ("please do not paint it", "key_facts", DEMAND, 1.0),
        ("you must not paint it", "key_facts", DEMAND, 1.0),
        ("make sure every door is oak", "key_facts", DEMAND, 0.0),
        ("ask first, and make sure it is oak", "key_facts", DEMAND, 0.0),
        ("“never” paint it", "key_facts", 0, 1.0),
        ("“never paint it”", "key_facts", DEMAND, 1.0),
        ("i want you to never paint it", "key_facts", DEMAND, 1.0),
        ("under no circumstances paint it", "key_facts", DEMAND, 0.0),
        ("stop painting it", "key_facts", DEMAND, 0.0),
        ("the bus stop is painted", "key_facts", 0, 0.0),
        ("avoid any paint", "key_facts", DEMAND, 0.0),
        ("dont ever paint it", "key_facts", DEMAND, 1.0),
        ("pls dont paint it", "key_facts", DEMAND, 1.0),
        ("paint it blue from now on", "key_facts", DEMAND, 0.0),
        ("no more paint, please", "key_facts", DEMAND, 0.0),
        ("please no paint", "key_facts", DEMAND, 0.0),
        ("no problem, please go on and paint it", "key_facts", 0, 0.0),
        ("answer only with a colour", "key_facts", DEMAND, 1.0),
        ("i only answer with a colour", "key_facts", 0, 1.0),
        ("keep every answer short", "key_facts", DEMAND, 0.0),
        ("each reply has to end with a colour", "key_facts", DEMAND, 0.0),
        ("your answers are a great help", "key_facts", 0, 0.0),
        ("whenever i name a colour, mix it", "key_facts", DEMAND, 0.0),
        ("every time i see oak, it is painted", "key_facts", 0, 0.0),
        ("i am allergic to linseed oil", "key_facts", DEMAND, 1.0),
        ("remember that we sold the oak", "key_facts", DEMAND, 1.0),
        ("do you remember the oak", "key_facts", 0, 1.0),
        ("you can avoid any paint", "key_facts", 0, 0.0),
        ("you may stop painting it", "key_facts", 0, 0.0),
        ("you should avoid any paint", "key_facts", DEMAND, 0.0),
        ("bitte antworte immer auf Deutsch", "key_facts", DEMAND, 0.5),
        ("Nennen Sie niemals einen Preis", "key_facts", DEMAND, 1.0),
        ("Er antwortet immer auf Deutsch", "key_facts", 0, 0.5),
        ("Es ist immer noch kalt", "key_facts", 0, 0.0),
        ("Ne réponds jamais trop tard", "key_facts", DEMAND, 0.0),
        ("Il répond toujours trop tard", "key_facts", 0, 0.0),
        ("i am not sure it is oak", "key_facts", 0, 0.0),
        ("it is not painted", "key_facts", 0, 0.0),
        ("it takes at most a day", "key_facts", 0, 1.0),
        ("no more than a day", "key_facts", 0, 1.0),
        ("note that it is oak", "key_facts", 0, 1.0),
        ("more of that", "key_facts", 0, 0.0),
        ("because of the outlet", "key_facts", 0, 0.0),
    ],
)
def test_phrases_are_found_by_their_words(text: str, kind: str, standing: int, signals: float) -> None:
    found = read_sentence(text)
    assert (found.kind, found.standing, found.signals) == (kind, standing, signals)


_DEMANDS = (
    "Schlag mir nie wieder Schweinefleisch vor.",
    "Bitte antworte immer auf Deutsch",
    "Benutze niemals Tabs.",
    "Verwende nur Postgres.",
    "Erwähne auf keinen Fall den Preis.",
    "Bitte keine Emojis.",
    "Keine Emojis, bitte!",
    "Antworte ab jetzt auf Englisch.",
    "Ich bin allergisch gegen Nüsse.",
    "Ne me propose jamais de porc.",
    "Réponds-moi toujours en français.",
    "Pas d'emojis, s'il te plaît.",
    "Je suis allergique aux noix.",
    "Réponds toujours en français.",
    "N'utilise jamais de tabulations.",
    "Utilise uniquement Postgres.",
    "Ne mentionne pas le prix.",
    "Nunca me propongas cerdo.",
    "Responde siempre en español.",
    "Respóndeme siempre en español.",
    "Háblame siempre de tú.",
    "Sin emojis, por favor.",
    "Nico es alérgico a las nueces.",
    "No uses tabuladores.",
    "Usa solo Postgres.",
    "Siempre incluye el precio.",
    "Por favor, no menciones el precio.",
    "Non propormi mai maiale.",
    "Rispondi sempre in italiano.",
    "Rispondimi sempre in italiano.",
    "Non usare i tab.",
    "Usa solo Postgres.",
    "Nunca me sugira carne de porco.",
    "Responda sempre em português.",
    "Me responda sempre em português.",
    "Não use tabs.",
    "Use apenas Postgres.",
    "Stel nooit varkensvlees voor.",
    "Antwoord altijd in het Nederlands.",
    "Gebruik geen tabs.",
    "Gebruik alleen Postgres.",
    "Никогда не предлагай мне свинину.",
    "Всегда отвечай по-русски.",
    "Не используй табуляцию.",
    "Используй только Postgres.",
    "Пожалуйста, не упоминайте цену.",
    "Nigdy nie proponuj mi wieprzowiny.",
    "Zawsze odpowiadaj po polsku.",
    "Nie używaj tabulatorów.",
    "Używaj tylko Postgresa.",
    "Bana asla domuz eti önerme.",
    "Her zaman Türkçe cevap ver.",
    "Sadece Postgres kullan.",
    "不要推荐猪肉。",
    "请始终用中文回答。",
    "千万别用制表符。",
    "必须使用Postgres。",
    "永远不要提到价格。",
    "只用Postgres。",
    "豚肉は勧めないでください。",
    "必ず日本語で答えてください。",
    "タブは使わないで。",
    "価格には絶対に触れないでください。",
    "돼지고기는 절대 추천하지 마세요.",
    "항상 한국어로 대답해 주세요.",
    "탭은 사용하지 마.",
    "반드시 Postgres를 사용하세요.",
    "لا تقترح علي لحم الخنزير أبدا.",
    "أجب دائما بالعربية.",
    "لا تستخدم علامات الجدولة.",
    "Ποτέ μην προτείνεις χοιρινό.",
    "Να απαντάς πάντα στα ελληνικά.",
    "Μην χρησιμοποιείς tabs.",
    "मुझे कभी सूअर का मांस मत सुझाओ।",
    "हमेशा हिंदी में जवाब दो।",
    "Đừng bao giờ gợi ý thịt lợn.",
    "Luôn trả lời bằng tiếng Việt.",
    "Không được dùng tab.",
)
_NO_DEMANDS = (
    "Ich habe immer Hunger.",
    "Das ist nie passiert.",
    "Wir waren schon immer Freunde.",
    "Ich weiß nicht, was ich will.",
    "J'ai toujours faim.",
    "Il n'est jamais venu.",
    "Je ne sais pas.",
    "On n'utilise pas ça ici.",
    "Siempre he querido ir a Noruega.",
    "Nunca he estado allí.",
    "No tienes razón.",
    "No sé qué hacer.",
    "Siempre me gustó el mar.",
    "No puedes imaginar lo que pasó.",
    "Ho sempre fame.",
    "Non sono mai stato lì.",
    "Non so cosa fare.",
    "Mi piace sempre.",
    "Sempre quis ir à Noruega.",
    "Nunca estive lá.",
    "Não sei o que fazer.",
    "Eu sempre gostei do mar.",
    "Ik heb altijd honger.",
    "Ik ben er nooit geweest.",
    "Ik weet het niet.",
    "Я всегда хотел в Норвегию.",
    "Я никогда не был там.",
    "Не знаю, что делать.",
    "Не такой уж плохой день.",
    "Всегда было так.",
    "Zawsze chciałem pojechać do Norwegii.",
    "Nigdy tam nie byłem.",
    "Nie wiem.",
    "Her zaman Norveç'e gitmek istedim.",
    "Asla orada bulunmadım.",
    "我总是很饿。",
    "我不要紧。",
    "他必须走了。",
    "我从来没去过那里。",
    "我别的都喜欢。",
    "いつもお腹が空いています。",
    "昨日は行かないでいました。",
    "知りませんでした。",
    "항상 배가 고파요.",
    "절대 안 갔어요.",
    "어제 갔어요.",
    "كنت دائما جائعا.",
    "لم أذهب هناك أبدا.",
    "لا أعرف.",
    "Πάντα ήθελα να πάω στη Νορβηγία.",
    "Ποτέ δεν πήγα εκεί.",
    "मुझे हमेशा भूख लगती है।",
    "मैं कभी नहीं गया।",
    "Tôi luôn đói.",
    "Tôi chưa bao giờ đến đó.",
)


@pytest.mark.parametrize("text", _DEMANDS)
def test_what_has_to_hold_is_recognized_in_other_languages(text: str) -> None:
    assert read_sentence(text).standing == DEMAND
    assert read_lasting(text) == read_sentence(text)
    assert demands(f"OK. {text}\n{_NO_DEMANDS[0]}")


@pytest.mark.parametrize("text", _NO_DEMANDS)
def test_what_always_or_never_was_is_no_demand_in_other_languages(text: str) -> None:
    assert read_sentence(text).standing != DEMAND
    assert not demands(f"OK. {text}\n{_NO_DEMANDS[0]}")


@pytest.mark.parametrize("part", ["，", "必ず", "지 마", " मत", "asla me", "不", "né ", "siempre ", "не ", "a"])
def test_no_sentence_takes_long(part: str) -> None:
    text = part * (8_000 // len(part))
    started = time.process_time()
    read_sentence(text)
    assert time.process_time() - started < 0.5  # it takes some ms at most


_PARTS = (
    "never", "do", "not", "must", "only", "need", "to", "next", "will", "done", "no", "longer", "now", "again", "is",
    "12", "/srv/data", "a@b.de", "`x`", "cat?", "the",
)  # fmt: skip


@given(st.lists(st.sampled_from(_PARTS) | st.text(max_size=8), max_size=10).map(" ".join))
def test_a_sentence_that_is_left_out_neither_lasts_nor_closes_anything(text: str) -> None:
    whole, found = read_sentence(text), read_lasting(text)
    assert found in (None, whole)
    if found is None:
        assert (whole.standing, whole.cues & (FINISHES | LIFTS)) == (0, 0)
        assert whole.kind != "action_items"
