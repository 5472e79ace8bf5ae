import { call, type Page } from "../api";
import { dateTime, tokens } from "../format";
import { useNews, useThrottled } from "../live";
import type { Pin, Summary } from "../memory/types";
import { useResource } from "../resource";
import type { ModelList } from "../types";

/** What stands for the past: summaries and pins. */
export function MemoryTab({ sessionId }: { sessionId: string; models: ModelList }) {
  const path = `sessions/${sessionId}`;
  const summaries = useResource<Page<Summary>>((signal) => call(`${path}/summaries`, { signal }), [sessionId]);
  const pins = useResource<Page<Pin>>((signal) => call(`${path}/pins`, { signal }), [sessionId]);
  const refresh = useThrottled(summaries.reload, 500);
  useNews((news) => {
    if (news === null || news.session_id === sessionId) refresh();
  });
  return (
    <>
      <section aria-labelledby="summaries-title">
        <h2 id="summaries-title">Summaries</h2>
        <ul>
          {summaries.value?.items.map((summary) => (
            <li key={summary.id}>
              <strong>{summary.status}</strong> · {dateTime(summary.created_at)} · {tokens(summary.token_estimate)}{" "}
              tokens
              <p>{summary.summary_text}</p>
            </li>
          ))}
        </ul>
      </section>
      <section aria-labelledby="pins-title">
        <h2 id="pins-title">Pins</h2>
        <ul>
          {pins.value?.items.map((pin) => (
            <li key={pin.name}>
              <strong>{pin.name}</strong> {pin.content}
            </li>
          ))}
        </ul>
      </section>
    </>
  );
}
