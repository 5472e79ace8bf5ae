import { useState } from "preact/hooks";
import type { ToolCall } from "../types";
import { draftFor } from "./composer";

interface Props {
  turnId: string;
  calls: ToolCall[];
  /** While they are sent. What was typed stays, in case they are not taken. */
  hidden: boolean;
  onSend: (outputs: { tool_call_id: string; content: string }[]) => void;
  onCancel: () => void;
}

/** The turn waits: every call wants an output before the model goes on. */
export function ToolOutputs({ turnId, calls, hidden, onSend, onCancel }: Props) {
  const [given, setGiven] = useState<Record<string, string>>(() =>
    Object.fromEntries(calls.map(({ id }) => [id, draftFor(`${turnId} ${id}`)])),
  );

  function submit(event: Event) {
    event.preventDefault();
    onSend(calls.map((each) => ({ tool_call_id: each.id, content: given[each.id] ?? "" })));
  }

  return (
    <form class="card tool-outputs" hidden={hidden} onSubmit={submit} aria-labelledby="tools-wanted">
      <h3 id="tools-wanted">The model waits for tool outputs</h3>
      {calls.map((each) => (
        <div key={each.id}>
          <label for={`output-${each.id}`}>
            Output of <code>{`${each.function.name}(${each.function.arguments})`}</code>
          </label>
          <textarea
            id={`output-${each.id}`}
            rows={3}
            value={given[each.id] ?? ""}
            onInput={(event) =>
              setGiven({ ...given, [each.id]: draftFor(`${turnId} ${each.id}`, event.currentTarget.value) })
            }
          />
        </div>
      ))}
      <div class="buttons">
        <button type="submit" class="primary">
          Send outputs
        </button>
        <button type="button" onClick={onCancel}>
          Cancel the turn
        </button>
      </div>
    </form>
  );
}
