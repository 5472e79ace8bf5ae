import { useState } from "preact/hooks";
import { all, call } from "../api";
import { cut } from "../format";
import { sentenceOf, useResource } from "../resource";
import type { Pin } from "../types";
import { Gauge } from "../ui/gauge";

const NEW: Pin = { name: "", content: "", relevance: null, source: null };

export function Pins({ sessionId }: { sessionId: string }) {
  const pins = useResource<Pin[]>(() => all<Pin>(`sessions/${sessionId}/pins`), [sessionId]);
  const [edited, setEdited] = useState<Pin | null>(null);
  const [problem, setProblem] = useState<string | null>(null);

  async function change(todo: Promise<unknown>) {
    setProblem(null);
    try {
      await todo;
      setEdited(null);
    } catch (error) {
      setProblem(sentenceOf(error));
    }
    pins.reload();
  }

  const path = (name: string) => `sessions/${sessionId}/pins/${encodeURIComponent(name)}`;
  const listed = pins.value ?? [];
  return (
    <section aria-labelledby="pins">
      <div class="title-row">
        <h2 id="pins">Pins</h2>
        <button type="button" onClick={() => setEdited(NEW)}>
          New pin
        </button>
      </div>
      {(problem ?? pins.problem) && (
        <p class="notice bad" role="alert">
          {problem ?? pins.problem}
        </p>
      )}
      {edited && (
        <PinForm
          key={edited.name}
          pin={edited}
          onSave={({ name, ...body }) => void change(call(path(name), { method: "PUT", body }))}
          onLeave={() => setEdited(null)}
        />
      )}
      {listed.length === 0 && !pins.loading && (
        <p class="quiet">Nothing is pinned. What is pinned stands in every prompt.</p>
      )}
      <ul class="pins-list">
        {listed.map((pin) => (
          <li class="card" key={pin.name}>
            <h3>{pin.name}</h3>
            <p class="facts small">
              <span>{pin.relevance === null ? "relevance by its words" : `relevance ${pin.relevance.toFixed(2)}`}</span>
              {pin.source && <span>{pin.source}</span>}
            </p>
            {pin.relevance !== null && <Gauge part={pin.relevance} of={1} plain />}
            <p class="pin-text">{cut(pin.content, 400)}</p>
            <div class="buttons">
              <button type="button" onClick={() => setEdited(pin)}>
                Change
              </button>
              <button type="button" onClick={() => void change(call(path(pin.name), { method: "DELETE" }))}>
                Unpin
              </button>
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}

function PinForm({ pin, onSave, onLeave }: { pin: Pin; onSave: (pin: Pin) => void; onLeave: () => void }) {
  const [given, setGiven] = useState(pin);
  const [stated, setStated] = useState(pin.relevance !== null);

  function submit(event: Event) {
    event.preventDefault();
    onSave({ ...given, relevance: stated ? (given.relevance ?? 0.5) : null });
  }

  return (
    <form class="card pin-form" onSubmit={submit}>
      <label>
        Name
        <input
          required
          maxLength={255}
          value={given.name}
          readOnly={pin.name !== ""}
          onInput={(event) => setGiven({ ...given, name: event.currentTarget.value })}
        />
      </label>
      <label>
        Content
        <textarea
          required
          rows={5}
          value={given.content}
          onInput={(event) => setGiven({ ...given, content: event.currentTarget.value })}
        />
      </label>
      <label class="inline">
        <input type="checkbox" checked={stated} onChange={(event) => setStated(event.currentTarget.checked)} />
        State its relevance
      </label>
      {stated && (
        <label>
          Relevance: {(given.relevance ?? 0.5).toFixed(2)}
          <input
            type="range"
            min="0"
            max="1"
            step="0.05"
            value={given.relevance ?? 0.5}
            onInput={(event) => setGiven({ ...given, relevance: Number(event.currentTarget.value) })}
          />
        </label>
      )}
      <div class="buttons">
        <button type="submit" class="primary">
          Pin it
        </button>
        <button type="button" onClick={onLeave}>
          Leave it
        </button>
      </div>
    </form>
  );
}
