// The real keuss, driven by JSON lines: one command per line on stdin, one answer per line on stdout, in order.
//
//   {"do": "open", "backend": one of BACKENDS, "url": ..., "queue": ...[, "stats": true | URL]
//           [, "signals": {"kind", "url", "exact": whether the URL is that of the signals, not of the queues}]}
//   {"do": "push", "payload": any JSON | "payload_b64": base64 of a Buffer, "hdrs", "delay" s, "mature" unix s, "tries"}
//   {"do": "pop" | "reserve", "timeout": ms}    message: null when nothing came in time
//   {"do": "get"}   message: null when nothing can be taken just now
//   {"do": "ok", "id"}   {"do": "ko", "id", "next_t": unix ms}
//   {"do": "link", "kind": "DirectLink" | "ChoiceLink" | "Sink", "dst": [queues], "work": text of (elem, done) => …, "opts"}
//   {"do": "linkErrors"}   where the link met errors so far: ["next-queue", …]
//   {"do": "unlink"}   ends the link, and tells the same
//   {"do": "stats"}   {"do": "pause", "value": true}   {"do": "paused"}   {"do": "list", "full": true}
//   {"do": "heard"}   what signals have told this process of a pause: true, false, or null
//   {"do": "size" | "totalSize" | "schedSize" | "resvSize" | "next_t" | "close"}
//
// Answers: {"ok": true, ...} or {"ok": false, "error": text}.

'use strict';

const readline = require('readline');
const { promisify } = require('util');

const LocalSignal = require('keuss/signal/local');
const MemStats = require('keuss/stats/mem');

console.log = console.error;  // keuss tells there what it catches, and stdout is for answers

let factory = null;
let queue = null;

const call = (method, ...args) => promisify(queue[method]).call(queue, ...args);

// keuss's defaults keep signals in a capped collection, by a library that does not work with MongoDB 6 where somebody has
// made that collection already. Signals that stay in this process do not tell of pushes by others, hence the short poll;
// where signals are asked for, nothing else wakes who waits.
const common = { signaller: { provider: LocalSignal }, stats: { provider: MemStats }, pollInterval: 100 };

const beside = (url, suffix) => url.replace(/^(mongodb:\/\/[^/]+\/[^?]+)/, `$1${suffix}`);
const STATS = {
  mongodb: (url) => ({ provider: require('keuss/stats/mongo'), opts: { url: beside(url, '_stats') } }),
  redis: (url) => ({ provider: require('keuss/stats/redis'), opts: { Redis: url } }),
};
const SIGNALS = {
  'mongo-capped': (url, exact) => ({ url: exact ? url : beside(url, '_signal') }),
  'redis-pubsub': (url) => ({ Redis: url }),
};

function shared(url, stats, signals) {
  const settings = { ...common };
  if (stats === true) settings.stats = STATS[url.split(':')[0]](url);
  else if (stats) settings.stats = { provider: require('keuss/stats/mongo'), opts: { url: stats } };
  if (signals) {
    const provider = require(`keuss/signal/${signals.kind}`);
    settings.signaller = { provider, opts: SIGNALS[signals.kind](signals.url, signals.exact) };
    settings.pollInterval = 60000;
  }
  return settings;
}

const MONGO = (url) => ({ url });
const REDIS = (url) => ({ redis: { Redis: url } });
// Buckets, and what was done with their messages, are written sooner than keuss would by itself.
const BUCKETS = (url) => ({ url, bucket_max_size: 8, bucket_max_wait: 20, state_flush_period: 20 });
const BACKENDS = {
  mongo: MONGO, 'ps-mongo': MONGO, 'pl-mongo': MONGO, 'bucket-mongo-safe': BUCKETS,
  intraorder: MONGO, 'stream-mongo': MONGO,
  'redis-oq': REDIS, 'redis-list': REDIS,
};

// A signal that is sent before keuss follows its channel is lost to it; one of its own tells when it does. And from a capped
// collection it takes only what has a higher _id than the newest when it began: among ids of that second, chance decides.
async function hearing() {
  const ear = factory._signaller_factory.signal(queue, {});
  await new Promise((heard) => {
    const again = setInterval(() => ear.emit_extra('driver', 1), 20);
    const subscribed = ear.subscribe_extra('driver', () => {
      clearInterval(again);
      ear.unsubscribe_extra(subscribed);
      heard();
    });
  });
  const second = Math.floor(Date.now() / 1000);
  while (Math.floor(Date.now() / 1000) === second) await new Promise((done) => setTimeout(done, 20));
}

async function open({ backend, url, queue: name, stats, signals }) {
  await close();
  const connecting = BACKENDS[backend];
  if (!connecting) throw new Error(`unknown backend '${backend}': ${Object.keys(BACKENDS).join(', ')}`);
  factory = await promisify(require(`keuss/backends/${backend}`))({ ...shared(url, stats, signals), ...connecting(url) });
  queue = await promisify(factory.queue).call(factory, name, {});
  if (signals) await hearing();
  return {};
}

async function push({ payload, payload_b64, hdrs, delay, mature, tries }) {
  const body = payload_b64 === undefined ? payload : Buffer.from(payload_b64, 'base64');
  return { id: String(await call('push', body, { hdrs, delay, mature, tries })) };
}

function shown({ _id, payload, hdrs, tries, mature }) {
  const body = Buffer.isBuffer(payload) ? { payload_b64: payload.toString('base64'), type: 'buffer' } : { payload };
  return { message: { id: String(_id), ...body, hdrs, tries, mature: new Date(mature).getTime() } };
}

// A `pop` that times out while it asks the database goes on asking: what it finds later is lost. So one that is to find
// nothing is not used where something comes afterwards: `get` asks once.
async function get() {
  const found = await call('get');
  return found ? shown(found) : { message: null };
}

async function take(reserve, { timeout }) {
  try {
    return shown(await call('pop', 'driver', { reserve, timeout }));
  } catch (error) {
    if (error && error.timeout) return { message: null };
    throw error;
  }
}

let processor = null;
let errors = [];

async function link({ kind, dst = [], work, opts = {} }) {
  const targets = await Promise.all(dst.map((name) => promisify(factory.queue).call(factory, name, {})));
  const Link = require(`keuss/Pipeline/${kind}`);
  const to = { DirectLink: [targets[0]], ChoiceLink: [targets], Sink: [] }[kind];
  errors = [];
  processor = new Link(queue, ...to, opts);
  processor.on('error', ({ on }) => errors.push(on));
  processor.start(eval(work));
  return {};
}

async function unlink() {
  processor.stop();
  processor = null;
  return { result: errors };
}

async function pause({ value }) {
  queue.pause(value); // it tells nobody when it is done
  while ((await call('paused')) !== value) await new Promise((done) => setTimeout(done, 5));
  return {};
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
  get,
  reserve: (given) => take(true, given),
  ok: async ({ id }) => ({ result: await call('ok', id) }),
  ko: async ({ id, next_t }) => ({ result: await call('ko', id, next_t) }),
  link,
  unlink,
  linkErrors: async () => ({ result: errors }),
  remove: async ({ id }) => ({ result: await call('remove', id) }),
  stats: async () => ({ result: await call('stats') }),
  pause,
  paused: async () => ({ result: await call('paused') }),
  heard: async () => ({ result: queue._local_paused ?? null }),
  list: async ({ full }) => ({ result: await promisify(factory.list).call(factory, { full }) }),
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
