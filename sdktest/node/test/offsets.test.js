import assert from 'node:assert/strict';

import { Offsets } from '../harness/raw.js';
import { bodies, oneShard, receive, scenario } from '../harness/scenario.js';

scenario('the stubs of the SDK tell and move where a group is, and pull without one', {}, async s => {
  await s.server.createTopic('orders', '--queues=1');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = bodies(10);
  for (const body of sent) await producer.send({ topic: 'orders', body: Buffer.from(body) });
  const offsets = new Offsets(s.server.endpoint, 'orders', 'readers');

  assert.equal(await offsets.query('BEGINNING'), 0);
  assert.equal(await offsets.query('END'), 10);
  assert.equal(await offsets.query('TIMESTAMP', new Date(Date.now() + 3_600_000)), 10);
  await assert.rejects(offsets.get(), /40404/);
  assert.deepEqual(await offsets.pull(4), { bodies: sent.slice(4), next: 10 });
  await assert.rejects(offsets.get(), /40404/, 'a pull leaves no trace');
  await assert.rejects(offsets.set(11), /must lie between 0/);
  await offsets.set(7);
  assert.equal(await offsets.get(), 7);
  const views = await receive(await s.simpleConsumer('readers', 'orders'), 3);
  assert.deepEqual(views.map(v => v.body.toString()), sent.slice(7));
}, oneShard);

scenario('a FIFO group that is reset under its consumer starts again in order', {}, async s => {
  await s.server.createTopic('orders', '--type=FIFO', '--queues=1');
  await s.server.createGroup('workers', '--fifo');
  const inbox = await s.pushConsumer('workers', 'orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = bodies(6);
  for (const body of sent) await producer.send({ topic: 'orders', messageGroup: 'g', body: Buffer.from(body) });
  await inbox.receives(sent);
  await s.server.settled('workers', 'orders');

  inbox.deliveries.length = 0;
  await s.server.command('group', 'reset-offset', 'workers', '--topic', 'orders', '--earliest');
  await inbox.receives(sent);
  await s.server.settled('workers', 'orders');
  assert.deepEqual(inbox.deliveries.map(d => d.body), sent);
  assert.ok(inbox.deliveries.every(d => d.attempt === 1));
});
