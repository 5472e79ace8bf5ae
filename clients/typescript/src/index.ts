/** A typed client of Plimsoll, the service that keeps LLM conversations inside the model's context window. */

export { type ChatAnswer, type ChatOptions, Plimsoll } from "./client.ts";
export type { Options } from "./connection.ts";
export * from "./errors.ts";
export type { TurnEnd, TurnEvent, TurnHead } from "./events.ts";
export type { components, operations, paths } from "./schema.ts";
export type { Functions, RunOptions } from "./tool-loop.ts";
export { TurnStream } from "./turn-stream.ts";
export type { Body, CallOptions, Content, KeyOptions, Page, Query, Schemas } from "./types.ts";
