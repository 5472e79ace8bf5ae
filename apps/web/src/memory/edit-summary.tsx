import { useEffect, useRef, useState } from "preact/hooks";
import type { EditedItem, Summary } from "../types";

export const LISTS = [
  { name: "key_facts", title: "Key facts" },
  { name: "decisions", title: "Decisions" },
  { name: "open_questions", title: "Open questions" },
  { name: "action_items", title: "Action items" },
] as const;

type ListName = (typeof LISTS)[number]["name"];

/** The parts of a summary that differ from what they were. */
export type SummaryEdit = Partial<Pick<Summary, "summary_text"> & Record<ListName, EditedItem[]>>;

interface Props {
  summary: Summary;
  onSave: (edit: SummaryEdit) => void;
  onLeave: () => void;
}

/** A summary's text and items to change: an item without text is removed, the last field of a list adds one. */
export function EditSummary({ summary, onSave, onLeave }: Props) {
  const [text, setText] = useState(summary.summary_text);
  const [lists, setLists] = useState<Record<ListName, EditedItem[]>>(summary);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const edit = editOf(summary, text, lists);
  const change = (name: ListName, at: number, value: string) => {
    const items = [...lists[name]];
    items[at] = { text: value, message_ids: items[at]?.message_ids ?? [] };
    setLists({ ...lists, [name]: items });
  };
  return (
    <form
      class="edit-summary"
      onSubmit={(event) => {
        event.preventDefault();
        onSave(edit);
      }}
    >
      <label>
        Text
        <textarea ref={field} rows={6} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      {LISTS.map(({ name, title }) => (
        <fieldset key={name}>
          <legend>{title}</legend>
          {[...lists[name], { text: "", message_ids: [] }].map((item, at) => (
            <textarea
              key={at}
              rows={1}
              aria-label={at < lists[name].length ? `${title}, ${at + 1}` : `${title}, a new one`}
              value={item.text}
              onInput={(event) => change(name, at, event.currentTarget.value)}
            />
          ))}
        </fieldset>
      ))}
      <div class="buttons">
        <button type="submit" disabled={Object.keys(edit).length === 0 || !text.trim()}>
          Save as a new version
        </button>
        <button type="button" onClick={onLeave}>
          Cancel
        </button>
      </div>
    </form>
  );
}

function editOf(summary: Summary, text: string, lists: Record<ListName, EditedItem[]>): SummaryEdit {
  const edit: SummaryEdit = text.trim() === summary.summary_text ? {} : { summary_text: text };
  for (const { name } of LISTS) {
    const items = lists[name].filter((item) => item.text.trim());
    if (JSON.stringify(items) !== JSON.stringify(summary[name])) edit[name] = items;
  }
  return edit;
}
