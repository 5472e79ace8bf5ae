import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api";
import { day, plural } from "../format";
import { speakerOf } from "../messages";
import { useResource } from "../resource";
import { addressOf, goTo, type Tab } from "../router";
import type { FoundMessage } from "../types";
import { Failure } from "../ui/failure";
import { Marked } from "../ui/marked";
import { useSearchKey } from "../ui/search-key";
import { useSettled } from "../ui/settled";
import { excerptOf, foundWords, otherReasons, termsOf } from "../words";

interface Found {
  items: FoundMessage[];
  unsearched_messages: number;
}

const MOST_FOUND = 20;

interface Props {
  sessionId: string;
  tab: Tab;
  /** The turn that the window shows: any found one can be compared with it. */
  turn: string | null;
  total: number;
}

/** Finds messages of a session by their words and, where the service can, by their meaning; and turns by their number. */
export function SessionSearch({ sessionId, tab, turn, total }: Props) {
  const field = useSearchKey();
  const [typed, setTyped] = useState("");
  const [open, setOpen] = useState(false);
  const own = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!open) return;
    const leave = ({ target }: Event) => {
      if (target instanceof Node && !own.current?.contains(target)) setOpen(false);
    };
    window.addEventListener("pointerdown", leave);
    window.addEventListener("focusin", leave);
    return () => {
      window.removeEventListener("pointerdown", leave);
      window.removeEventListener("focusin", leave);
    };
  }, [open]);
  const words = useSettled(typed.trim(), 250);
  const seq = numberOf(words);
  const found = useResource<Found | null>(
    (signal) => (words && seq === null ? search(words, signal) : Promise.resolve(null)),
    [sessionId, words],
  );
  const shown = found.problem ? null : found.value; // what was found before, by other words, is no answer to these
  const target = tab === "chat" ? "chat" : "window";
  const terms = termsOf(words);
  const within = (number: number) => Math.max(1, Math.min(number, total));

  function search(text: string, signal?: AbortSignal): Promise<Found> {
    return call(`sessions/${sessionId}/search`, { query: { q: text, limit: MOST_FOUND }, ...(signal && { signal }) });
  }

  /** Goes by what is in the field now, which may be newer than what is shown. */
  async function submit(event: Event) {
    event.preventDefault();
    const text = typed.trim();
    const isShown = text === words && !found.loading;
    const hits = isShown || !text || numberOf(text) ? shown : await search(text).catch(() => null);
    const first = numberOf(text) ?? hits?.items[0]?.turn_seq;
    if (!first || field.current?.value.trim() !== text) return; // something else was typed, or the page was left
    setOpen(false);
    goTo(addressOf(sessionId, target, within(first)));
  }

  return (
    <search class="session-search" ref={own}>
      <form onSubmit={(event) => void submit(event)}>
        <label for="session-words" class="unseen">
          Search this session, or go to a turn by its number
        </label>
        <input
          id="session-words"
          ref={field}
          type="search"
          placeholder="Search, or a turn's number"
          title="Ctrl+K leads here"
          value={typed}
          onFocus={() => setOpen(true)}
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            setOpen(true);
          }}
          onKeyDown={(event) => event.key === "Escape" && setOpen(false)}
        />
      </form>
      {words && open && (
        <div class="card found" role="status">
          <Failure why={found.problem} onRetry={found.reload} />
          {seq !== null && (
            <a href={addressOf(sessionId, target, within(seq))} onClick={() => setOpen(false)}>
              {seq > total ? `There are ${plural(total, "turn")}: go to the last` : `Go to turn ${seq}`}
            </a>
          )}
          {found.loading && seq === null && <p class="quiet">Searching…</p>}
          {shown?.items.length === 0 && !found.loading && <p class="quiet">No message matches.</p>}
          <ol class="plain-list">
            {(shown?.items ?? []).map((hit) => (
              <li key={hit.message_id}>
                <a href={addressOf(sessionId, target, hit.turn_seq)} onClick={() => setOpen(false)}>
                  Turn {hit.turn_seq}, {speakerOf(hit)}
                </a>{" "}
                <span class="quiet small">{day(hit.said_at)}</span> <FoundExcerpt hit={hit} terms={terms} />{" "}
                {tab === "window" && turn && turn !== String(hit.turn_seq) && (
                  <a
                    class="small"
                    href={addressOf(sessionId, "window", turn, hit.turn_seq)}
                    aria-label={`Compare turn ${turn} with turn ${hit.turn_seq}`}
                    onClick={() => setOpen(false)}
                  >
                    compare
                  </a>
                )}
              </li>
            ))}
          </ol>
          {(shown?.unsearched_messages ?? 0) > 0 && (
            <p class="small quiet">{plural(shown?.unsearched_messages ?? 0, "old message")} not searched.</p>
          )}
        </div>
      )}
    </search>
  );
}

function FoundExcerpt({ hit, terms }: { hit: FoundMessage; terms: ReadonlySet<string> }) {
  const named = foundWords(hit);
  const matched = named.length ? termsOf(named.join(" ")) : terms;
  const reasons = otherReasons(hit);
  return (
    <>
      {reasons.length > 0 && <strong class="small">{reasons.join(", ")}: </strong>}
      <Marked text={excerptOf(hit.excerpt, matched, 160)} terms={matched} />
    </>
  );
}

function numberOf(text: string): number | null {
  return /^\d+$/.test(text) ? Number(text) : null;
}
