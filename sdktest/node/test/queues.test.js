import assert from 'node:assert/strict';

import { bodies, oneShard, receive, scenario } from '../harness/scenario.js';

// The SDK sends to queue 0 and receives from queue 0, whatever the route says.
scenario('messages are spread over all queues, and a receive on queue 0 gets them all', {}, async s => {
  await s.server.createTopic('orders', '--queues=8');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const consumer = await s.simpleConsumer('readers', 'orders', { awaitDuration: 3000 });
  const sent = bodies(102);

  for (const body of sent) await producer.send({ topic: 'orders', body: Buffer.from(body) });
  const sizes = await s.server.queueSizes('orders');
  const views = await receive(consumer, 102, { batch: 20, invisible: 10_000 });
  for (const view of views) await consumer.ack(view);

  assert.equal(sizes.length, 8);
  assert.ok(sizes.every(size => size > 0), `queue sizes ${sizes}`);
  assert.deepEqual(views.map(v => v.body.toString()).sort(), sent.sort());
  assert.equal(await s.server.open('readers', 'orders'), 0);
}, oneShard);
