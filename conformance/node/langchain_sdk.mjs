// LangChain's chat models for JavaScript.
import { ChatAnthropic } from "@langchain/anthropic";
import { HumanMessage, SystemMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { DESCRIPTION, SCHEMA, SYSTEM, job, talk } from "./talk.mjs";

function conversation(model) {
  const lookUp = tool(({ id }) => job.lookUp(id), { name: "look_up", description: DESCRIPTION, schema: SCHEMA });
  const bound = model.bindTools([lookUp]);
  const history = [new SystemMessage(SYSTEM)];
  const took = async (message) => {
    history.push(message);
    for (const call of message.tool_calls ?? []) history.push(await lookUp.invoke(call));
    return Boolean(message.tool_calls?.length);
  };
  return {
    async ask(text) {
      history.push(new HumanMessage(text));
      for (;;) {
        const message = await bound.invoke(history);
        if (!(await took(message))) return message.text;
      }
    },
    async *stream(text) {
      history.push(new HumanMessage(text));
      for (let more = true; more; ) {
        let whole;
        for await (const chunk of await bound.stream(history)) {
          whole = whole ? whole.concat(chunk) : chunk;
          yield chunk.text;
        }
        more = await took(whole);
      }
    },
  };
}

const configuration = { baseURL: job.v1, defaultHeaders: job.headers };
await talk({
  chat: ["@langchain/openai", () => conversation(new ChatOpenAI({ model: "main", apiKey: job.key, configuration }))],
  anthropic: [
    "@langchain/anthropic",
    () =>
      conversation(
        new ChatAnthropic({
          model: "main",
          apiKey: job.key,
          anthropicApiUrl: job.address,
          maxTokens: 500,
          clientOptions: { defaultHeaders: job.headers },
        }),
      ),
  ],
});
