/** A turn with its tools, round by round. */

import type { Plimsoll } from "./client.ts";
import { ToolLoopTooLong } from "./errors.ts";
import type { Body, KeyOptions, Schemas } from "./types.ts";

/**
 * What the model may call, by name. Each is given the call's arguments, as the model wrote them, and may answer with a
 * promise; text is sent as it is, anything else as JSON.
 */
export type Functions = Readonly<Record<string, (given: never) => unknown>>;

/** Options of `runTurn`. */
export interface RunOptions extends KeyOptions {
  /** After so many rounds of tools the turn is cancelled. 16 by default. */
  maxRounds?: number | undefined;
}

// What the service can not store: NUL, and halves of characters. Refused outputs would leave the turn open for good.
const UNSENDABLE = /\0|\p{Surrogate}/gu;

export async function runTurn(
  client: Plimsoll,
  sessionId: string,
  body: Body<"post_turn">,
  functions: Functions,
  { maxRounds = 16, idempotencyKey, signal }: RunOptions,
): Promise<Schemas["TurnAnswer"]> {
  let answer = await client.postTurn(sessionId, body, { idempotencyKey, signal });
  for (let round = 0; round < maxRounds && answer.turn.status === "awaiting_tools"; round += 1) {
    const outputs: Schemas["ToolOutputIn"][] = [];
    for (const call of answer.turn.tool_calls) {
      signal?.throwIfAborted();
      const content = (await outputOf(call, functions)).replace(UNSENDABLE, "\uFFFD");
      outputs.push({ tool_call_id: call.id, content });
    }
    answer = await client.postToolOutputs(sessionId, answer.turn.id, { outputs }, { signal });
  }
  if (answer.turn.status !== "awaiting_tools") return answer;
  throw new ToolLoopTooLong(await client.cancelTurn(sessionId, answer.turn.id, { signal }), maxRounds);
}

async function outputOf(call: Schemas["StoredCall"], functions: Functions): Promise<string> {
  const { name, arguments: text } = call.function;
  if (!Object.hasOwn(functions, name)) return JSON.stringify({ error: `There is no function ${name}.` });
  let given: unknown = null;
  try {
    given = JSON.parse(text || "{}");
  } catch {
    // answered below
  }
  if (typeof given !== "object" || given === null || Array.isArray(given))
    return JSON.stringify({ error: "The arguments are no JSON object." });
  try {
    const value = await functions[name]?.(given as never);
    return typeof value === "string" ? value : (JSON.stringify(value) ?? "null");
  } catch (error) {
    return JSON.stringify({ error: String(error) }); // the model sees it, and can do something else
  }
}
