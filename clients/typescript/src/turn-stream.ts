/**
 * The events of a turn as they come, and how they go on in a second stream when the first one broke.
 *
 * The same call with the same idempotency key is the same turn: once that has ended, the service streams it again with
 * its whole text in one delta. What earlier events had is left out of it.
 */

import type { Call } from "./call.ts";
import type { Connection } from "./connection.ts";
import { StreamBroken } from "./errors.ts";
import { EventReader, type TurnEnd, type TurnEvent, type TurnHead } from "./events.ts";
import { Deadline, exchange, reasonOf } from "./exchange.ts";
import type { Schemas } from "./types.ts";

/**
 * How long the end of a stream is waited for after its last event: a connection that was read to its end is used again,
 * but a proxy may keep it open.
 */
const CLOSING_S = 1;

/** How far the events of a turn have come. */
class Progress {
  text = "";
  ended: TurnEnd | null = null;
  #resumptionsLeft: number;
  #reader = new EventReader();
  #again = "";
  #resumed = false;
  #created: TurnHead | null = null;
  #assembled = false;

  constructor(mostResumptions: number) {
    this.#resumptionsLeft = mostResumptions;
  }

  /** The events in these bytes that did not come before. */
  take(data: Uint8Array): TurnEvent[] {
    return this.#reader.feed(data).flatMap((event) => this.#new(event));
  }

  /** Whether the same call may be sent again now that the stream broke; it begins from its start. */
  mayResume(): boolean {
    if (this.#resumptionsLeft <= 0) return false;
    this.#resumptionsLeft -= 1;
    this.#resumed = true;
    this.#again = "";
    this.#reader = new EventReader();
    return true;
  }

  /** The error of a stream that ended too early. */
  broken(why: string): StreamBroken {
    const detail = `The stream ended before the turn did: ${why}`;
    return new StreamBroken(detail, this.#created?.session_id ?? null, this.#created?.id ?? null, this.text);
  }

  #new(event: TurnEvent): TurnEvent[] {
    switch (event.name) {
      case "turn.created": {
        const seen = this.#created !== null;
        this.#created = event.turn;
        return seen ? [] : [event];
      }
      case "context.assembled": {
        const seen = this.#assembled;
        this.#assembled = true;
        return seen ? [] : [event];
      }
      case "output.delta":
        return this.#grown(event.text);
      default:
        if (this.#resumed && event.name === "turn.completed" && this.#again !== this.text) throw this.#differs();
        this.ended = event;
        return [event];
    }
  }

  #grown(text: string): TurnEvent[] {
    if (this.#resumed) {
      this.#again += text;
      if (!this.#again.startsWith(this.text) && !this.text.startsWith(this.#again)) throw this.#differs();
      text = this.#again.slice(this.text.length);
    }
    this.text += text;
    return text ? [{ name: "output.delta", text }] : [];
  }

  #differs(): StreamBroken {
    return this.broken("the turn ended with another text");
  }
}

/**
 * The events of a turn, once: `for await (const event of stream)`. The request is sent when the first one is asked for.
 * Leaving the loop closes the stream; the turn goes on, unless the deployment is configured otherwise.
 */
export class TurnStream implements AsyncIterable<TurnEvent> {
  readonly #progress: Progress;
  readonly #events: AsyncGenerator<TurnEvent, void, undefined>;

  constructor(call: Call, connection: Connection, signal: AbortSignal | undefined) {
    this.#progress = new Progress(connection.maxRetries);
    this.#events = this.#run(call, connection, signal);
  }

  [Symbol.asyncIterator](): AsyncGenerator<TurnEvent, void, undefined> {
    return this.#events;
  }

  /** The answer so far. */
  get text(): string {
    return this.#progress.text;
  }

  /** Reads to the end, and gives what posting without a stream would have: throws the problem of a failed turn. */
  async answer(): Promise<Schemas["TurnAnswer"]> {
    for await (const _ of this.#events);
    const { ended } = this.#progress;
    if (ended === null) throw this.#progress.broken("it was not read to its end");
    if (ended.name === "turn.failed") throw ended.error;
    return { turn: ended.turn, context: ended.context };
  }

  async *#run(
    call: Call,
    connection: Connection,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<TurnEvent, void, undefined> {
    const progress = this.#progress;
    const deadline = new Deadline(connection.deadlineS, signal);
    try {
      while (progress.ended === null) {
        const { stream } = await exchange(call, connection, deadline);
        const why = yield* this.#read(stream, deadline, signal);
        if (progress.ended === null && !progress.mayResume()) throw progress.broken(why);
      }
    } finally {
      deadline.release();
    }
  }

  /** The events of one stream to its end, and why it ended. Throws the reason of the deadline's signal. */
  async *#read(
    stream: ReadableStream<Uint8Array> | null,
    deadline: Deadline,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<TurnEvent, string, undefined> {
    const reader = stream?.getReader();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let closing: Promise<undefined> | undefined;
    try {
      for (;;) {
        let piece: Uint8Array | undefined;
        try {
          piece = (await (closing ? Promise.race([reader?.read(), closing]) : reader?.read()))?.value;
        } catch (error) {
          if (this.#progress.ended === null) deadline.signal.throwIfAborted();
          return reasonOf(error);
        }
        if (piece === undefined) return "the connection was closed";
        for (const event of this.#progress.take(piece)) {
          yield event;
          signal?.throwIfAborted(); // also where further events are there already
        }
        if (this.#progress.ended !== null)
          closing ??= new Promise((resolve) => (timer = setTimeout(resolve, CLOSING_S * 1000, undefined)));
      }
    } finally {
      clearTimeout(timer);
      await reader?.cancel().catch(() => undefined);
    }
  }
}
