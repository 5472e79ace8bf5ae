import { piecesOf } from "../words";

/** A text with its words of these terms highlighted. */
export function Marked({ text, terms }: { text: string; terms: ReadonlySet<string> }) {
  return (
    <>{piecesOf(text).map((piece, at) => (terms.has(piece.term) ? <mark key={at}>{piece.text}</mark> : piece.text))}</>
  );
}
