// Talks to the service that served this page. The API key lives in this module's memory and nowhere else: not in the
// address, not in storage; it is gone when the page is.

const BASE = new URL("../", document.baseURI);

let key: string | null = null;
let onRefused: () => void = () => undefined;

export interface ProblemBody {
  title: string;
  status: number;
  detail: string;
  code: string;
  /** What was streamed of the answer of a turn that failed or was cancelled. */
  partial_output?: string;
  [member: string]: unknown;
}

/** An answer that is no success, as RFC 9457 describes it. */
export class Problem extends Error {
  constructor(readonly body: ProblemBody) {
    super(body.detail);
  }
}

export function signIn(given: string): void {
  key = given;
}

export function signOut(): void {
  key = null;
}

export function isSignedIn(): boolean {
  return key !== null;
}

/** What to do when the service refuses the key that was good before: it was revoked. */
export function whenRefused(todo: () => void): void {
  onRefused = todo;
}

type Query = Record<string, string | number | boolean | null | undefined>;

interface Options {
  query?: Query;
  /** A file is sent as it is, all else as JSON. */
  body?: unknown;
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

function addressOf(path: string, query: Query = {}): URL {
  const address = new URL(`v1/${path}`, BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") address.searchParams.set(name, String(value));
  }
  return address;
}

async function send(path: string, options: Options): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  if (key !== null) headers.Authorization = `Bearer ${key}`;
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  let answer: Response;
  try {
    answer = await fetch(addressOf(path, options.query), {
      method: options.method ?? (options.body === undefined ? "GET" : "POST"),
      headers,
      body:
        options.body === undefined ? null : options.body instanceof Blob ? options.body : JSON.stringify(options.body),
      signal: options.signal ?? null,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem({ title: "No answer", status: 0, code: "unreachable", detail: "The service does not answer." });
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

async function problemOf(answer: Response): Promise<Problem> {
  const body: unknown = await answer.json().catch(() => null);
  if (answer.status === 401) onRefused(); // not before: what was typed is kept by whoever gets the problem
  return isProblem(body) ? new Problem(body) : unexpected(answer, `The service answered ${answer.status}.`);
}

/** A proxy on the way answers with JSON of its own, or with a page. */
function isProblem(body: unknown): body is ProblemBody {
  return typeof (body as Partial<ProblemBody> | null)?.detail === "string";
}

function unexpected({ status }: Response, detail: string): Problem {
  return new Problem({ title: "Unexpected answer", status, code: "unexpected", detail });
}

/** A call that answers JSON; 204 gives undefined. */
export async function call<T>(path: string, options: Options = {}): Promise<T> {
  const answer = await send(path, options);
  if (answer.status === 204) return undefined as T;
  return (await answer.json().catch(() => {
    throw unexpected(answer, "The answer cannot be read: it was cut off, or it is not the service's.");
  })) as T;
}

/** Has the browser save an answer as a file. */
export async function save(path: string, fileName: string): Promise<void> {
  const answer = await send(path, {});
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = fileName;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export interface ServerEvent {
  name: string;
  data: unknown;
}

/** The service says every 15 seconds (`PLIMSOLL_HEARTBEAT_S`) that it is still there. */
const LONGEST_SILENCE_MS = 60_000;

/**
 * Server-sent events over fetch, since EventSource can send no Authorization header. A connection that was lost unnoticed,
 * as while a laptop slept, ends the stream: it would stay open and silent for ever.
 */
export async function* events(path: string, options: Options = {}): AsyncGenerator<ServerEvent> {
  const answer = await send(path, { ...options, headers: { ...options.headers, Accept: "text/event-stream" } });
  if (!(answer.headers.get("content-type") ?? "").startsWith("text/event-stream") || answer.body === null) {
    throw await problemOf(answer);
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const silence = setTimeout(() => void reader.cancel(), LONGEST_SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      pending += value;
      const blocks = pending.split("\n\n");
      pending = blocks.pop() ?? "";
      for (const block of blocks) {
        const event = eventOf(block);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function eventOf(block: string): ServerEvent | null {
  let name = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) as unknown } : null;
}

/** Every page of a list, up to `most` items. */
export async function all<T>(path: string, query: Query = {}, most = 2000): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<T> = await call<Page<T>>(path, { query: { limit: 200, ...query, cursor } });
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor !== null && items.length < most);
  return items;
}

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}
