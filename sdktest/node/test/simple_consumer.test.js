import assert from 'node:assert/strict';

import { bodies, oneShard, receive, scenario } from '../harness/scenario.js';
import { until, within } from '../harness/wait.js';

async function oneMessage(s) {
  await s.server.createTopic('orders');
  await s.server.createGroup('readers', '--max-attempts=5');
  const producer = await s.producer({ topics: [ 'orders' ] });
  await producer.send({ topic: 'orders', body: Buffer.from('only') });
  return await s.simpleConsumer('readers', 'orders');
}

scenario('an empty topic gives an empty answer', {}, async s => {
  await s.server.createTopic('orders');
  const consumer = await s.simpleConsumer('readers', 'orders');

  assert.deepEqual(await consumer.receive(10, 10_000), []);
});

scenario('a message sent before the first receive of a group is received', {}, async s => {
  const consumer = await oneMessage(s);

  const [ view ] = await receive(consumer, 1);

  assert.equal(view.body.toString(), 'only');
});

scenario('a receive that waits is woken by a message', { '--long-polling-max': '25s' }, async s => {
  await s.server.createTopic('orders');
  const consumer = await s.simpleConsumer('readers', 'orders', { awaitDuration: 25_000 });
  const producer = await s.producer({ topics: [ 'orders' ] });

  const waiting = consumer.receive(10, 10_000);
  await until('the receive to wait', async () => await s.server.metric('perigee_receives_waiting') === 1);
  await producer.send({ topic: 'orders', body: Buffer.from('wake up') });

  const [ view ] = await within('the receive to end', waiting, 12_000);
  assert.equal(view.body.toString(), 'wake up');
}, oneShard);

scenario('acknowledged messages are settled and do not come back', {}, async s => {
  await s.server.createTopic('orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const consumer = await s.simpleConsumer('readers', 'orders');
  const sent = bodies(20);
  for (const body of sent) await producer.send({ topic: 'orders', body: Buffer.from(body) });

  const views = await receive(consumer, 20, { batch: 7 });
  for (const view of views) await consumer.ack(view);

  assert.deepEqual(views.map(v => v.body.toString()).sort(), sent.sort());
  assert.equal(await s.server.open('readers', 'orders'), 0);
  assert.deepEqual(await consumer.receive(10, 10_000), []);
});

scenario('an ack may be repeated', {}, async s => {
  const consumer = await oneMessage(s);
  const [ view ] = await receive(consumer, 1);

  await consumer.ack(view);
  const again = await consumer.ack(view).catch(err => err.code);

  assert.ok(again === undefined || again === 40013, `the second ack ends with ${again}`);
});

scenario('what is not acknowledged comes back with the next attempt when its time is over', {}, async s => {
  const consumer = await oneMessage(s);
  const received = Date.now();
  const [ first ] = await receive(consumer, 1, { invisible: 10_000 });

  const [ second ] = await receive(consumer, 1, { invisible: 10_000 });

  assert.equal(second.messageId, first.messageId);
  assert.deepEqual([ first.deliveryAttempt, second.deliveryAttempt ], [ 1, 2 ]);
  assert.ok(Date.now() - received >= 9_000, 'not before its time');
  await assert.rejects(consumer.ack(first), err => err.code === 40013);
  assert.equal(await s.server.open('readers', 'orders'), 1, 'open after an ack of the earlier delivery');
  await consumer.ack(second);
  assert.equal(await s.server.open('readers', 'orders'), 0);
});

scenario('changing the invisible duration brings a message back early, or keeps it away', {}, async s => {
  const consumer = await oneMessage(s);
  const [ first ] = await receive(consumer, 1, { invisible: 600_000 });

  await consumer.changeInvisibleDuration(first, 1_000);
  const [ second ] = await receive(consumer, 1, { invisible: 600_000 });
  await consumer.changeInvisibleDuration(second, 0);
  const [ third ] = await receive(consumer, 1, { invisible: 10_000 });
  await consumer.changeInvisibleDuration(third, 600_000);

  assert.deepEqual([ first, second, third ].map(v => v.deliveryAttempt), [ 1, 2, 3 ]);
  const end = Date.now() + 11_000;
  await until('the time of the third delivery to pass', async () => {
    assert.deepEqual(await consumer.receive(10, 10_000), []);
    return Date.now() > end;
  });
  await consumer.ack(third);
  assert.equal(await s.server.open('readers', 'orders'), 0);
});
