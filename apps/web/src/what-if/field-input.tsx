import { useState } from "preact/hooks";
import type { ModelList, ValueSchema } from "../types";
import { written } from "./policies";

interface Props {
  id: string;
  name: string;
  schema: ValueSchema;
  models: ModelList;
  /** Undefined where it stays as it is. */
  value: unknown;
  standing: unknown;
  onChange: (value: unknown) => void;
  describedBy?: string;
}

const NONE = "none";

/** The input that a field's kind asks for, with its bounds. Empty means: the current value. */
export function FieldInput(props: Props) {
  const { name, schema } = props;
  const kinds = Array.isArray(schema.type) ? schema.type : [schema.type];
  const nullable = kinds.includes("null");
  if (schema.properties) return <Parts {...props} nullable={nullable} />;
  if (schema.items) return <Ordered {...props} />;
  if (kinds.includes("boolean")) return <Choice {...props} options={[true, false]} nullable={nullable} />;
  if (schema.enum) return <Choice {...props} options={schema.enum} nullable={nullable} />;
  if (name === "summary_model") {
    return <Choice {...props} options={["", ...props.models.items.map((model) => model.alias)]} nullable={nullable} />;
  }
  if (kinds.includes("string")) return <Words {...props} />;
  return <Amount {...props} whole={kinds.includes("integer")} nullable={nullable} />;
}

function Choice({
  id,
  value,
  standing,
  options,
  nullable,
  onChange,
  describedBy,
}: Props & { options: unknown[]; nullable: boolean }) {
  const all = nullable ? [...options, null] : options;
  const at = all.indexOf(value);
  return (
    <select
      id={id}
      aria-describedby={describedBy}
      value={value === undefined ? "" : String(at)}
      onChange={(event) => {
        const chosen = event.currentTarget.value;
        onChange(chosen === "" ? undefined : all[Number(chosen)]);
      }}
    >
      <option value="">current: {written(standing)}</option>
      {all.map((option, index) => (
        <option key={String(option)} value={String(index)}>
          {written(option)}
        </option>
      ))}
    </select>
  );
}

function Amount({
  id,
  name,
  schema,
  value,
  standing,
  whole,
  nullable,
  onChange,
  describedBy,
}: Props & { whole: boolean; nullable: boolean }) {
  const above = schema.exclusiveMinimum;
  const draft = useDraft(typeof value === "number" ? value : undefined, numberOf, String);
  return (
    <span class="amount">
      <input
        id={id}
        type="number"
        aria-describedby={describedBy}
        step={whole ? 1 : "any"}
        min={schema.minimum ?? (above === undefined ? undefined : above + Number.EPSILON)}
        max={schema.maximum}
        placeholder={written(standing)}
        disabled={value === null}
        value={draft.shown}
        onInput={(event) => onChange(draft.type(event.currentTarget.value))}
      />
      {nullable && (
        <label class="inline small">
          <input
            type="checkbox"
            aria-label={`${name}: ${NONE}`}
            checked={value === null}
            onChange={(event) => onChange(event.currentTarget.checked ? null : undefined)}
          />
          {NONE}
        </label>
      )}
    </span>
  );
}

/** An object: what is left empty keeps what stands, or its default. */
function Parts(props: Props & { nullable: boolean }) {
  const { id, schema, models, value, standing, onChange, nullable, name, describedBy } = props;
  const given = (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
  const stands = (typeof standing === "object" && standing !== null ? standing : {}) as Record<string, unknown>;

  function set(part: string, to: unknown) {
    const next: Record<string, unknown> = { ...stands, ...given, [part]: to };
    if (to === undefined) next[part] = stands[part];
    for (const [key, each] of Object.entries(next)) if (each === undefined) delete next[key];
    const isAsItIs = Object.entries(next).every(([key, each]) => stands[key] === each);
    onChange(isAsItIs ? undefined : next);
  }

  return (
    <fieldset class="parts" aria-describedby={describedBy}>
      <legend class="unseen">{name}</legend>
      {nullable && (
        <label class="inline small">
          <input
            type="checkbox"
            checked={value === null}
            onChange={(event) => onChange(event.currentTarget.checked ? null : undefined)}
          />
          {NONE}
        </label>
      )}
      {value !== null &&
        Object.entries(schema.properties ?? {}).map(([part, of]) => (
          <div key={part}>
            <label class="small" for={`${id}-${part}`}>
              {part}
            </label>
            <FieldInput
              id={`${id}-${part}`}
              name={part}
              schema={of}
              models={models}
              value={given[part] === stands[part] ? undefined : given[part]}
              standing={stands[part]}
              onChange={(to) => set(part, to)}
            />
          </div>
        ))}
    </fieldset>
  );
}

/** Free text. */
function Words({ id, schema, value, standing, onChange, describedBy }: Props) {
  return (
    <input
      id={id}
      aria-describedby={describedBy}
      maxLength={schema.maxLength}
      placeholder={written(standing || null)}
      value={typeof value === "string" ? value : ""}
      onInput={(event) => onChange(event.currentTarget.value || undefined)}
    />
  );
}

/** A list in an order, as words with commas between them. */
function Ordered({ id, value, standing, onChange, describedBy }: Props) {
  const draft = useDraft(Array.isArray(value) ? value.map(String) : undefined, wordsOf, (words) => words.join(", "));
  return (
    <input
      id={id}
      aria-describedby={describedBy}
      placeholder={written(standing)}
      value={draft.shown}
      onInput={(event) => onChange(draft.type(event.currentTarget.value))}
    />
  );
}

/** What is typed stays as it was typed while it stands for the value: `0.0` on the way to `0.05`. */
function useDraft<T>(value: T | undefined, read: (typed: string) => T | undefined, write: (value: T) => string) {
  const [typed, setTyped] = useState("");
  const isOfValue = JSON.stringify(read(typed)) === JSON.stringify(value);
  return {
    shown: isOfValue ? typed : value === undefined ? "" : write(value),
    type: (text: string) => {
      setTyped(text);
      return read(text);
    },
  };
}

function numberOf(typed: string): number | undefined {
  return typed.trim() ? Number(typed) : undefined;
}

function wordsOf(typed: string): string[] | undefined {
  const words = typed.split(",").map((word) => word.trim());
  return typed.trim() ? words.filter(Boolean) : undefined;
}
