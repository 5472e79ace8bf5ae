/** What operations take and answer, from the types that are generated from the service's OpenAPI document. */

import type { components, operations } from "./schema.ts";

/** Every object of the service by its name in the OpenAPI document, such as `Schemas["TurnOut"]`. */
export type Schemas = components["schemas"];

type Operation = keyof operations;

/** The JSON body of an operation. */
export type Body<O extends Operation> = operations[O] extends {
  requestBody?: { content: { "application/json": infer B } };
}
  ? B
  : never;

/** The query parameters of an operation. */
export type Query<O extends Operation> = NonNullable<operations[O]["parameters"]["query"]>;

/** What a message is: text, or parts in the OpenAI form. */
export type Content = Schemas["TurnIn"]["content"];

/** One page of a list. `next_cursor` is null on the last one. */
export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

/** Options of every call. When `signal` aborts, the call rejects with its reason; the service may still do what was asked. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
}

/** Options of calls that can be repeated by a key. One is made where none is given. */
export interface KeyOptions extends CallOptions {
  /** Give one of your own where another process may send the same message. 1 to 255 visible ASCII characters. */
  idempotencyKey?: string | undefined;
}
