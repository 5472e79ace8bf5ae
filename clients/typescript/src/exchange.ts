/**
 * Sends a call, again where that makes sense, within a deadline.
 *
 * Sent again: what surely was not begun (no connection, 408, 429, 503 `shutting_down`, a session that runs another
 * turn), and for repeatable calls also what perhaps was (a connection that broke, other 503s, and a 5xx without a code of
 * the service, from a proxy before it). Waits are the service's `Retry-After` or longer ones that grow, `maxRetries` of
 * them; but while the first request with the same idempotency key still runs (409 `idempotency_in_flight`), its end is
 * waited for as long as the deadline allows. A deletion whose answer was lost has been done when there is nothing to
 * delete any more.
 */

import { type Call, type Reply, refusalOf } from "./call.ts";
import type { Connection } from "./connection.ts";
import { BY_CODE, DeadlinePassed, type PlimsollError, Problem, Unreachable } from "./errors.ts";

const FIRST_WAIT_S = 0.25;
const LONGEST_WAIT_S = 8;
const NEVER_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"];

type Again = "no" | "counted" | "until the deadline";

/** Until when a call may take. `signal` aborts then, with `DeadlinePassed`, or with the caller's signal. */
export class Deadline {
  readonly #controller = new AbortController();
  readonly #endsMs: number;
  readonly #timer: ReturnType<typeof setTimeout>;
  readonly #given: AbortSignal | undefined;
  readonly #abort = (): void => this.#controller.abort(this.#given?.reason);

  constructor(deadlineS: number, given: AbortSignal | undefined) {
    this.#endsMs = performance.now() + deadlineS * 1000;
    this.#timer = setTimeout(() => this.#controller.abort(new DeadlinePassed(deadlineS)), deadlineS * 1000);
    this.#given = given;
    if (given?.aborted) this.#abort();
    else given?.addEventListener("abort", this.#abort);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Whether so many seconds are left. */
  has(seconds: number): boolean {
    return performance.now() + seconds * 1000 < this.#endsMs;
  }

  /** Waits so long. Rejects when the signal aborts. */
  async sleep(seconds: number): Promise<void> {
    this.signal.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const stop = (): void => {
        clearTimeout(timer);
        reject(this.signal.reason);
      };
      const timer = setTimeout(() => {
        this.signal.removeEventListener("abort", stop);
        resolve();
      }, seconds * 1000);
      this.signal.addEventListener("abort", stop);
    });
  }

  /** Ends the timer; the signal does not abort any more. */
  release(): void {
    clearTimeout(this.#timer);
    this.#given?.removeEventListener("abort", this.#abort);
  }
}

/** No answer came. `begun` is false when the request surely did not reach the service. */
class Lost {
  readonly reason: string;
  readonly begun: boolean;

  constructor(reason: string, begun: boolean) {
    this.reason = reason;
    this.begun = begun;
  }
}

/** The answer of success. Throws a `Problem`, `Unreachable`, `UnexpectedAnswer`, or the reason of the deadline's signal. */
export async function exchange(call: Call, connection: Connection, deadline: Deadline): Promise<Reply> {
  for (let retries = 0, isLost = false; ;) {
    const came = await sendOnce(call, connection, deadline);
    if (!(came instanceof Lost) && (isAnswer(call, came) || (isLost && isGone(call, came)))) return came;
    isLost ||= came instanceof Lost && came.begun;
    const askedS = came instanceof Lost ? null : retryAfterS(came.headers.get("retry-after"));
    const [again, error] = judged(call, came, askedS);
    if (again === "no" || (again === "counted" && retries >= connection.maxRetries)) throw error;
    const waitS = Math.max(askedS ?? 0, again === "counted" ? grown(retries) : 0) || FIRST_WAIT_S;
    if (!deadline.has(waitS)) throw error;
    if (again === "counted") retries += 1;
    await deadline.sleep(waitS);
  }
}

/** Why a request or a stream failed, without what was sent: the name of the platform's error. */
export function reasonOf(error: unknown): string {
  const { name, cause } = error as { name?: string; cause?: { code?: string } };
  return cause?.code ?? name ?? "unknown";
}

async function sendOnce(call: Call, connection: Connection, deadline: Deadline): Promise<Reply | Lost> {
  const request = new Request(connection.url + call.path, {
    method: call.method,
    headers: { ...connection.headers, ...call.headers },
    body: call.body,
    signal: deadline.signal,
    redirect: "manual",
  });
  const { fetch } = connection; // browsers refuse it as a method
  try {
    const response = await fetch(request);
    const { status, headers, body } = response;
    if (call.streamed && hasEvents(response)) return { status, headers, text: "", stream: body };
    return { status, headers, text: await response.text(), stream: null };
  } catch (error) {
    deadline.signal.throwIfAborted();
    const reason = reasonOf(error);
    return new Lost(`${reason} at ${new URL(connection.url).host}`, !NEVER_SENT.includes(reason));
  }
}

function hasEvents({ ok, headers }: Response): boolean {
  return ok && (headers.get("content-type") ?? "").startsWith("text/event-stream");
}

/** A stream is answered by events, and `/readyz` answers with a 503 that is what was asked for. */
function isAnswer(call: Call, reply: Reply): boolean {
  if (reply.status >= 200 && reply.status < 300) return !call.streamed || reply.stream !== null;
  return call.path === "/readyz" && reply.status === 503 && reply.text.includes('"database"');
}

/** Whether there is nothing at the address of a deletion. */
function isGone(call: Call, reply: Reply): boolean {
  if (call.method !== "DELETE") return false;
  const error = refusalOf(reply, null);
  return error instanceof Problem && error.code.endsWith("_not_found");
}

function judged(call: Call, came: Reply | Lost, askedS: number | null): [Again, PlimsollError] {
  if (came instanceof Lost) {
    const error = new Unreachable(`The service does not answer: ${came.reason}`, came.begun);
    return [call.repeatable || !came.begun ? "counted" : "no", error];
  }
  const error = refusalOf(came, askedS);
  return [againOf(call.repeatable, came.status, error instanceof Problem ? error.code : "unknown", askedS), error];
}

function againOf(repeatable: boolean, status: number, code: string, askedS: number | null): Again {
  if (status === 409 && code === "idempotency_in_flight") return "until the deadline";
  // Time does not help: the latter is how the turn of this key ended.
  if (askedS === null && (code === "limit_exceeded" || code === "database_unavailable")) return "no";
  if (status === 408 || status === 429) return "counted";
  if (status === 409 && (code === "turn_in_progress" || code === "session_busy")) return "counted";
  if (status === 503 && code === "shutting_down") return "counted";
  if (status === 503 && code === "worker_lost") return "no"; // the same key gets the same end
  return repeatable && (status === 503 || (status > 499 && !BY_CODE.has(code))) ? "counted" : "no";
}

/** Seconds of the header `Retry-After`, in either of its forms; null where there is none that can be read. */
function retryAfterS(header: string | null): number | null {
  const text = header?.trim() ?? "";
  if (/^\d+$/.test(text)) return Number(text.slice(0, 9));
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : Math.max(0, (at - Date.now()) / 1000);
}

/** Grows with each retry, and differs from that of others who were refused at the same time. */
function grown(retries: number): number {
  return Math.min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** retries) * (0.75 + Math.random() / 2);
}
