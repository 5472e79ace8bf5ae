// The `openai` package: chat completions, and Responses with the whole history.
import OpenAI from "openai";
import { DESCRIPTION, SCHEMA, SYSTEM, job, talk } from "./talk.mjs";

const client = new OpenAI({ baseURL: job.v1, apiKey: job.key, defaultHeaders: job.headers });
const tool = { name: "look_up", description: DESCRIPTION, parameters: SCHEMA };
const output = (call) => job.lookUp(JSON.parse(call).id);

function chat() {
  const messages = [{ role: "system", content: SYSTEM }];
  const body = () => ({ model: "main", messages, tools: [{ type: "function", function: tool }] });
  const took = (message) => {
    messages.push(message);
    for (const call of message.tool_calls ?? []) {
      messages.push({ role: "tool", tool_call_id: call.id, content: output(call.function.arguments) });
    }
    return Boolean(message.tool_calls?.length);
  };
  return {
    async ask(text) {
      messages.push({ role: "user", content: text });
      for (;;) {
        const { message } = (await client.chat.completions.create(body())).choices[0];
        if (!took(message)) return message.content;
      }
    },
    async *stream(text) {
      messages.push({ role: "user", content: text });
      for (let more = true; more; ) {
        const stream = client.chat.completions.stream(body());
        for await (const chunk of stream) yield chunk.choices[0]?.delta.content ?? "";
        more = took((await stream.finalChatCompletion()).choices[0].message);
      }
    },
  };
}

function responses() {
  const input = [];
  const body = () => ({ model: "main", instructions: SYSTEM, input, tools: [{ type: "function", ...tool, strict: false }] });
  const took = (response) => {
    const calls = response.output.filter((item) => item.type === "function_call");
    input.push(...response.output);
    for (const call of calls) input.push({ type: "function_call_output", call_id: call.call_id, output: output(call.arguments) });
    return calls.length > 0;
  };
  return {
    async ask(text) {
      input.push({ role: "user", content: text });
      for (;;) {
        const response = await client.responses.create(body());
        if (!took(response)) return response.output_text;
      }
    },
    async *stream(text) {
      input.push({ role: "user", content: text });
      for (let more = true; more; ) {
        const stream = client.responses.stream(body());
        for await (const event of stream) if (event.type === "response.output_text.delta") yield event.delta;
        more = took(await stream.finalResponse());
      }
    },
  };
}

await talk({ chat: ["openai", chat], responses: ["openai", responses] });
