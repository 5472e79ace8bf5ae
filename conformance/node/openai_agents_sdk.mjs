// OpenAI's Agents SDK for JavaScript, with the history on the client.
import { Agent, MemorySession, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, tool } from "@openai/agents";
import OpenAI from "openai";
import { DESCRIPTION, SCHEMA, SYSTEM, job, talk } from "./talk.mjs";

function agent(Model) {
  const client = new OpenAI({ baseURL: job.v1, apiKey: job.key, defaultHeaders: job.headers });
  const lookUp = tool({ name: "look_up", description: DESCRIPTION, parameters: SCHEMA, strict: true, execute: ({ id }) => job.lookUp(id) });
  const clerk = new Agent({ name: "Clerk", instructions: SYSTEM, model: new Model(client, "main"), tools: [lookUp] });
  const runner = new Runner({ tracingDisabled: true });
  const session = new MemorySession();
  return {
    ask: async (text) => (await runner.run(clerk, text, { session })).finalOutput,
    async *stream(text) {
      const result = await runner.run(clerk, text, { session, stream: true });
      for await (const piece of result.toTextStream()) yield piece;
      await result.completed;
    },
  };
}

await talk({
  responses: ["@openai/agents", () => agent(OpenAIResponsesModel)],
  chat: ["@openai/agents", () => agent(OpenAIChatCompletionsModel)],
});
