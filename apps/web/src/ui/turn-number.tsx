// A field for the number of a turn.
import { useState } from "preact/hooks";

interface Props {
  label: string;
  value: number | string;
  least: number;
  most: number;
  /** Gets 0 where the field was emptied. */
  onCommit: (typed: number) => void;
}

/** What is typed stays through renders of the page, and counts when the field is left or Enter is pressed. */
export function TurnNumber({ label, value, least, most, onCommit }: Props) {
  const [draft, setDraft] = useState<string | null>(null);
  return (
    <label class="inline">
      {label}
      <input
        type="number"
        min={least}
        max={most}
        value={draft ?? value}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onChange={(event) => {
          setDraft(null);
          onCommit(Number(event.currentTarget.value));
        }}
        onBlur={() => setDraft(null)}
      />
    </label>
  );
}
