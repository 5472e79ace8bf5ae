// Streams that are left, calls that are aborted, and a key that is shown nowhere: at the service and the silent server
// that the arguments name.
import assert from "node:assert/strict";
import { inspect } from "node:util";
import { DeadlinePassed, Plimsoll } from "../src/index.ts";

const [url, silent] = process.argv.slice(2);
const client = new Plimsoll({ url, maxRetries: 60 }); // a turn that was left may take long
const { id } = await client.createSession();

for await (const event of client.streamTurn(id, { content: "Hello" })) {
  assert.equal(event.name, "turn.created");
  break;
}
const controller = new AbortController();
const aborted = new Error("The user left");
await assert.rejects(
  async () => {
    for await (const _ of client.streamTurn(id, { content: "Hello again" }, { signal: controller.signal }))
      controller.abort(aborted);
  },
  (error) => error === aborted,
);
const last = await client.postTurn(id, { content: "Are you there?" });
const turns = [];
for await (const turn of client.iterateTurns(id)) turns.push(turn);
assert.deepEqual(
  turns.map((turn) => [turn.seq, turn.status]),
  [1, 2, 3].map((seq) => [seq, "completed"]),
);
assert.equal(turns[2].id, last.turn.id);

const hurried = new Plimsoll({ url: silent, deadlineS: 0.3 });
await assert.rejects(hurried.getHealth(), (error) => error instanceof DeadlinePassed && error.deadlineS === 0.3);
await assert.rejects(hurried.streamTurn(id, { content: "Hello" }).answer(), DeadlinePassed);
const waiting = new Plimsoll({ url: silent }).getHealth({ signal: AbortSignal.timeout(100) });
await assert.rejects(waiting, { name: "TimeoutError" });
await assert.rejects(client.getHealth({ signal: AbortSignal.abort(aborted) }), (error) => error === aborted);

const secret = "plk_canary";
const shown = [inspect(new Plimsoll({ url, apiKey: secret }), { depth: 9, showHidden: true })];
for (const refused of [{ apiKey: `${secret}\n` }, { url: `http://me:${secret}@host` }, { url: "host:8000" }])
  assert.throws(
    () => new Plimsoll(refused),
    (error) => shown.push(inspect(error)) && error instanceof TypeError,
  );
for (const refused of [{ deadlineS: 0 }, { maxRetries: -1 }]) assert.throws(() => new Plimsoll(refused), RangeError);
for (const name of ["", ".", ".."]) await assert.rejects(client.deletePin(id, name), TypeError);
assert.ok(!shown.join().includes("canary"));
assert.equal((await client.getSession(id)).id, id);
