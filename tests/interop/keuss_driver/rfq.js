// The real rfq of npm, driven by JSON lines, as rfq_driver.py drives that of PyPI, on the server of argv[2].
//
//   {"do": "publish", "topic", "message": {…}, "front"}
//   {"do": "consume", "topic"}              blocks, as rfq does
//   {"do": "done" | "cancel", "id"}         of a task that was consumed here

'use strict';

const readline = require('readline');

const redis = require('redis');
const { Queue } = require('@robofarm/rfq');

const queue = new Queue(redis.createClient({ url: process.argv[2] }));
const tasks = new Map();

const commands = {
  publish: ({ topic, message, front }) => queue.publish(topic, message, { front }),
  consume: async ({ topic }) => {
    const task = await queue.consume(topic);
    tasks.set(task.msgid, task);
    return { id: task.msgid, message: task.value };
  },
  done: ({ id }) => tasks.get(id).resolve(),
  cancel: ({ id }) => tasks.get(id).reject(),
};

const answer = (fields) => process.stdout.write(JSON.stringify(fields) + '\n');

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const given = JSON.parse(line);
    try {
      answer({ ok: true, result: await commands[given.do](given) });
    } catch (error) {
      answer({ ok: false, error: String(error) });
    }
  }
  process.exit(0);
})();
