import { useRef, useState } from "preact/hooks";
import type { ModelList } from "../types";
import { Failure } from "../ui/failure";
import { PresetSelect } from "../ui/preset-select";

const drafts = new Map<string, string>();

/** What was typed and not sent, by session or what else it belongs to, as long as the page is open; with `text` it is kept. */
export function draftFor(sessionId: string, text?: string): string {
  if (text !== undefined) drafts.set(sessionId, text);
  return drafts.get(sessionId) ?? "";
}

interface Props {
  sessionId: string;
  models: ModelList;
  alias: string;
  disabled: boolean;
  /** Gets what leads to the message: with a text to change, unless another one was begun. */
  edit: { current: ((text: string) => void) | null };
  /** Whether the message became part of the conversation. */
  onSend: (body: Record<string, unknown>, userText: string) => Promise<boolean>;
  onCancel: (() => void) | null;
}

const EXAMPLE = JSON.stringify(
  [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather in a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
  null,
  2,
);

export function Composer({ sessionId, models, alias, disabled, edit, onSend, onCancel }: Props) {
  const field = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(() => draftFor(sessionId));
  const [model, setModel] = useState("");
  const [preset, setPreset] = useState("");
  const [tools, setTools] = useState("");
  const [callTool, setCallTool] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const chosen = models.items.find((each) => each.alias === (model || alias));

  /** The draft is changed also if the page has left the chat. */
  function type(change: (before: string) => string) {
    setText(draftFor(sessionId, change(draftFor(sessionId))));
  }

  edit.current = (given) => {
    type((before) => before || given);
    field.current?.focus();
  };

  async function send() {
    if (disabled || !text.trim()) return;
    const definitions = toolsOf(tools);
    if (typeof definitions === "string") {
      setProblem(definitions);
      return;
    }
    setProblem(null);
    const first = definitions[0]?.function?.name;
    type(() => "");
    const isTaken = await onSend(
      {
        content: text,
        ...(model && { model_alias: model }),
        ...(preset && { policy: { preset } }),
        ...(definitions.length > 0 && { tools: definitions }),
        ...(callTool && first && !chosen?.is_language_model && { recorded_reply: callOf(first) }),
      },
      text,
    );
    if (!isTaken) type((before) => before || text); // to be changed, or sent again
  }

  function submit(event: Event) {
    event.preventDefault();
    field.current?.focus(); // "Send" cannot be pressed any more, and would lose the focus
    void send();
  }

  function keys(event: KeyboardEvent) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      void send();
    }
  }

  return (
    <form class="composer card" onSubmit={submit}>
      <label for="message" class="unseen">
        Message
      </label>
      <textarea
        id="message"
        ref={field}
        rows={3}
        placeholder="Message (Enter sends, Shift+Enter breaks the line)"
        value={text}
        onInput={(event) => {
          const { value } = event.currentTarget;
          type(() => value);
        }}
        onKeyDown={keys}
      />
      <Failure why={problem} />
      <div class="buttons">
        <button type="submit" class="primary" disabled={disabled || !text.trim()}>
          Send
        </button>
        {onCancel && (
          <button type="button" onClick={onCancel}>
            Cancel the turn
          </button>
        )}
        <details class="options">
          <summary>Model, policy, tools</summary>
          <div class="option-fields">
            <label>
              Model
              <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
                <option value="">{`the session's (${alias})`}</option>
                {models.items.map((each) => (
                  <option key={each.alias} value={each.alias}>
                    {each.alias}
                  </option>
                ))}
              </select>
            </label>
            <PresetSelect label="Policy of this turn" value={preset} onChange={setPreset} />
          </div>
          <label for="tools">Tool definitions (JSON, OpenAI form)</label>
          <textarea
            id="tools"
            class="code"
            rows={tools ? 8 : 2}
            spellcheck={false}
            value={tools}
            onInput={(event) => setTools(event.currentTarget.value)}
          />
          {!tools && (
            <button type="button" onClick={() => setTools(EXAMPLE)}>
              Use an example
            </button>
          )}
          {tools && chosen && !chosen.is_language_model && (
            <label class="inline">
              <input
                type="checkbox"
                checked={callTool}
                onChange={(event) => setCallTool(event.currentTarget.checked)}
              />
              Have the offline responder call the first tool
            </label>
          )}
        </details>
      </div>
    </form>
  );
}

interface Definition {
  function?: { name?: string };
}

function toolsOf(text: string): Definition[] | string {
  if (!text.trim()) return [];
  try {
    const value: unknown = JSON.parse(text);
    return Array.isArray(value) ? (value as Definition[]) : "Tool definitions are a JSON list.";
  } catch {
    return "The tool definitions are not valid JSON.";
  }
}

function callOf(name: string) {
  const id = `call_${Date.now().toString(36)}`;
  return { tool_calls: [{ id, type: "function", function: { name, arguments: "{}" } }] };
}
