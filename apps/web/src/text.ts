// Contents as text. Nothing here or elsewhere becomes HTML: components put it into text nodes.
import type { Content, PromptMessage } from "./types";

export function textOf(content: Content): string {
  if (content === null) return "";
  if (typeof content === "string") return content;
  return content.map((part) => (part.type === "text" ? (part.text ?? "") : `[${part.type}]`)).join("\n");
}

/** The images that are in the content. Those that it only refers to are elsewhere, and the page loads nothing from there. */
export function imagesOf(content: Content): string[] {
  const parts = Array.isArray(content) ? content : [];
  const urls = parts.map((part) => (part.image_url as { url: string } | undefined)?.url ?? "");
  return urls.filter((url) => url.startsWith("data:image/"));
}

/** All that a message says: its content, and the calls it makes. */
export function wholeText(message: Pick<PromptMessage, "content" | "tool_calls">): string {
  const calls = (message.tool_calls ?? []).map((call) => `${call.function.name}(${call.function.arguments})`);
  return [textOf(message.content), ...calls].filter(Boolean).join("\n");
}
