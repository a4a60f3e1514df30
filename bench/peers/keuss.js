// keuss: pushes and works one by one, in several concurrent loops. It has no bulk and no workers.
//
//   node keuss.js push|pop|reserve BACKEND LOOPS

'use strict';

const { promisify } = require('util');

const LocalSignal = require('keuss/signal/local');
const MemStats = require('keuss/stats/mem');

const { url, queue: name, messages, payload, done, report, untilStopped } = require('./job');

const [act, backend, loops] = process.argv.slice(2);

// Its default signals on MongoDB use a capped collection. Their library does not support MongoDB 6.
const options = {
  ...(backend === 'redis-oq' ? { redis: { Redis: url } } : { url }),
  signaller: { provider: LocalSignal },
  stats: { provider: MemStats },
};

async function open() {
  const factory = await promisify(require(`keuss/backends/${backend}`))(options);
  const queue = await promisify(factory.queue).call(factory, name, {});
  const act = (method) => promisify(queue[method]).bind(queue);
  return { push: act('push'), pop: act('pop'), ok: act('ok'), drain: act('drain') };
}

const inLoops = (loop) => Promise.all(Array.from({ length: Number(loops) }, loop));

async function push(queue) {
  let next = 0;
  await inLoops(async () => {
    while (next < messages) await queue.push(payload(next++), {});
  });
  await queue.drain(); // a push returns before its bucket is written
}

async function work(queue) {
  const reserve = act === 'reserve';
  untilStopped(async () => {}); // a waiting loop holds no message
  await inLoops(async () => {
    for (;;) {
      const message = await queue.pop('bench', { reserve });
      done(message.payload);
      if (reserve && !(await queue.ok(message))) throw new Error(`the reservation has expired: ${message._id}`);
    }
  });
}

(async () => {
  const queue = await open();
  if (act === 'push') {
    await report(() => push(queue), 'keuss');
    process.exit(0);
  }
  await work(queue);
})();
