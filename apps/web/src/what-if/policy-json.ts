/** Overrides that somebody typed: an object, or a sentence that says why it is none. */
export function overridesOf(text: string): Record<string, unknown> | string {
  if (!text.trim()) return {};
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
    return "Overrides are a JSON object.";
  } catch {
    return "The overrides are not valid JSON.";
  }
}
