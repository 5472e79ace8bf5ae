import { useState } from "preact/hooks";
import { call } from "../api";
import { plural } from "../format";
import { useResource } from "../resource";
import { addressOf, goTo, type Tab } from "../router";
import { Marked } from "../ui/marked";
import { useSettled } from "../ui/settled";
import { excerptOf, termsOf } from "../words";

interface Found {
  items: { message_id: string; turn_seq: number; role: string; excerpt: string }[];
  unsearched_messages: number;
}

const MOST_FOUND = 20;

interface Props {
  sessionId: string;
  tab: Tab;
  total: number;
}

/** Finds messages of a session by their words, and turns by their number. */
export function SessionSearch({ sessionId, tab, total }: Props) {
  const [typed, setTyped] = useState("");
  const words = useSettled(typed.trim(), 250);
  const seq = /^\d+$/.test(words) ? Number(words) : null;
  const found = useResource<Found | null>(
    (signal) =>
      words && seq === null
        ? call(`sessions/${sessionId}/search`, { query: { q: words, limit: MOST_FOUND }, signal })
        : Promise.resolve(null),
    [sessionId, words],
  );
  const target = tab === "chat" ? "chat" : "window";
  const terms = termsOf(words);

  function submit(event: Event) {
    event.preventDefault();
    const first = seq ?? found.value?.items[0]?.turn_seq;
    if (first) goTo(addressOf(sessionId, target, Math.max(1, Math.min(first, total))));
  }

  return (
    <search class="session-search">
      <form onSubmit={submit}>
        <label for="session-words" class="unseen">
          Search this session, or go to a turn by its number
        </label>
        <input
          id="session-words"
          type="search"
          placeholder="Search, or a turn's number"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && setTyped("")}
        />
      </form>
      {words && (
        <div class="card found" role="status">
          {found.problem && <p class="notice bad">{found.problem}</p>}
          {seq !== null && (
            <a href={addressOf(sessionId, target, Math.max(1, Math.min(seq, total)))}>
              {seq > total ? `There are ${plural(total, "turn")}: go to the last` : `Go to turn ${seq}`}
            </a>
          )}
          {found.loading && seq === null && <p class="quiet">Searching…</p>}
          {found.value?.items.length === 0 && !found.loading && <p class="quiet">No message has these words.</p>}
          <ol class="plain-list">
            {(found.value?.items ?? []).map((hit) => (
              <li key={hit.message_id}>
                <a href={addressOf(sessionId, target, hit.turn_seq)}>
                  Turn {hit.turn_seq}, {hit.role}
                </a>{" "}
                <Marked text={excerptOf(hit.excerpt, terms, 160)} terms={terms} />
              </li>
            ))}
          </ol>
          {(found.value?.unsearched_messages ?? 0) > 0 && (
            <p class="small quiet">
              {plural(found.value?.unsearched_messages ?? 0, "old message")} could not be searched yet.
            </p>
          )}
        </div>
      )}
    </search>
  );
}
