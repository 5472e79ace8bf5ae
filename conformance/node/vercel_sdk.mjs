// Vercel's AI SDK with its providers.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";
import { DESCRIPTION, SCHEMA, SYSTEM, job, talk } from "./talk.mjs";

const { headers, key: apiKey } = job;

function conversation(model) {
  const messages = [];
  const lookUp = tool({ description: DESCRIPTION, inputSchema: jsonSchema(SCHEMA), execute: ({ id }) => job.lookUp(id) });
  const options = { model, instructions: SYSTEM, messages, tools: { look_up: lookUp }, stopWhen: isStepCount(5), maxRetries: 0 };
  return {
    async ask(text) {
      messages.push({ role: "user", content: text });
      const result = await generateText(options);
      messages.push(...result.responseMessages);
      return result.text;
    },
    async *stream(text) {
      messages.push({ role: "user", content: text });
      const result = streamText(options);
      yield* result.textStream;
      messages.push(...(await result.responseMessages));
    },
  };
}

await talk({
  compatible: [
    "@ai-sdk/openai-compatible",
    () => conversation(createOpenAICompatible({ name: "plimsoll", baseURL: job.v1, apiKey, headers })("main")),
  ],
  chat: ["@ai-sdk/openai", () => conversation(createOpenAI({ baseURL: job.v1, apiKey, headers }).chat("main"))],
  responses: ["@ai-sdk/openai", () => conversation(createOpenAI({ baseURL: job.v1, apiKey, headers })("main"))],
  anthropic: ["@ai-sdk/anthropic", () => conversation(createAnthropic({ baseURL: job.v1, apiKey, headers })("main"))],
});
