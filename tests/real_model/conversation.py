"""What is said to the model: a bakery opens a second shop. Prose, figures, a table, code, German and Japanese.

Figures are there on purpose: Gemma spends a token on every digit, where our encoding takes three at a time, so its own
count runs ahead of our estimate.
"""

from __future__ import annotations

TURNS = (
    "Hello. I run a bakery on Harbour Street and we open a second shop at Mill Lane 14 on 7 March. I want to think it "
    "through with you over the next days. Please keep track of what we decide. First question: what would you settle "
    "before anything else?",
    "The lease is signed: 1,850 euros a month, 36 months, three months' notice after the first year. The deposit of "
    "5,550 euros was paid on 12 January. Never suggest that we move out of Harbour Street, that shop stays whatever "
    "happens.",
    "Here is what the old oven did in the week of 19 January, so that we know what the new one has to carry. Time, "
    "deck, set temperature, measured temperature, loaves, kilowatt-hours:\n"
    "Mon 04:10, deck 1, 245, 238.4, 48, 11.72\nMon 04:55, deck 2, 230, 229.1, 36, 9.03\n"
    "Mon 06:20, deck 1, 245, 240.7, 48, 11.55\nTue 04:05, deck 1, 245, 236.9, 52, 12.08\n"
    "Tue 05:00, deck 2, 230, 227.5, 40, 9.61\nTue 06:15, deck 3, 210, 211.3, 64, 7.94\n"
    "Wed 04:12, deck 1, 245, 237.2, 48, 11.90\nWed 04:58, deck 2, 230, 228.8, 36, 9.12\n"
    "Wed 06:31, deck 1, 245, 239.9, 44, 10.87\nThu 04:02, deck 1, 245, 235.6, 56, 12.66\n"
    "Thu 04:49, deck 2, 230, 226.0, 40, 9.77\nThu 06:10, deck 3, 210, 212.8, 72, 8.41\n"
    "Fri 03:48, deck 1, 245, 234.1, 64, 13.95\nFri 04:40, deck 2, 230, 225.3, 48, 10.62\n"
    "Fri 05:33, deck 1, 245, 236.0, 64, 13.71\nFri 06:25, deck 3, 210, 210.9, 80, 9.02\n"
    "Sat 03:30, deck 1, 245, 233.5, 72, 14.88\nSat 04:21, deck 2, 230, 224.7, 52, 11.04\n"
    "Sat 05:15, deck 1, 245, 235.2, 72, 14.61\nSat 06:08, deck 3, 210, 209.6, 88, 9.73\n"
    "Deck 1 never reaches what is set. Is that the thermostat or the door seal?",
    "The door seal it was; the man came and replaced it for 184.50 euros, invoice 2026-0117. Remind me to measure deck "
    "1 again on Monday.",
    "We have two offers for the new oven. Brandt wants 23,400 euros for four decks with a steam unit, delivery in six "
    "weeks. Lindqvist wants 19,950 for three decks, delivery in three weeks, and 1,200 more for the stone plates. What "
    "speaks for which?",
    "We take the Lindqvist with the stone plates. Six weeks would be 9 March and that is after the opening. Order "
    "number LQ-88213, down payment 7,050 euros, due on 2 February.",
    "Now the staff. This is what we have, what they want, and what the law asks of us. Marta Kowalczyk, baker, 39 "
    "hours, starts at 03:30, wants no Saturdays in April because her daughter has confirmation classes. Jonas Ohlsen, "
    "baker, 32 hours, would like 38.5 and is the only other one who can run the deck oven alone. Amina Diallo, "
    "apprentice in her second year, school on Tuesdays and every other Thursday, may not start before 04:00 and needs "
    "an adult beside her until June. Pieter de Wit sells, 25 hours, speaks Dutch, German and English, and has worked "
    "in Mill Lane before, so he knows half of the street by name. Ilse Brandt sells too, 20 hours, mornings only; she "
    "is no relation of the oven people. For the new shop we need two who bake from Tuesday to Saturday and two who "
    "sell, of whom one opens at 06:30 and one closes at 18:00. Nobody may work more than ten hours a day, there have "
    "to be eleven hours between two shifts, and every second Sunday is free for everyone. I would rather hire one "
    "person than have five tired ones. Who goes where?",
    "Jonas gets his 38.5 hours and leads Mill Lane. We look for one more baker, 30 hours, from 1 March. That is "
    "decided.",
    "Kannst du mir die Anzeige dafür schreiben? Kurz und freundlich, ohne Ausrufezeichen: Bäckerin oder Bäcker "
    "gesucht, dreißig Stunden, Mühlgasse vierzehn, Beginn um vier Uhr, übertarifliche Bezahlung, zwei freie "
    "Wochenenden im Monat, Bewerbung bis fünfzehnten Februar bei Jonas.",
    "Our card terminal exports its takings like this. How many sales were over ten euros?\n"
    "```python\nrows = [line.split(';') for line in open('takings_2026-02-03.csv')]\n"
    "total = sum(float(row[3].replace(',', '.')) for row in rows[1:])\n"
    "print(f'{len(rows) - 1} sales, {total:.2f} euros')\n```\n"
    "It printed: 412 sales, 2963.85 euros.",
    "A visitor from Osaka left this in the guest book, what does it say? "
    "「朝早くから焼きたてのパンの香りがして、とても幸せな気持ちになりました。ライ麦パンは日本に持って帰りたいです。また来年、家族と一緒に来ます。」",
    "The flour prices for the whole year came in. Kind, sack in kilograms, price per sack, sacks a month, supplier's "
    "article number:\n"
    "Wheat 550, 25, 17.85, 64, 4006381-550\nWheat 812, 25, 18.40, 22, 4006381-812\n"
    "Wheat 1050, 25, 19.10, 18, 4006381-105\nRye 997, 25, 16.95, 31, 4006381-997\n"
    "Rye 1150, 25, 17.20, 44, 4006381-115\nRye 1370, 25, 17.60, 12, 4006381-137\n"
    "Rye wholemeal, 25, 18.05, 15, 4006381-160\nSpelt 630, 25, 31.20, 19, 4006381-630\n"
    "Spelt 812, 25, 31.90, 6, 4006381-631\nSpelt wholemeal, 25, 33.45, 8, 4006381-162\n"
    "Emmer, 10, 22.75, 4, 4006381-701\nEinkorn, 10, 24.90, 3, 4006381-702\n"
    "Buckwheat, 5, 16.40, 2, 4006381-810\nMalt, 5, 12.15, 5, 4006381-905\n"
    "Oat flakes, 20, 21.30, 7, 4006381-920\nSunflower seeds, 25, 46.80, 6, 4006381-931\n"
    "Pumpkin seeds, 12.5, 71.55, 3, 4006381-932\nLinseed, 25, 52.60, 4, 4006381-933\n"
    "If we order for both shops together we get 4.5 percent off from 180 sacks a month. Do we reach that?",
    "We order for both shops together, first delivery on 24 February before seven in the morning, to Harbour Street. "
    "Emmer and einkorn stay out until autumn.",
    "What was the order number of the oven, and when is the down payment due?",
    "It is paid. Now the opening day: I would like a small rye loaf of 500 grams as a present for the first hundred "
    "customers. What does that cost us if rye 1150 is 17.20 euros for 25 kilograms and we need 310 grams of flour for "
    "a loaf?",
    "The health office was here and left a page of findings for Mill Lane. One: the wash basin by the entrance needs "
    "warm water and a dispenser for paper towels, by the day of opening. Two: the ceiling above the deck oven has to "
    "be painted so that it can be washed, and the painter's data sheet has to be kept in the folder. Three: the cold "
    "room was at 8.2 degrees when they measured and may be at 7.0 at most; they want a log with two readings a day, "
    "signed, for the first four weeks. Four: the allergen list is missing for the walnut bread, the cheese rolls and "
    "everything with sesame. Five: the back door does not close tightly and mice do not knock. Six: each of the staff "
    "needs the instruction on hygiene in writing, not older than two years; Amina's and Pieter's were not in the "
    "folder. Seven: flour may not stand on the floor but on pallets at least fifteen centimetres high. They come back "
    "on 27 February, unannounced is what they said, although they had just announced it. Which of these can stop us "
    "from opening?",
    "One, three and five are done. The painter comes on 20 February, Jonas keeps the log of the cold room. Still open: "
    "the allergen list and Pieter's instruction.",
    "I measured deck 1 again: set 245, measured 244.1, 244.6 and 243.8 at 04:10, 05:05 and 06:20. So the seal was all "
    "there was to it. Do we still need the electrician on 18 February at 95 euros an hour?",
    "Cancelled. Write me the five lines I should read on the morning of 7 March, before I unlock the door.",
    "Last question for today: which decisions have we made so far, and what is still open?",
)
"""Twenty messages, shortest first thoughts and long tables in turn, so that any five in a row fit into the window."""


def pasted_records(number: int) -> str:
    """A page of till records, pasted whole as people do: about 1,230 tokens of ours, and more of Gemma's."""
    breads = ("rye loaf", "walnut bread", "cheese roll", "spelt bun", "poppy plait", "sourdough", "butter pretzel")
    lines = (
        f"Receipt {number}{line:03d}: {1 + line * 5 % 4} {breads[(line + number) % 7]}, paid in "
        f"{'cash' if line % 3 else 'coins'}, served by {('Pieter', 'Ilse', 'Amina')[line % 3]} at the front counter."
        for line in range(52)
    )
    return f"Here is page {number} of the till, keep it in mind:\n" + "\n".join(lines)
