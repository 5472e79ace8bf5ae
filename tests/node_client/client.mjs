// What an application on Node does with an unmodified client: `node client.mjs ADDRESS`. It prints what it saw as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const tools = [{ type: "function", name: "look_up", parameters: { type: "object", properties: { id: { type: "string" } } }, strict: false }];
const saw = {};

const first = await client.responses.create({ model: "main", input: "I am Anna." });
saw.first = first.output_text;
saw.retrieved = (await client.responses.retrieve(first.id)).output_text;

const stream = await client.responses.create({ model: "main", input: "Who am I?", previous_response_id: first.id, stream: true });
saw.events = [];
for await (const event of stream) saw.events.push(event.type);

const conversation = await client.conversations.create({ metadata: { from: "node" }, items: [{ role: "user", content: "Remember 7." }] });
let input = "Is a paid?";
saw.calls = 0;
for (;;) {
  const runner = client.responses.stream({ model: "main", input, tools, conversation: conversation.id });
  const response = await runner.finalResponse();
  const calls = response.output.filter((item) => item.type === "function_call");
  if (calls.length === 0) {
    saw.answer = response.output_text;
    break;
  }
  saw.calls += calls.length;
  input = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: `${JSON.parse(call.arguments).id} is paid` }));
}

saw.items = [];
for await (const item of client.conversations.items.list(conversation.id, { order: "asc", limit: 2 })) saw.items.push(item.type);

try {
  await client.responses.create({ model: "main", input: "word ".repeat(6000), truncation: "disabled" });
} catch (error) {
  saw.refused = { status: error.status, code: error.code, isBadRequest: error instanceof OpenAI.BadRequestError };
}
await client.responses.delete(first.id);
saw.deleted = (await client.conversations.delete(conversation.id)).deleted;
console.log(JSON.stringify(saw));
