// keuss: the time from a push until a waiting process has the message.
//
//   node keuss_wake.js push|wait BACKEND URL REDIS QUEUE MESSAGES
//
// Both print a line when they are ready. `push` pushes a message for each line on stdin. `wait`
// prints the milliseconds since the start of the push for each message, by the monotonic clock that
// all processes of a machine share. Signals use Redis, because those over a capped collection do not
// work with MongoDB 6.

'use strict';

const readline = require('readline');
const { promisify } = require('util');

const RedisSignal = require('keuss/signal/redis-pubsub');
const MemStats = require('keuss/stats/mem');

const [act, backend, url, redis, name, messages] = process.argv.slice(2);
const now = () => Number(process.hrtime.bigint()) / 1e6;

(async () => {
  const factory = await promisify(require(`keuss/backends/${backend}`))({
    ...(backend.startsWith('redis') ? { redis: { Redis: url } } : { url }),
    signaller: { provider: RedisSignal, opts: { Redis: redis } },
    stats: { provider: MemStats },
  });
  const queue = await promisify(factory.queue).call(factory, name, {});
  const call = (method) => promisify(queue[method]).bind(queue);
  const [push, pop, ok] = ['push', 'pop', 'ok'].map(call);
  console.log('ready');
  if (act === 'push') {
    for await (const _ of readline.createInterface({ input: process.stdin })) await push({ sent: now() }, {});
  } else {
    for (let n = 0; n < Number(messages); n++) {
      const message = await pop('bench', { reserve: true });
      console.log(now() - message.payload.sent);
      await ok(message);
    }
  }
  process.exit(0);
})();
