import { useState } from "preact/hooks";
import { firstOf, tokens } from "../format";

const PIECE = 10_000;

/**
 * Text as it is, in pieces that the browser lays out one by one: for a paragraph that changes its font often (emoji, two
 * scripts) Chromium's time grows with the square of its length, to minutes for a megabyte. A line may break between two.
 */
export function Pieces({ text }: { text: string }) {
  if (text.length <= PIECE) return <>{text}</>;
  return (
    <>
      {piecesOf(text).map((piece, at) => (
        <span key={at} class="piece">
          {piece}
        </span>
      ))}
    </>
  );
}

interface Props {
  text: string;
  /** Characters that are shown at first. */
  most: number;
  class?: string;
}

/** A paragraph that does not push the conversation away: only its beginning, until it is asked for. */
export function LongText({ text, most, ...rest }: Props) {
  const [whole, setWhole] = useState(text.length <= most);
  return (
    <>
      <p class={rest.class}>{whole ? <Pieces text={text} /> : `${firstOf(text, most)}…`}</p>
      {!whole && (
        <button type="button" class="plain small" onClick={() => setWhole(true)}>
          Show all {tokens(text.length)} characters
        </button>
      )}
    </>
  );
}

function piecesOf(text: string): string[] {
  const pieces: string[] = [];
  for (let from = 0; from < text.length; from += pieces.at(-1)?.length ?? PIECE) {
    const longest = firstOf(text.slice(from), PIECE);
    pieces.push(from + longest.length < text.length ? longest.slice(0, endOf(longest)) : longest);
  }
  return pieces;
}

/** Where a piece ends best: behind its last line, else behind its last word. */
function endOf(text: string): number {
  const ends = ["\n", " "].map((mark) => text.lastIndexOf(mark) + 1);
  return ends.find((end) => end > PIECE / 2) ?? text.length;
}
