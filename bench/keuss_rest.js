// The real keuss behind a minimal HTTP server with the API of keuss-server, which is not on npm. It
// measures keuss and Node.js without other work of a server.
//
//   node keuss_rest.js BACKEND URL          print the port and serve
//
//   PUT /q/NS/QUEUE   GET /q/NS/QUEUE?reserve=1&to=MS   PATCH /q/NS/QUEUE/commit/ID

'use strict';

const http = require('http');
const { promisify } = require('util');

const LocalSignal = require('keuss/signal/local');
const MemStats = require('keuss/stats/mem');

const [backend, url] = process.argv.slice(2);
const options = {
  ...(backend === 'redis-oq' ? { redis: { Redis: url } } : { url }),
  signaller: { provider: LocalSignal },
  stats: { provider: MemStats },
};

const queues = new Map();

async function main() {
  const factory = await promisify(require(`keuss/backends/${backend}`))(options);
  const open = promisify(factory.queue).bind(factory);
  const queueOf = (name) => {
    if (!queues.has(name)) queues.set(name, open(name, {}));
    return queues.get(name);
  };

  async function handle(request, body) {
    const { pathname, searchParams } = new URL(request.url, 'http://here');
    const [, , , name, act, id] = pathname.split('/');
    const queue = await queueOf(name);
    const call = (method, ...args) => promisify(queue[method]).call(queue, ...args);
    if (request.method === 'PUT') return [200, { id: String(await call('push', JSON.parse(body), {})) }];
    if (act === 'commit') return (await call('ok', id)) ? [200, {}] : [404];
    try {
      const reserve = searchParams.get('reserve') === '1';
      const got = await call('pop', 'rest', { reserve, timeout: Number(searchParams.get('to') || 1) });
      return [200, got.payload, { 'x-ks-id': String(got._id), 'x-ks-tries': got.tries }];
    } catch (error) {
      if (error && error.timeout) return [504];
      throw error;
    }
  }

  const server = http.createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      handle(request, Buffer.concat(parts)).then(
        ([status, value, headers]) => {
          const text = value === undefined ? '' : JSON.stringify(value);
          response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text), ...headers });
          response.end(text);
        },
        (error) => {
          response.writeHead(500, { 'content-length': 0 });
          response.end();
          console.error(error);
        },
      );
    });
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
}

main();
