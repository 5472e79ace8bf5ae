import { plural } from "../format";
import type { ModelList, PolicyList, Session, ValueSchema } from "../types";
import { FieldInput } from "./field-input";
import { type Overrides, presetOf, standing, written } from "./policies";

interface Props {
  /** Two forms stand on one page. */
  idPrefix: string;
  policies: PolicyList;
  models: ModelList;
  session: Session | null;
  value: Overrides;
  onChange: (value: Overrides) => void;
}

/** A preset, and any field over it. What is not touched stays as the session has it. */
export function PolicyForm({ idPrefix, policies, models, session, value, onChange }: Props) {
  const preset = presetOf(policies, session, value);
  const chosen = policies.presets.find((each) => each.name === preset);
  const fields = policies.fields.filter((field) => field.name !== "preset");
  const named = Object.keys(value).filter((name) => name !== "preset");

  function set(name: string, to: unknown) {
    const { [name]: _, ...others } = value;
    onChange(to === undefined ? others : { ...others, [name]: to });
  }

  return (
    <div class="policy-form">
      <div>
        <label for={`${idPrefix}-preset`}>Policy</label>
        <select
          id={`${idPrefix}-preset`}
          aria-describedby={`${idPrefix}-preset-note`}
          value={String(value.preset ?? "")}
          onChange={(event) => set("preset", event.currentTarget.value || undefined)}
        >
          <option value="">the session's own ({presetOf(policies, session, {})})</option>
          {policies.presets.map((each) => (
            <option key={each.name} value={each.name}>
              {each.name}
            </option>
          ))}
        </select>
        <p id={`${idPrefix}-preset-note`} class="small quiet">
          {chosen?.description}
        </p>
      </div>
      <details class="fields">
        <summary>Fields {named.length > 0 && <strong>({plural(named.length, "change")})</strong>}</summary>
        {named.length > 0 && (
          <p class="small">
            {named.map((name) => `${name}: ${written(value[name])}`).join(" · ")}{" "}
            <button type="button" class="plain" onClick={() => onChange(value.preset ? { preset: value.preset } : {})}>
              Undo all
            </button>
          </p>
        )}
        <div class="field-grid">
          {fields.map((field) => {
            const id = `${idPrefix}-${field.name}`;
            return (
              <div key={field.name} class={field.name in value ? "field changed" : "field"}>
                {field.value_schema.properties ? (
                  <code>{field.name}</code>
                ) : (
                  <label for={id}>
                    <code>{field.name}</code>
                  </label>
                )}
                <FieldInput
                  id={id}
                  name={field.name}
                  schema={field.value_schema}
                  models={models}
                  value={value[field.name]}
                  standing={standing(field, preset, session)}
                  onChange={(to) => set(field.name, to)}
                  describedBy={`${id}-note`}
                />
                <p id={`${id}-note`} class="small quiet">
                  {field.meaning} {isFree(field.value_schema) && `(${field.takes})`}
                </p>
              </div>
            );
          })}
        </div>
      </details>
    </div>
  );
}

/** Whether one types it; choices say themselves what they take. */
function isFree({ type, enum: options, properties }: ValueSchema): boolean {
  return !options && !properties && type !== "boolean";
}
