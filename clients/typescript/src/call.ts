/** A request as a value, and what its answer is read as. */

import { type Problem, problemOf, UnexpectedAnswer } from "./errors.ts";
import type { Operation } from "./operations.ts";

/**
 * One request, ready to be sent any number of times.
 *
 * `repeatable` states that sending it again is no second one: it reads, sets or removes, or has an idempotency key.
 */
export interface Call {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
  readonly repeatable: boolean;
  readonly streamed: boolean;
}

/** An HTTP answer. `stream` is the open body of a call that streams, whose `text` is empty. */
export interface Reply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly stream: ReadableStream<Uint8Array> | null;
}

/** What an operation is given beside its address. */
export interface Given {
  query?: object;
  body?: unknown;
  headers?: Record<string, string>;
}

/** The call of an operation. Throws a `TypeError` for a place in its address that would become another address. */
export function callOf({ method, path, repeatable }: Operation, places: readonly unknown[], given: Given): Call {
  let filled = 0;
  const address = path.replace(/\{(\w+)\}/g, (_, name: string) => placed(name, places[filled++]));
  const headers = given.headers ?? {};
  return {
    method: method.toUpperCase(),
    path: address + queryOf(given.query ?? {}),
    headers: given.body === undefined ? headers : { ...headers, "Content-Type": "application/json" },
    body: given.body === undefined ? null : JSON.stringify(given.body),
    repeatable: repeatable || "Idempotency-Key" in headers,
    streamed: false,
  };
}

/** The header of an idempotency key: the given one, or a new one. */
export function keyHeader(key: string | undefined): Record<string, string> {
  const random = crypto.getRandomValues(new Uint8Array(16));
  const made = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { "Idempotency-Key": key || `client-${made}` };
}

/** Reads an answer's JSON. Throws `UnexpectedAnswer`. */
export function jsonOf<T>(reply: Reply): T {
  const value = parsed(reply.text);
  if (typeof value === "object" && value !== null) return value as T;
  throw new UnexpectedAnswer("The answer is not the expected one", reply.status);
}

/** The error that an answer which is no success stands for. */
export function refusalOf(reply: Reply, retryAfterS: number | null): Problem | UnexpectedAnswer {
  const value = parsed(reply.text);
  let document = (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
  const inner = document["error"] as Record<string, unknown> | null | undefined;
  const isOpenAIs = !("code" in document) && typeof inner === "object" && inner !== null;
  if (isOpenAIs) document = { ...inner, detail: inner["message"] };
  if ("code" in document) return problemOf(reply.status, document, retryAfterS);
  if (reply.status >= 400) return problemOf(reply.status, { title: "Not answered by Plimsoll" }, retryAfterS);
  return new UnexpectedAnswer("The answer is not the expected one", reply.status);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A value in an address. Dots alone would step out of their place, however they are quoted: URLs are read so. */
function placed(name: string, value: unknown): string {
  const text = String(value ?? "");
  if (["", ".", ".."].includes(text)) throw new TypeError(`${name} must not be empty, "." or ".."`);
  return encodeURIComponent(text);
}

function queryOf(query: object): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text && `?${text}`;
}
