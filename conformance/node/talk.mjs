// What every client for Node does, as `../python/talk.py` does it: `node FILE WHICH ADDRESS KEY TURNS [SESSION]`.
import { readFileSync } from "node:fs";

const remark = Array.from({ length: 8 }, (_, day) => `It was ordered on day ${day} for department ${day * 7}.`).join(" ");
export const SYSTEM = "You are a clerk. Look invoices up.";
export const SCHEMA = {
  type: "object",
  properties: { id: { type: "string", description: "The invoice's number." } },
  required: ["id"],
  additionalProperties: false,
};
export const DESCRIPTION = "Says whether an invoice is paid.";

const [, , which, address, key, turns, session] = process.argv;
const lookedUp = [];
export const job = {
  address,
  key,
  v1: `${address}/v1`,
  headers: session ? { "X-Session-Id": session } : {},
  lookUp(id) {
    lookedUp.push(String(id));
    return `Invoice ${id} is paid, by transfer. ${remark}`;
  },
};

const question = (number) => `Is invoice ${number} paid? ${remark}`;

// `clients` has [package, connect] by name; a connected client has `ask` and `stream`, whose pieces are the turn's text.
export async function talk(clients) {
  const [name, connect] = clients[which];
  const client = await connect();
  const last = Number(turns) + 1;
  let answered = 0;
  for (let number = 1; number < last; number++) {
    if ((await client.ask(question(number))).includes(`Invoice ${number} is paid`)) answered++;
  }
  const pieces = [];
  for await (const piece of client.stream(question(last))) pieces.push(piece);
  const called = new Set(lookedUp.filter((id) => Number(id) < last)).size;
  const refused = await client.ask(`Is invoice 99 paid? ${"word ".repeat(12000)}`).then(
    (answer) => ({ error: null, text: answer }),
    (error) => ({ error: error.constructor.name, status: error.status ?? error.statusCode, text: String(error).slice(0, 300) }),
  );
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
  const streamed = pieces.length > 1 && pieces.join("").includes(`Invoice ${last} is paid`);
  console.log(`\n${JSON.stringify({ version, answered, called, streamed, refused })}`);
}
