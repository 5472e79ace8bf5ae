// Runs methods of the client for tests/client: one JSON line for each request, and one for its answer. In between the
// client may ask for a function of the other side to be run. The first argument has the options of the client.
import { createInterface } from "node:readline";
import { Plimsoll, problemOf, TurnStream } from "../src/index.ts";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const client = new Plimsoll(JSON.parse(process.argv[2]));

function put(value) {
  const shown = (_, each) => (each instanceof Error ? { ...each, name: each.name, message: each.message } : each);
  process.stdout.write(JSON.stringify(value, shown) + "\n");
}

async function next() {
  const { value } = await lines.next();
  return value === undefined ? null : JSON.parse(value);
}

/** A function that the other side runs. */
function remote(name) {
  return async (given) => {
    put({ run: name, given });
    const { value, error } = await next();
    if (error) throw Object.assign(new Error(error.message), { name: error.name });
    return value;
  };
}

function surface(statuses) {
  const methods = Object.getOwnPropertyNames(Plimsoll.prototype).filter((name) => name !== "constructor");
  const classOf = ([code, status]) => [code, problemOf(status, { code }).name];
  return { methods, classes: Object.fromEntries(Object.entries(statuses).map(classOf)) };
}

async function result({ method, given, patience, functions, statuses }) {
  if (statuses) return surface(statuses);
  const at = patience ? client.withPatience(patience) : client;
  const inputs = functions
    ? [...given.slice(0, 2), Object.fromEntries(functions.map((name) => [name, remote(name)])), given[2]]
    : given;
  const made = at[method](...inputs);
  if (!(made instanceof TurnStream) && !(Symbol.asyncIterator in made)) return await made;
  const items = [];
  for await (const item of made) items.push(item);
  return items;
}

for (let request; (request = await next());) {
  try {
    put({ value: (await result(request)) ?? null });
  } catch (error) {
    put({ error });
  }
}
