import assert from 'node:assert/strict';

import { receive, scenario } from '../harness/scenario.js';

scenario('a message that always fails is dead-lettered after the last attempt, with its history', {}, async s => {
  await s.server.createTopic('orders');
  await s.server.createGroup('workers', '--retry-delays=1s', '--max-attempts=3');
  const inbox = await s.pushConsumer('workers', 'orders', d => d.body !== 'poison');
  const producer = await s.producer({ topics: [ 'orders' ] });

  const receipt = await producer.send({
    topic: 'orders', body: Buffer.from('poison'), tag: 'created', keys: [ 'order-1' ], properties: new Map([ [ 'region', 'north' ] ]),
  });
  await producer.send({ topic: 'orders', body: Buffer.from('good') });
  const undertaker = await s.simpleConsumer('undertakers', '%DLQ%workers');
  const [ dead ] = await receive(undertaker, 1);

  assert.equal(dead.body.toString(), 'poison');
  assert.equal(dead.topic, '%DLQ%workers');
  assert.ok(!dead.corrupted, 'the checksum fits');
  assert.equal(dead.tag, 'created');
  assert.deepEqual(dead.keys, [ 'order-1' ]);
  assert.equal(dead.messageId, receipt.messageId);
  assert.equal(dead.deliveryAttempt, 1);
  const { region, ...history } = Object.fromEntries(dead.properties);
  assert.equal(region, 'north');
  assert.equal(history['perigee.dead-letter.reason'], 'attempts used up');
  assert.equal(history['perigee.dead-letter.topic'], 'orders');
  assert.equal(history['perigee.dead-letter.group'], 'workers');
  assert.equal(history['perigee.dead-letter.attempts'], '3');
  assert.equal(history['perigee.dead-letter.offset'], String(receipt.offset));
  assert.match(history['perigee.dead-letter.queue'], /^[0-7]$/);
  assert.ok(Date.parse(history['perigee.dead-letter.first-delivery']) <= Date.parse(history['perigee.dead-letter.time']));

  await undertaker.ack(dead);
  await s.server.settled('workers', 'orders');
  assert.deepEqual(inbox.of('poison').map(d => d.attempt), [ 1, 2, 3 ]);
  assert.deepEqual(inbox.of('good').map(d => d.attempt), [ 1 ]);
});

// A simple consumer does not say that it failed, it lets the time pass.
scenario('a message that nobody acknowledges is dead-lettered without a push consumer', {}, async s => {
  await s.server.createTopic('orders');
  await s.server.createGroup('readers', '--max-attempts=2');
  const producer = await s.producer({ topics: [ 'orders' ] });
  await producer.send({ topic: 'orders', body: Buffer.from('ignored') });
  const consumer = await s.simpleConsumer('readers', 'orders');

  for (const attempt of [ 1, 2 ]) {
    const [ view ] = await receive(consumer, 1, { invisible: 10_000 });
    assert.equal(view.deliveryAttempt, attempt);
    await consumer.changeInvisibleDuration(view, 100);
  }

  const [ dead ] = await receive(await s.simpleConsumer('undertakers', '%DLQ%readers'), 1);
  assert.equal(dead.body.toString(), 'ignored');
  assert.equal(dead.properties.get('perigee.dead-letter.attempts'), '2');
  assert.deepEqual(await consumer.receive(10, 10_000), []);
});
