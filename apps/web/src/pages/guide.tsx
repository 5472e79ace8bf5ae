// The way through a session that was made to be looked at. Its `metadata.guide` names it.
import { useState } from "preact/hooks";
import { addressOf, type Place, type Tab } from "../router";
import type { Session } from "../types";

interface Step {
  label: string;
  tab: Tab;
  turn?: number;
  text: string;
}

/** Of the session "Demo", which the service brings along: turns and what happened in them are those of its recording. */
const BAKERY: readonly Step[] = [
  {
    label: "The window fills",
    tab: "window",
    turn: 8,
    text: "Mara opens a bakery, in 107 turns and a window of 4,096 tokens. Up to turn 8 every message is sent in full.",
  },
  {
    label: "It is summarized",
    tab: "window",
    turn: 9,
    text: "Eight turns were complete, so the oldest were summarized before the call. “Left out”, below, names them. They stay stored.",
  },
  {
    label: "A forgotten fact comes back",
    tab: "window",
    turn: 103,
    text: "Mara locked herself out. Who has the spare key stood in turn 3. “Recalled”, below, shows the words that brought it back.",
  },
  {
    label: "Ask for it yourself",
    tab: "chat",
    text: "Ask “Who has the spare key of the shop?” The model “offline” only quotes what it was sent; any other answers.",
  },
  {
    label: "Undo a summary",
    tab: "memory",
    text: "“Undo…” shows the effect on the window first. Nothing is lost: the turns are sent in full again, as far as they fit.",
  },
  {
    label: "Compare policies",
    tab: "what-if",
    text: "“Simulate” runs all the turns under other policies and says what each would have changed. No model is called.",
  },
];

export function isGuided(session: Session | null): boolean {
  return session?.metadata.guide === "bakery" && session.forked_from === null; // a fork may end before its steps
}

export function Guide({ place }: { place: Extract<Place, { page: "session" }> }) {
  const [hidden, setHidden] = useState(false);
  if (hidden) return null;
  const current = BAKERY.findIndex(
    (step) => step.tab === place.tab && (step.turn === undefined || String(step.turn) === place.turn),
  );
  const next = BAKERY[current + 1];
  return (
    <nav class="card guide" aria-label="Guide to this session">
      <ol>
        {BAKERY.map((step, at) => (
          <li key={step.label}>
            <a
              href={addressOf(place.sessionId, step.tab, step.turn)}
              aria-current={at === current ? "step" : undefined}
            >
              {step.label}
            </a>
          </li>
        ))}
      </ol>
      <p>{BAKERY[current]?.text ?? "A recorded session to look at. Six steps show what Plimsoll does."}</p>
      <p class="small guide-foot">
        {next && (
          <a href={addressOf(place.sessionId, next.tab, next.turn)}>
            {current < 0 ? "Begin" : "Next"}: {next.label}
          </a>
        )}
        <button type="button" class="plain small" onClick={() => setHidden(true)}>
          Hide the guide
        </button>
      </p>
    </nav>
  );
}
