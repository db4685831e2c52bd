import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { bodies, scenario, short } from '../harness/scenario.js';
import { until } from '../harness/wait.js';

const WORK = short ? 8_000 : 25_000;

scenario('a message in work is not delivered again while its consumer lives', { '--renew-slice': '2s' }, async s => {
  await s.server.createTopic('orders');
  const inboxes = [];
  for (let i = 0; i < 2; i++) {
    inboxes.push(await s.pushConsumer('workers', 'orders', async d => {
      await pause(d.body === 'slow' ? WORK : 0);
    }));
  }
  const producer = await s.producer({ topics: [ 'orders' ] });
  const started = Date.now();

  await producer.send({ topic: 'orders', body: Buffer.from('slow') });
  await producer.send({ topic: 'orders', body: Buffer.from('quick') });
  await s.server.settled('workers', 'orders', WORK + 20_000);

  assert.ok(Date.now() - started >= WORK, 'settled when the work was done');
  assert.deepEqual(inboxes.flatMap(i => i.of('slow')).map(d => d.attempt), [ 1 ]);
  assert.deepEqual(inboxes.flatMap(i => i.of('quick')).map(d => d.attempt), [ 1 ]);
});

// Starts a consumer in a process of its own that never finishes what it gets, and
// returns the process once it has n messages.
async function stuckConsumer(s, n, ...options) {
  const file = fileURLToPath(new URL('../harness/stuck_consumer.js', import.meta.url));
  const victim = spawn(process.execPath, [ file, s.server.endpoint, 'orders', 'workers', ...options ], { stdio: [ 'ignore', 'pipe', 'inherit' ] });
  s.onEnd(async () => victim.kill('SIGKILL'));
  let printed = '';
  victim.stdout.setEncoding('utf8').on('data', text => { printed += text; });
  await until(`${n} deliveries to the victim`, () => printed.split('\n').length > n);
  return victim;
}

// A client counts as alive for 90 s without a sign of life. The end of its
// connection tells much sooner.
const SOON = 30_000;

scenario('messages in work at a consumer that was killed go to another one within seconds', {}, async s => {
  await s.server.createTopic('orders');
  await s.server.createGroup('workers', '--retry-delays=1s');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = bodies(32, 'left behind');
  for (const body of sent) await producer.send({ topic: 'orders', body: Buffer.from(body) });
  const victim = await stuckConsumer(s, sent.length);

  victim.kill('SIGKILL');
  const inbox = await s.pushConsumer('workers', 'orders');

  await inbox.receives(sent, SOON);
  await s.server.settled('workers', 'orders');
  assert.ok(inbox.deliveries.every(d => d.attempt === 2));
});

// It does not poll: its cache is full. The SDK shares that out among the shards it knows of, so
// that on several it holds a little less, or more, than it was told.
scenario('a consumer that was killed with all hands full is noticed too', {}, async s => {
  await s.server.createTopic('orders');
  await s.server.createGroup('workers', '--retry-delays=1s');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = bodies(24, 'left behind');
  for (const body of sent) await producer.send({ topic: 'orders', body: Buffer.from(body) });
  const held = 3;
  const victim = await stuckConsumer(s, held, 4);
  await pause(5_000); // the polls that were under way have ended

  victim.kill('SIGKILL');
  const inbox = await s.pushConsumer('workers', 'orders');

  await inbox.receives(sent, SOON);
  await s.server.settled('workers', 'orders');
  const again = inbox.deliveries.filter(d => d.attempt === 2).length;
  assert.ok(again >= held && again < sent.length, `${again} were in its hands`);
  assert.ok(inbox.deliveries.every(d => d.attempt <= 2));
});
