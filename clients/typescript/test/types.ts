// Checked by `tsc` alone: what callers write has exact types, with this client or another one over the same `paths`.
import { Plimsoll, type Schemas, type paths } from "../src/index.ts";

type Post<P extends keyof paths> = paths[P] extends { post: infer O } ? O : never;
type PostTurn = Post<"/v1/sessions/{session_id}/turns">;

export const noField: Schemas["SessionIn"] = {};
export const withoutStream: PostTurn["requestBody"]["content"]["application/json"] = { content: "Hello" };
export const whole: PostTurn["responses"][201]["content"] extends { "application/json": Schemas["TurnAnswer"] }
  ? true
  : never = true;
export const streamed: keyof PostTurn["responses"][200]["content"] = "text/event-stream";
export const variants: Schemas["SimulateIn"] = { policies: ["rolling", { name: "late", summary_trigger_ratio: 0.8 }] };

export async function calls(client: Plimsoll, id: string): Promise<void> {
  const { turn, context } = await client.postTurn(id, { content: [{ type: "text", text: "Hello" }] });
  if (turn.status === "awaiting_tools") turn.tool_calls.map((call) => call.function.name);
  context.regions.system.toFixed();
  const page = await client.listTurns(id, { order: "desc", cursor: null });
  await client.listTurns(id, { cursor: page.next_cursor });
  for await (const event of client.streamTurn(id, { content: "Hello" }))
    if (event.name === "turn.failed") event.error.code.trim();
    else if (event.name === "output.delta") event.text.trim();
  // @ts-expect-error no such field of an answer
  context.input_bugdet;
  // @ts-expect-error no such field of a body
  await client.createSession({ goal: "x" });
  // @ts-expect-error no such order
  await client.listTurns(id, { order: "newest" });
  // @ts-expect-error `q` is needed
  await client.searchSession(id, {});
  // @ts-expect-error a status that no turn has
  if (turn.status === "done") return;
}
