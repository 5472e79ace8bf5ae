// Words as recall compares them: the same folding, stems and common words as apps/api/app/engine/recall/terms.py has, so
// that what is highlighted is what matched. Scripts without spaces are compared in runs of two characters there and not
// highlighted here.

import { firstOf } from "./format";
import type { Reasons } from "./types";

const WORD = /[\p{L}\p{N}_]+(?:['’]\p{L}+)?/gu;
const STEM_CHARACTERS = 6;
const ENDINGS = [
  ["ies", "y"],
  ["sses", "ss"],
  ["ing", ""],
  ["ied", "y"],
  ["ed", ""],
  ["ly", ""],
  ["es", "e"],
  ["s", ""],
] as const;
const COMMON = new Set(
  `a about after all also am an and any are as at be because been before being but by can could did do does doing don't
  down each for from had has have having he her here hers him his how i i'd i'll i'm i've if in into is isn't it it's
  its just may me might more most must my no nor not of off on once only or other our ours out over own same shall she
  should so some such than that that's the their theirs them then there these they they're this those through to too
  under until up very was wasn't we we're we've were what what's when where which while who whom whose why will with
  would you you'd you'll you're you've your yours`.split(/\s+/),
);

/** A stretch of a text; `term` is empty for what is no word of meaning. */
export interface Piece {
  text: string;
  term: string;
}

/** The whole text, cut at its words. */
export function piecesOf(text: string): Piece[] {
  const pieces: Piece[] = [];
  let at = 0;
  for (const found of text.matchAll(WORD)) {
    if (found.index > at) pieces.push({ text: text.slice(at, found.index), term: "" });
    pieces.push({ text: found[0], term: termOf(found[0]) });
    at = found.index + found[0].length;
  }
  if (at < text.length) pieces.push({ text: text.slice(at), term: "" });
  return pieces;
}

export function termsOf(text: string): Set<string> {
  return new Set(
    piecesOf(text)
      .map((piece) => piece.term)
      .filter(Boolean),
  );
}

/** Words of a text that stand for these terms, each once, as they are written there. */
export function wordsWith(text: string, terms: ReadonlySet<string>): string[] {
  const words = new Map<string, string>();
  for (const { text: word, term } of piecesOf(text)) {
    if (terms.has(term) && !words.has(term)) words.set(term, word);
  }
  return [...words.values()];
}

/** At most so many characters from a little before the first of the terms, on one line. */
export function excerptOf(text: string, terms: ReadonlySet<string>, characters: number): string {
  const line = text.replace(/\s+/g, " ").trim();
  if (line.length <= characters) return line;
  let first = 0;
  for (const { text: word, term } of piecesOf(line)) {
    if (terms.has(term)) break;
    first += word.length;
  }
  const start = first >= line.length ? 0 : Math.max(0, Math.min(first - characters / 4, line.length - characters));
  const before = firstOf(line, start);
  const part = firstOf(line.slice(before.length), characters);
  return `${before && "…"}${part}${before.length + part.length < line.length ? "…" : ""}`;
}

function termOf(word: string): string {
  const folded = word
    .toLowerCase()
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "");
  if (COMMON.has(folded)) return "";
  const bare = folded.replace(/['’]s$/, "");
  return /^\p{L}+$/u.test(bare) ? stemOf(bare).slice(0, STEM_CHARACTERS) : bare;
}

function stemOf(given: string): string {
  let word = given;
  if (word.length === 4 && word.endsWith("s") && !word.endsWith("ss")) return word.slice(0, -1);
  if (word.length <= 4) return word;
  const ending = word.endsWith("ss")
    ? undefined
    : ENDINGS.find(([end, rest]) => word.endsWith(end) && word.length - end.length + rest.length >= 3);
  if (ending) word = word.slice(0, -ending[0].length) + ending[1];
  const last = word.at(-1) ?? "";
  if (word.length > 3 && last === word.at(-2) && !"aeiouls".includes(last)) word = word.slice(0, -1);
  return word.length > 3 && word.endsWith("e") ? word.slice(0, -1) : word;
}

/** The words of a found message's text that it was found for. */
export function foundWords({ matched = [], related = [] }: Reasons): string[] {
  return [...matched, ...related.map((pair) => pair.word)];
}

/** Why a message was found, besides the words that were looked for. */
export function otherReasons({ related = [], similarity = null }: Reasons): string[] {
  const similar = similarity === null ? [] : [`similar meaning (${similarity.toFixed(1)})`];
  return [...related.map((pair) => `${pair.word} (related to ${pair.of})`), ...similar];
}
