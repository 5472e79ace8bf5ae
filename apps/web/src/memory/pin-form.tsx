import { useEffect, useRef, useState } from "preact/hooks";
import type { Pin } from "../types";

const MIDDLE = 0.5;

interface Props {
  pin: Pin;
  onSave: (pin: Pin) => void;
  onLeave: () => void;
}

/** A pin to be added, or changed where it has a name already. */
export function PinForm({ pin, onSave, onLeave }: Props) {
  const [given, setGiven] = useState(pin);
  const [stated, setStated] = useState(pin.relevance !== null);
  const form = useRef<HTMLFormElement>(null);
  const isNew = pin.name === "";
  useEffect(() => form.current?.querySelector<HTMLElement>(isNew ? "input" : "textarea")?.focus(), [isNew]);

  function submit(event: Event) {
    event.preventDefault();
    onSave({ ...given, source: given.source || null, relevance: stated ? (given.relevance ?? MIDDLE) : null });
  }

  return (
    <form ref={form} class="card pin-form" onSubmit={submit} aria-label={isNew ? "New pin" : `Change ${pin.name}`}>
      <label>
        Name
        <input
          required
          maxLength={255}
          value={given.name}
          readOnly={!isNew}
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
      <label>
        Source <span class="quiet">(optional)</span>
        <input
          maxLength={2000}
          value={given.source ?? ""}
          onInput={(event) => setGiven({ ...given, source: event.currentTarget.value })}
        />
      </label>
      <label class="inline">
        <input type="checkbox" checked={stated} onChange={(event) => setStated(event.currentTarget.checked)} />
        Set its relevance
      </label>
      {stated ? (
        <label>
          Relevance: <span class="number">{(given.relevance ?? MIDDLE).toFixed(2)}</span>
          <input
            type="range"
            min="0"
            max="1"
            step="0.05"
            value={given.relevance ?? MIDDLE}
            onInput={(event) => setGiven({ ...given, relevance: Number(event.currentTarget.value) })}
          />
        </label>
      ) : (
        <p class="small quiet">Otherwise it is computed from the words of the room goal and the user's message.</p>
      )}
      <div class="buttons">
        <button type="submit" class="primary">
          Pin it
        </button>
        <button type="button" onClick={onLeave}>
          Cancel
        </button>
      </div>
    </form>
  );
}
