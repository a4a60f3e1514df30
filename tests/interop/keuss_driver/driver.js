// The real keuss, driven by JSON lines: one command per line on stdin, one answer per line on stdout, in order.
//
//   {"do": "open", "backend": "mongo" | "redis-oq", "url": ..., "queue": ...}
//   {"do": "push", "payload": any JSON | "payload_b64": base64 of a Buffer, "hdrs", "delay" s, "mature" unix s, "tries"}
//   {"do": "pop" | "reserve", "timeout": ms}    message: null when nothing came in time
//   {"do": "ok", "id"}   {"do": "ko", "id", "next_t": unix ms}
//   {"do": "size" | "totalSize" | "schedSize" | "resvSize" | "next_t" | "close"}
//
// Answers: {"ok": true, ...} or {"ok": false, "error": text}.

'use strict';

const readline = require('readline');
const { promisify } = require('util');

const LocalSignal = require('keuss/signal/local');
const MemStats = require('keuss/stats/mem');

let factory = null;
let queue = null;

const call = (method, ...args) => promisify(queue[method]).call(queue, ...args);

// keuss's defaults keep signals in a capped collection, by a library that does not work with MongoDB 6. Signals that stay
// in this process do not tell of pushes by others, hence the short poll.
const common = {
  signaller: { provider: LocalSignal },
  stats: { provider: MemStats },
  pollInterval: 100,
};

async function open({ backend, url, queue: name }) {
  await close();
  const connection = { mongo: { url }, 'redis-oq': { redis: { Redis: url } } }[backend];
  if (!connection) throw new Error(`unknown backend '${backend}': mongo or redis-oq`);
  factory = await promisify(require(`keuss/backends/${backend}`))({ ...common, ...connection });
  queue = await promisify(factory.queue).call(factory, name, {});
  return {};
}

async function push({ payload, payload_b64, hdrs, delay, mature, tries }) {
  const body = payload_b64 === undefined ? payload : Buffer.from(payload_b64, 'base64');
  return { id: String(await call('push', body, { hdrs, delay, mature, tries })) };
}

async function take(reserve, { timeout = 1000 }) {
  try {
    const { _id, payload, hdrs, tries, mature } = await call('pop', 'driver', { reserve, timeout });
    const body = Buffer.isBuffer(payload) ? { payload_b64: payload.toString('base64'), type: 'buffer' } : { payload };
    return { message: { id: String(_id), ...body, hdrs, tries, mature: new Date(mature).getTime() } };
  } catch (error) {
    if (error && error.timeout) return { message: null };
    throw error;
  }
}

async function close() {
  if (factory) await promisify(factory.close).call(factory);
  factory = queue = null;
  return {};
}

const commands = {
  open,
  push,
  pop: (given) => take(false, given),
  reserve: (given) => take(true, given),
  ok: async ({ id }) => ({ result: await call('ok', id) }),
  ko: async ({ id, next_t }) => ({ result: await call('ko', id, next_t) }),
  close,
};
for (const name of ['size', 'totalSize', 'schedSize', 'resvSize', 'next_t']) {
  commands[name] = async () => ({ result: await call(name) });
}

const answer = (fields) => process.stdout.write(JSON.stringify(fields) + '\n');
const told = (error) => (error instanceof Error ? error.message : JSON.stringify(error));

async function obey(line) {
  try {
    const given = JSON.parse(line);
    const command = commands[given.do];
    if (!command) throw new Error(`unknown command '${given.do}': ${Object.keys(commands).join(', ')}`);
    if (!queue && !['open', 'close'].includes(given.do)) throw new Error(`'${given.do}' before 'open'`);
    answer({ ok: true, ...(await command(given)) });
  } catch (error) {
    answer({ ok: false, error: told(error) });
  }
}

// keuss throws some errors from inside the callbacks of its drivers, where no caller can catch them.
process.on('uncaughtException', (error) => {
  answer({ ok: false, error: `keuss died: ${error.stack}` });
  process.exitCode = 1;
  process.stdin.destroy();
  setImmediate(() => process.exit(1));
});

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) await obey(line);
  await close();
  process.exit(0);
})();
