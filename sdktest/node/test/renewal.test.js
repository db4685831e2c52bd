import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { scenario, short } from '../harness/scenario.js';
import { within } from '../harness/wait.js';

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

// Takes as long as a client counts as alive without a sign of life.
if (!short) {
  const flags = { '--renew-slice': '2s', '--session-timeout': '31s' };
  scenario('a message in work at a consumer that was killed goes to another one', flags, async s => {
    await s.server.createTopic('orders');
    await s.server.createGroup('workers', '--retry-delays=1s');
    const stuck = fileURLToPath(new URL('../harness/stuck_consumer.js', import.meta.url));
    const victim = spawn(process.execPath, [ stuck, s.server.endpoint, 'orders', 'workers' ], { stdio: [ 'ignore', 'pipe', 'inherit' ] });
    s.onEnd(async () => victim.kill('SIGKILL'));
    const producer = await s.producer({ topics: [ 'orders' ] });

    await producer.send({ topic: 'orders', body: Buffer.from('left behind') });
    const [ got ] = await within('the delivery to the victim', once(victim.stdout.setEncoding('utf8'), 'data'));
    assert.equal(got.trim(), 'left behind');
    victim.kill('SIGKILL');
    const inbox = await s.pushConsumer('workers', 'orders');

    await inbox.receives([ 'left behind' ], 60_000);
    await s.server.settled('workers', 'orders');
    assert.deepEqual(inbox.deliveries.map(d => d.attempt), [ 2 ]);
  });
}
