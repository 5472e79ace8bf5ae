// The `@anthropic-ai/sdk` package.
import Anthropic from "@anthropic-ai/sdk";
import { DESCRIPTION, SCHEMA, SYSTEM, job, talk } from "./talk.mjs";

function messages() {
  const client = new Anthropic({ baseURL: job.address, apiKey: job.key, defaultHeaders: job.headers });
  const tools = [{ name: "look_up", description: DESCRIPTION, input_schema: SCHEMA }];
  const history = [];
  const body = () => ({ model: "main", max_tokens: 500, system: SYSTEM, messages: history, tools });
  const took = (message) => {
    history.push({ role: "assistant", content: message.content });
    const calls = message.content.filter((block) => block.type === "tool_use");
    const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: job.lookUp(call.input.id) }));
    if (results.length) history.push({ role: "user", content: results });
    return results.length > 0;
  };
  return {
    async ask(text) {
      history.push({ role: "user", content: text });
      for (;;) {
        const message = await client.messages.create(body());
        if (!took(message)) return message.content[0].text;
      }
    },
    async *stream(text) {
      history.push({ role: "user", content: text });
      for (let more = true; more; ) {
        const stream = client.messages.stream(body());
        for await (const event of stream) if (event.type === "content_block_delta") yield event.delta.text ?? "";
        more = took(await stream.finalMessage());
      }
    },
  };
}

await talk({ messages: ["@anthropic-ai/sdk", messages] });
