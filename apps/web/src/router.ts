// Addresses are behind the `#`: the service serves one page, below whatever path a proxy gives it.
import { useEffect, useState } from "preact/hooks";

export type Tab = "window" | "chat" | "memory" | "what-if";
export const TABS: readonly { tab: Tab; label: string }[] = [
  { tab: "window", label: "Window" },
  { tab: "chat", label: "Chat" },
  { tab: "memory", label: "Memory" },
  { tab: "what-if", label: "What if" },
];

export type Place =
  | { page: "sessions" }
  | { page: "session"; sessionId: string; tab: Tab; turnId: string | null; otherTurnId: string | null };

export function placeOf(hash: string): Place {
  const [, first, sessionId, tab, turnId, otherTurnId] = hash.replace(/^#/, "").split("/");
  if (first === "sessions" && sessionId) {
    const known = TABS.find((entry) => entry.tab === tab)?.tab ?? "window";
    return { page: "session", sessionId, tab: known, turnId: turnId || null, otherTurnId: otherTurnId || null };
  }
  return { page: "sessions" };
}

export function addressOf(
  sessionId?: string,
  tab: Tab = "window",
  turnId?: string | null,
  otherTurnId?: string | null,
): string {
  if (!sessionId) return "#/";
  return `#/${["sessions", sessionId, tab, turnId, otherTurnId].filter(Boolean).join("/")}`;
}

export function goTo(address: string): void {
  window.location.hash = address;
}

export function usePlace(): Place {
  const [place, setPlace] = useState(() => placeOf(window.location.hash));
  useEffect(() => {
    const follow = () => setPlace(placeOf(window.location.hash));
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  return place;
}
