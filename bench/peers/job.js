// What the programs of the Node.js peers share; job.py says the same for Python.

'use strict';

const fs = require('fs');
const path = require('path');
const { performance } = require('perf_hooks');

const { PEERS_URL: url, PEERS_QUEUE: queue, PEERS_MESSAGES, PEERS_TALLIES } = process.env;
const messages = Number(PEERS_MESSAGES);

// A document of 100 bytes of JSON.
const payload = (n) => ({ n, carrier: 'UA', origin: 'EWR', text: 'x'.repeat(54 - String(n).length) });

// The tally is memory, and written down now and then: Node.js maps no files.
const HEAD = 16;
const WRITTEN = 200; // ms
const tally = Buffer.alloc(HEAD + messages);
let file = null;
let changed = false;

function write() {
  if (changed) fs.writeSync(file, tally, 0, tally.length, 0);
  changed = false;
}

// The job: note that it ran.
function done({ n }) {
  const now = (performance.timeOrigin + performance.now()) / 1000;
  if (file === null) {
    file = fs.openSync(path.join(PEERS_TALLIES, String(process.pid)), 'w');
    tally.writeDoubleLE(now, 0);
    setInterval(write, WRITTEN);
  }
  tally[HEAD + n] += 1;
  tally.writeDoubleLE(now, 8);
  changed = true;
}

// Push, and print how long it took and by which versions.
async function told(push, ...packages) {
  const begun = performance.now();
  await push();
  const seconds = (performance.now() - begun) / 1000;
  const version = packages.map((one) => `${one} ${require(`${one}/package.json`).version}`).join(', ');
  console.log(JSON.stringify({ seconds, version }));
}

// When there is nothing more to do, the benchmark says so.
function untilStopped(close) {
  process.once('SIGTERM', async () => {
    await close();
    write();
    process.exit(0);
  });
}

module.exports = { url, queue, messages, payload, done, told, untilStopped };
