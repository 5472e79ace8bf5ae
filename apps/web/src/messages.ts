// Stored messages by their ids, and who spoke in them.
import { call, type Page } from "./api";
import type { StoredMessage } from "./types";

/** The role, or the name where the message has one. */
export function speakerOf({ role, name }: { role: string; name?: string | null }): string {
  return name ? `${name} (${role})` : role;
}

const MOST_IDS = 100;

export async function messagesById(
  sessionId: string,
  wanted: readonly string[],
  signal: AbortSignal,
): Promise<Map<string, StoredMessage>> {
  const ids = [...new Set(wanted)];
  const found = new Map<string, StoredMessage>();
  for (let at = 0; at < ids.length; at += MOST_IDS) {
    const query = { ids: ids.slice(at, at + MOST_IDS).join(",") };
    const page = await call<Page<StoredMessage>>(`sessions/${sessionId}/messages`, { query, signal });
    for (const message of page.items) found.set(message.id, message);
  }
  return found;
}
