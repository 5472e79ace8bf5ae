/** The client: a method for each operation of the service, named like it. */

import { type Call, callOf, jsonOf, keyHeader, type Reply } from "./call.ts";
import { type Connection, connectionOf, type Options } from "./connection.ts";
import { Deadline, exchange } from "./exchange.ts";
import { ITERATORS, type Iterators, type Methods, type Operation, OPERATIONS, operation } from "./operations.ts";
import { type Functions, runTurn, type RunOptions } from "./tool-loop.ts";
import { TurnStream } from "./turn-stream.ts";
import type { Body, CallOptions, KeyOptions, Page, Schemas } from "./types.ts";

const POST_TURN = operation("post", "/v1/sessions/{session_id}/turns", "body");
const POST_TOOL_OUTPUTS = operation("post", "/v1/sessions/{session_id}/turns/{turn_id}/tool-outputs", "body");
const COMPLETE_CHAT = operation("post", "/v1/chat/completions", "body");
const GET_METRICS = operation("get", "/metrics", "nothing");

/** Options of `completeChat`. */
export interface ChatOptions extends KeyOptions {
  /** A session's id, or a name of your own, under which it is created at first. */
  sessionId?: string | undefined;
  /** Always creates a session. */
  sessionNew?: boolean | undefined;
}

/** What `completeChat` answers. */
export interface ChatAnswer {
  sessionId: string;
  completion: Schemas["ChatCompletion"];
}

/**
 * A Plimsoll at `url`. Throws a `TypeError` or `RangeError` for options that can never work.
 *
 * A method takes what fills the address, then the body or the query with the API's field names, then options. It rejects
 * with a `PlimsollError`, or with the reason of the `signal` that it was given.
 */
export class Plimsoll {
  readonly #options: Options;
  readonly #connection: Connection;

  constructor(options: Options = {}) {
    this.#connection = connectionOf(options);
    this.#options = { ...options };
  }

  /** The same client with another deadline, or another number of retries. */
  withPatience(patience: Pick<Options, "deadlineS" | "maxRetries">): Plimsoll {
    return new Plimsoll({ ...this.#options, ...patience });
  }

  /** Sends a message and returns the answer. Retries do not create another turn. */
  async postTurn(sessionId: string, body: Body<"post_turn">, options?: KeyOptions): Promise<Schemas["TurnAnswer"]> {
    const headers = keyHeader(options?.idempotencyKey);
    return jsonOf(await this.#send(callOf(POST_TURN, [sessionId], { body, headers }), options));
  }

  /** Sends a message and streams the events of its turn. Retries create no other turn; a broken stream is resumed. */
  streamTurn(sessionId: string, body: Body<"post_turn">, options?: KeyOptions): TurnStream {
    const headers = keyHeader(options?.idempotencyKey);
    return this.#stream(callOf(POST_TURN, [sessionId], { body: streamed(body), headers }), options);
  }

  /** Answers a turn's open tool calls, all of them, and returns the answer of its next round. Retries store them once. */
  async postToolOutputs(
    sessionId: string,
    turnId: string,
    body: Body<"post_tool_outputs">,
    options?: KeyOptions,
  ): Promise<Schemas["TurnAnswer"]> {
    const headers = keyHeader(options?.idempotencyKey);
    return jsonOf(await this.#send(callOf(POST_TOOL_OUTPUTS, [sessionId, turnId], { body, headers }), options));
  }

  /** Answers a turn's open tool calls, all of them, and streams the events of its next round. A broken stream is resumed. */
  streamToolOutputs(
    sessionId: string,
    turnId: string,
    body: Body<"post_tool_outputs">,
    options?: KeyOptions,
  ): TurnStream {
    const headers = keyHeader(options?.idempotencyKey);
    return this.#stream(callOf(POST_TOOL_OUTPUTS, [sessionId, turnId], { body: streamed(body), headers }), options);
  }

  /**
   * Sends a message, runs the functions that the model calls, and answers when the model has no more calls.
   *
   * `body.tools` describes the functions. A call of a function that does not exist, arguments that are no JSON object, and
   * what a function throws go to the model as the call's output. Throws `ToolLoopTooLong` after `maxRounds` rounds.
   */
  runTurn(
    sessionId: string,
    body: Body<"post_turn">,
    functions: Functions,
    options: RunOptions = {},
  ): Promise<Schemas["TurnAnswer"]> {
    return runTurn(this, sessionId, body, functions, options);
  }

  /** Creates a session from an export, with new ids: completely or not at all. */
  importSession(document: Schemas["Document"], options?: CallOptions): Promise<Schemas["SessionOut"]> {
    return this.importMessages(document as Body<"import_session">, options);
  }

  /**
   * OpenAI's form, without its streams: the id of the session, and the completion. The package `openai` does more.
   *
   * Without `sessionId` the session is recognized by the messages before the newest ones, or created.
   */
  async completeChat(body: Body<"create_chat_completion">, options: ChatOptions = {}): Promise<ChatAnswer> {
    const headers = keyHeader(options.idempotencyKey);
    if (options.sessionId !== undefined) headers["X-Session-Id"] = options.sessionId;
    if (options.sessionNew) headers["X-Session-New"] = "true";
    const reply = await this.#send(callOf(COMPLETE_CHAT, [], { body, headers }), options);
    return { sessionId: reply.headers.get("x-session-id") ?? "", completion: jsonOf(reply) };
  }

  /** Prometheus text, of all workers. */
  async getMetrics(options?: CallOptions): Promise<string> {
    return (await this.#send(callOf(GET_METRICS, [], {}), options)).text;
  }

  static {
    for (const [name, operation] of Object.entries(OPERATIONS)) {
      define(this.prototype, name, function (this: Plimsoll, ...given: unknown[]) {
        return this.#call(operation, given);
      });
    }
    for (const [name, list] of Object.entries(ITERATORS)) {
      define(this.prototype, name, function (this: Plimsoll, ...given: unknown[]) {
        return pages((cursor) => this.#call(OPERATIONS[list], given, cursor));
      });
    }
  }

  /** Calls an operation with what its method was given; `cursor` is where the page begins. */
  async #call(operation: Operation, given: readonly unknown[], cursor?: string): Promise<never> {
    const { takes } = operation;
    const inputAt = operation.path.split("{").length - 1;
    const input =
      takes === "nothing" ? {} : { [takes]: { ...(given[inputAt] as object | undefined), ...(cursor && { cursor }) } };
    const options = given[takes === "nothing" ? inputAt : inputAt + 1] as CallOptions | undefined;
    const reply = await this.#send(callOf(operation, given.slice(0, inputAt), input), options);
    return (reply.status === 204 ? undefined : jsonOf(reply)) as never;
  }

  #stream(call: Call, options: CallOptions | undefined): TurnStream {
    return new TurnStream({ ...call, streamed: true }, this.#connection, options?.signal);
  }

  async #send(call: Call, options: CallOptions | undefined): Promise<Reply> {
    const deadline = new Deadline(this.#connection.deadlineS, options?.signal);
    try {
      return await exchange(call, this.#connection, deadline);
    } finally {
      deadline.release();
    }
  }
}

/** The methods that are made of `OPERATIONS` and `ITERATORS`. */
export interface Plimsoll extends Methods, Iterators {}

function define(prototype: object, name: string, value: (...given: unknown[]) => unknown): void {
  Object.defineProperty(prototype, name, { value, writable: true, configurable: true });
}

function streamed<B extends object>(body: B): B & { stream: true } {
  return { ...body, stream: true };
}

async function* pages(page: (cursor: string | undefined) => Promise<Page<unknown>>): AsyncGenerator<unknown, void> {
  for (let cursor: string | undefined; ;) {
    const { items, next_cursor } = await page(cursor);
    yield* items;
    if (!next_cursor) return;
    cursor = next_cursor;
  }
}
