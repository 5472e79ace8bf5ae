// What a policy is here: a preset and the fields that override it, over those of the session.
import { call } from "../api";
import { type Resource, useResource } from "../resource";
import type { PolicyField, PolicyList, Session } from "../types";

export type Overrides = Record<string, unknown>;

export function usePolicies(): Resource<PolicyList> {
  return useResource<PolicyList>((signal) => call("policies", { signal }), []);
}

/** The preset that holds under overrides: theirs, or the session's, or the service's. */
export function presetOf(policies: PolicyList, session: Session | null, overrides: Overrides): string {
  return String(overrides.preset ?? session?.policy.preset ?? policies.default);
}

/** What a field has where the overrides do not name it: what the session says, or else the preset that holds. */
export function standing(field: PolicyField, preset: string, session: Session | null): unknown {
  const own = session?.policy;
  return own && field.name in own ? own[field.name] : field.defaults[preset];
}

/** A value in words. */
export function written(value: unknown): string {
  if (value === null || value === undefined) return "none";
  if (value === "") return "the turn's model";
  if (value === true) return "yes";
  if (value === false) return "no";
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object")
    return Object.entries(value)
      .map(([name, part]) => `${name} ${written(part)}`)
      .join(", ");
  return String(value);
}
