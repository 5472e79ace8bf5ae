import { call } from "../api";
import { useResource } from "../resource";
import type { PolicyList } from "../types";

interface Props {
  label: string;
  value: string;
  onChange: (preset: string) => void;
}

export function PresetSelect({ label, value, onChange }: Props) {
  const policies = useResource<PolicyList>((signal) => call("policies", { signal }), []);
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        <option value="">the session's</option>
        {(policies.value?.presets ?? []).map((preset) => (
          <option key={preset.name} value={preset.name} title={preset.description}>
            {preset.name}
          </option>
        ))}
      </select>
    </label>
  );
}
