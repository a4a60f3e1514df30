// Shared parts of the programs of Node.js peers. job.py is the same for Python.

'use strict';

const fs = require('fs');
const path = require('path');
const { performance } = require('perf_hooks');

const { PEERS_URL: url, PEERS_QUEUE: queue, PEERS_MESSAGES, PEERS_TALLIES } = process.env;
const messages = Number(PEERS_MESSAGES);

// A document of 100 bytes of JSON.
const payload = (n) => ({ n, carrier: 'UA', origin: 'EWR', text: 'x'.repeat(54 - String(n).length) });

// The tally is in memory, and written to its file at intervals, because Node.js cannot map files.
const HEAD = 16;
const WRITE_INTERVAL = 200; // ms
const tally = Buffer.alloc(HEAD + messages);
let file = null;
let changed = false;

function write() {
  if (changed) fs.writeSync(file, tally, 0, tally.length, 0);
  changed = false;
}

// Run the no-op job: count it in the tally.
function done({ n }) {
  const now = (performance.timeOrigin + performance.now()) / 1000;
  if (file === null) {
    file = fs.openSync(path.join(PEERS_TALLIES, String(process.pid)), 'w');
    tally.writeDoubleLE(now, 0);
    setInterval(write, WRITE_INTERVAL);
  }
  tally[HEAD + n] += 1;
  tally.writeDoubleLE(now, 8);
  changed = true;
}

// Push, and print the seconds and the versions of the packages.
async function report(push, ...packages) {
  const begun = performance.now();
  await push();
  const seconds = (performance.now() - begun) / 1000;
  const version = packages.map((one) => `${one} ${require(`${one}/package.json`).version}`).join(', ');
  console.log(JSON.stringify({ seconds, version }));
}

// The benchmark sends SIGTERM when all jobs are done.
function untilStopped(close) {
  process.once('SIGTERM', async () => {
    await close();
    write();
    process.exit(0);
  });
}

module.exports = { url, queue, messages, payload, done, report, untilStopped };
