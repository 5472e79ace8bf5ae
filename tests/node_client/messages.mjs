// What an application on Node does with Anthropic's unmodified client: `node messages.mjs ADDRESS`. It prints what it saw as JSON.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const tools = [{ name: "look_up", input_schema: { type: "object", properties: { id: { type: "string" } } } }];
const asked = { model: "main", max_tokens: 1000, tools };
const saw = { sessions: [], calls: 0 };

saw.counted = (await client.messages.countTokens({ model: "main", messages: [{ role: "user", content: "I am Anna." }] })).input_tokens;

const messages = [{ role: "user", content: "I am Anna." }];
const first = await client.messages.create({ ...asked, messages }).withResponse();
saw.first = first.data.content[0].text;
saw.hasRequestId = Boolean(first.request_id);
saw.sessions.push(first.response.headers.get("x-session-id"));
messages.push({ role: "assistant", content: first.data.content }, { role: "user", content: "Is a paid?" });
for (;;) {
  const stream = client.messages.stream({ ...asked, messages });
  const message = await stream.finalMessage();
  saw.sessions.push(stream.response.headers.get("x-session-id"));
  messages.push({ role: "assistant", content: message.content });
  if (message.stop_reason !== "tool_use") {
    saw.answer = message.content[0].text;
    break;
  }
  const calls = message.content.filter((block) => block.type === "tool_use");
  saw.calls += calls.length;
  messages.push({
    role: "user",
    content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: `${call.input.id} is paid` })),
  });
}

try {
  await client.messages.create({ ...asked, messages: [{ role: "user", content: "word ".repeat(6000) }] });
} catch (error) {
  saw.refused = { status: error.status, type: error.error.error.type, isBadRequest: error instanceof Anthropic.BadRequestError };
}
console.log(JSON.stringify(saw));
