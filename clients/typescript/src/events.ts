/** The events of a turn while it runs, and how they are read from server-sent events. */

import { type Problem, problemOf, UnexpectedAnswer } from "./errors.ts";
import type { Schemas } from "./types.ts";

/** A turn that has its number and is stored. */
export type TurnHead = Pick<Schemas["TurnOut"], "id" | "session_id" | "seq" | "status">;

/** Tell them apart by `name`. The last three are ends; `error` is what posting without a stream would have thrown. */
export type TurnEvent =
  | { readonly name: "turn.created"; readonly turn: TurnHead }
  | { readonly name: "context.assembled"; readonly context: Schemas["ContextOut"] }
  | { readonly name: "output.delta"; readonly text: string }
  | TurnEnd;

export type TurnEnd =
  | { readonly name: "turn.completed"; readonly turn: Schemas["TurnOut"]; readonly context: Schemas["ContextOut"] }
  | { readonly name: "turn.awaiting_tools"; readonly turn: Schemas["TurnOut"]; readonly context: Schemas["ContextOut"] }
  | { readonly name: "turn.failed"; readonly turn: Schemas["TurnOut"] | null; readonly error: Problem };

const MOST_PENDING_CHARS = 64 * 1024 * 1024;

/** Takes a stream's bytes as they come and gives the events that are whole. */
export class EventReader {
  readonly #decoder = new TextDecoder();
  #pending = "";

  /** The events that these bytes complete. Throws `UnexpectedAnswer` for what is none of ours. */
  feed(data: Uint8Array): TurnEvent[] {
    const blocks = (this.#pending + this.#decoder.decode(data, { stream: true })).split("\n\n");
    this.#pending = blocks.pop() ?? "";
    if (this.#pending.length > MOST_PENDING_CHARS) throw new UnexpectedAnswer("An event of the stream has no end", 200);
    return blocks.map(eventOf).filter((event) => event !== null);
  }
}

/** The event of a block of lines; null for comments, and for events of later versions. */
function eventOf(block: string): TurnEvent | null {
  const fields = new Map(
    block.split("\n").map((line) => [line.split(":", 1)[0], line.slice(line.indexOf(":") + 1).trim()]),
  );
  const name = fields.get("event");
  if (!name) return null;
  try {
    return read(name, JSON.parse(fields.get("data") ?? ""));
  } catch {
    throw new UnexpectedAnswer("An event of the stream is not the expected one", 200);
  }
}

/** Throws a `TypeError` for data without what the event has. */
function read(name: string, data: Record<string, unknown>): TurnEvent | null {
  switch (name) {
    case "turn.created":
      return { name, turn: there(data["turn"]) };
    case "context.assembled":
      return { name, context: there(data["context"]) };
    case "output.delta":
      return { name, text: there<string>(data["text"]) };
    case "turn.completed":
    case "turn.awaiting_tools":
      return { name, turn: there(data["turn"]), context: there(data["context"]) };
    case "turn.failed": {
      const error = there<Record<string, unknown>>(data["error"]);
      return {
        name,
        turn: (data["turn"] as Schemas["TurnOut"] | undefined) ?? null,
        error: problemOf(Number(error["status"]), error),
      };
    }
    default:
      return null;
  }
}

function there<T>(value: unknown): T {
  if (value === undefined || value === null) throw new TypeError("The event lacks a field");
  return value as T;
}
