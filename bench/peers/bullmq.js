// BullMQ: pushes with addBulk, and works with the given concurrency.

'use strict';

const { Queue, Worker } = require('bullmq');
const Redis = require('ioredis');
const { url, queue: prefix, messages, payload, done, report, untilStopped } = require('./job');

const CHUNK = 1000;
const connection = new Redis(url, { maxRetriesPerRequest: null });

async function push() {
  const queue = new Queue('jobs', { connection, prefix });
  for (let first = 0; first < messages; first += CHUNK) {
    const jobs = [];
    for (let n = first; n < Math.min(first + CHUNK, messages); n += 1) {
      jobs.push({ name: 'done', data: payload(n), opts: { removeOnComplete: true } });
    }
    await queue.addBulk(jobs);
  }
}

function work(concurrency) {
  const worker = new Worker('jobs', async (job) => done(job.data), { connection, prefix, concurrency });
  worker.on('failed', (job, error) => console.error(error));
  worker.on('error', (error) => console.error(error));
  untilStopped(() => worker.close());
}

const [act, concurrency] = process.argv.slice(2);
if (act === 'push') report(push, 'bullmq', 'ioredis').then(() => process.exit(0));
else work(Number(concurrency));
