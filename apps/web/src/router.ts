// Addresses are behind the `#`: the service serves one page, below whatever path a proxy gives it.
import { useEffect, useMemo, useState } from "preact/hooks";

export type Tab = "window" | "chat" | "memory" | "what-if";
export const TABS: readonly { tab: Tab; label: string }[] = [
  { tab: "window", label: "Window" },
  { tab: "chat", label: "Chat" },
  { tab: "memory", label: "Memory" },
  { tab: "what-if", label: "What if" },
];

export type Place =
  | { page: "sessions" }
  | { page: "session"; sessionId: string; tab: Tab; turn: string | null; otherTurn: string | null };
// A turn is addressed by its number. What knows only its id may use that: the page finds the number.

export function placeOf(hash: string): Place {
  const [, first, sessionId, tab, turn, otherTurn] = hash.replace(/^#/, "").split("/");
  if (first === "sessions" && isId(sessionId)) {
    const known = TABS.find((entry) => entry.tab === tab)?.tab ?? "window";
    const turns = { turn: isId(turn) ? turn : null, otherTurn: isId(otherTurn) ? otherTurn : null };
    return { page: "session", sessionId, tab: known, ...turns };
  }
  return { page: "sessions" };
}

/** Whether it can be an id or a number. Anything else, as `..` or `?`, would lead a request to another route. */
function isId(segment: string | undefined): segment is string {
  return segment !== undefined && /^[\w-]+$/.test(segment);
}

export function addressOf(
  sessionId?: string,
  tab: Tab = "window",
  turn?: string | number | null,
  otherTurn?: string | number | null,
): string {
  if (!sessionId) return "#/";
  return `#/${["sessions", sessionId, tab, turn, otherTurn].filter(Boolean).join("/")}`;
}

export function goTo(address: string): void {
  window.location.hash = address;
}

export function usePlace(): Place {
  const [hash, setHash] = useState(() => window.location.hash);
  useEffect(() => {
    const follow = () => setHash(window.location.hash);
    window.addEventListener("hashchange", follow);
    follow(); // An effect runs after the first paint: the address may have changed since it was read.
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  return useMemo(() => placeOf(hash), [hash]);
}
