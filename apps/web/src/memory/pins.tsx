import { useState } from "preact/hooks";
import { all, call } from "../api";
import { cut, plural, tokens } from "../format";
import { useTurnChanges, useThrottled } from "../live";
import { useResource } from "../resource";
import type { Pin } from "../types";
import { Confirm } from "../ui/confirm";
import { Failure } from "../ui/failure";
import { Gauge } from "../ui/gauge";
import { useKeptFocus } from "../ui/kept-focus";
import { Outcome, type Result, resultOf } from "../ui/outcome";
import { PinForm } from "./pin-form";
import { otherReasons } from "../words";

const NEW: Pin = { name: "", content: "", relevance: null, source: null };
const SHOWN_CHARACTERS = 400;

export function Pins({ sessionId }: { sessionId: string }) {
  const pins = useResource<Pin[]>(() => all<Pin>(`sessions/${sessionId}/pins`, { figures: true }), [sessionId]);
  const [edited, setEdited] = useState<Pin | null>(null);
  const [leaving, setLeaving] = useState<Pin | null>(null);
  const [result, setResult] = useState<Result | null>(null);
  const soon = useThrottled(pins.reload, 500);
  useTurnChanges((change) => {
    if (change === null || change.session_id === sessionId) soon(); // what is computed goes by the newest message
  });

  const listed = pins.value ?? [];

  async function change(done: string, todo: () => Promise<unknown>) {
    setResult(null);
    try {
      await todo();
      setEdited(null);
      setResult({ kind: "done", text: done });
    } catch (error) {
      setResult(resultOf(error));
    }
    pins.reload();
  }

  const save = ({ name, content, relevance, source }: Pin) =>
    change(`Pinned ${name}.`, async () => {
      if (edited === NEW && listed.some((pin) => pin.name === name)) {
        throw new Error(`There is a pin “${name}” already. Change it below, or give this one another name.`);
      }
      await call(pinPath(sessionId, name), { method: "PUT", body: { content, relevance, source } });
    });
  const remove = (pin: Pin) =>
    change(`${pin.name} was unpinned.`, async () => call(pinPath(sessionId, pin.name), { method: "DELETE" }));

  const add = useKeptFocus<HTMLButtonElement>(`${edited === null} ${listed.length}`);
  const cost = listed.reduce((sum, pin) => sum + (pin.figures?.tokens ?? 0), 0);
  return (
    <section aria-labelledby="pins">
      <div class="title-row">
        <h2 id="pins">Pins</h2>
        <button ref={add} type="button" onClick={() => setEdited(NEW)}>
          New pin
        </button>
      </div>
      <Failure why={pins.problem} onRetry={pins.reload} />
      <Outcome result={result} />
      {edited && (
        <PinForm key={edited.name} pin={edited} onSave={(pin) => void save(pin)} onLeave={() => setEdited(null)} />
      )}
      {pins.loading && !pins.value && <p class="quiet">Reading the pins…</p>}
      {pins.value?.length === 0 && <p class="quiet">There are no pins. Pinned content is part of every prompt.</p>}
      {listed.length > 0 && (
        <p class="small quiet">
          {plural(listed.length, "pin")}, {plural(cost, "token")} in every prompt.
        </p>
      )}
      <ul class="plain-list">
        {listed.map((pin) => (
          <li class="card" key={pin.name}>
            <div class="summary-head">
              <h3>{pin.name}</h3>
              {pin.figures && <span class="number">{tokens(pin.figures.tokens)} tokens</span>}
            </div>
            {pin.source && <p class="small quiet">{pin.source}</p>}
            {pin.figures && <Relevance figures={pin.figures} />}
            <p class="pin-text">{cut(pin.content, SHOWN_CHARACTERS)}</p>
            <div class="buttons">
              <button type="button" aria-label={`Change ${pin.name}`} onClick={() => setEdited(pin)}>
                Change
              </button>
              <button type="button" aria-label={`Unpin ${pin.name}`} onClick={() => setLeaving(pin)}>
                Unpin…
              </button>
            </div>
          </li>
        ))}
      </ul>
      {leaving && (
        <Confirm
          title={`Unpin ${cut(leaving.name, 60)}?`}
          action="Unpin"
          onConfirm={() => void remove(leaving)}
          onLeave={() => setLeaving(null)}
        >
          <p>Later prompts do not contain it. Earlier prompts do not change.</p>
        </Confirm>
      )}
    </section>
  );
}

function Relevance({ figures }: { figures: NonNullable<Pin["figures"]> }) {
  const { relevance, relevance_from: from } = figures;
  const reasons = [...(figures.matched ?? []), ...otherReasons(figures)];
  const why = reasons.length ? `: ${reasons.join(", ")}` : "";
  return (
    <div class="relevance">
      <span class="small">
        Relevance {wordOf(relevance)} <span class="number">({relevance.toFixed(2)})</span>{" "}
        <span class="quiet">
          {from === "given" ? "as you set it" : `as a search for the goal and the newest message finds it${why}`}
        </span>
      </span>
      <Gauge part={relevance} of={1} plain />
    </div>
  );
}

function wordOf(relevance: number): string {
  return relevance >= 0.66 ? "high" : relevance >= 0.33 ? "medium" : "low";
}

/**
 * Where a pin is. A browser takes `.` and `..` in an address for folders, however they are written: the request would
 * go to something else, so there is none.
 */
function pinPath(sessionId: string, name: string): string {
  if (name === "." || name === "..") throw new Error("A browser cannot address a pin of this name; the API can.");
  return `sessions/${sessionId}/pins/${encodeURIComponent(name)}`;
}
