import { useState } from "preact/hooks";
import { call, type Page } from "../api";
import { day } from "../format";
import { speakerOf } from "../messages";
import { sentenceOf, useResource } from "../resource";
import { addressOf } from "../router";
import { Failure } from "../ui/failure";
import { Marked } from "../ui/marked";
import { titleOf } from "../title";
import type { FoundMessage, Session } from "../types";
import { excerptOf, termsOf } from "../words";

const AT_ONCE = 20;

interface Found extends Page<FoundMessage> {
  titles: [sessionId: string, title: string][];
}

async function foundIn(words: string, after: string | null, signal?: AbortSignal): Promise<Found> {
  const options = signal && { signal };
  const page = await call<Page<FoundMessage>>("search", {
    query: { q: words, limit: AT_ONCE, cursor: after },
    ...options,
  });
  const ids = new Set(page.items.map((hit) => hit.session_id));
  const read = await Promise.allSettled([...ids].map((id) => call<Session>(`sessions/${id}`, options)));
  const titles = read.flatMap((one) =>
    one.status === "fulfilled" ? [[one.value.id, titleOf(one.value)] as [string, string]] : [],
  );
  return { ...page, titles };
}

/** Messages of all sessions that have the words, below the sessions that are found by them. */
export function FoundEverywhere({ words }: { words: string }) {
  const [more, setMore] = useState<Found[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  const first = useResource<Found>((signal) => foundIn(words, null, signal), [words]);
  const pages = first.value ? [first.value, ...more] : [];
  const hits = pages.flatMap((page) => page.items);
  const cursor = pages.at(-1)?.next_cursor ?? null;
  const titles = new Map(pages.flatMap((page) => page.titles));
  const terms = termsOf(words);

  async function readOn() {
    setProblem(null);
    try {
      const page = await foundIn(words, cursor);
      setMore((before) => {
        const goesOn = (before.at(-1) ?? first.value)?.next_cursor === cursor; // not so after a second click
        return goesOn ? [...before, page] : before;
      });
    } catch (error) {
      setProblem(sentenceOf(error));
    }
  }

  return (
    <section aria-labelledby="in-messages">
      <h2 id="in-messages">In messages</h2>
      <Failure why={problem} />
      <Failure why={first.problem} onRetry={first.reload} />
      {first.loading && <p class="quiet">Searching…</p>}
      {first.value && !first.loading && hits.length === 0 && (
        <p class="quiet">{cursor ? "None in the newest sessions." : "No message has all of these words."}</p>
      )}
      <ol class="plain-list found">
        {hits.map((hit) => (
          <li key={hit.message_id}>
            <a href={addressOf(hit.session_id, "window", hit.turn_seq)}>
              {titles.get(hit.session_id) ?? `Session ${hit.session_id.slice(-8)}`}, turn {hit.turn_seq}
            </a>{" "}
            <span class="quiet">
              {speakerOf(hit)}, {day(hit.said_at)}
            </span>{" "}
            <Marked text={excerptOf(hit.excerpt, terms, 200)} terms={terms} />
          </li>
        ))}
      </ol>
      {cursor && (
        <button type="button" onClick={() => void readOn()}>
          Search older sessions
        </button>
      )}
    </section>
  );
}
