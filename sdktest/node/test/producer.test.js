import assert from 'node:assert/strict';

import { bodies, oneShard, receive, scenario } from '../harness/scenario.js';
import { NotFoundException } from '../harness/sdk.js';

scenario('a message arrives as it was sent', {}, async s => {
  await s.server.createTopic('orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const consumer = await s.simpleConsumer('readers', 'orders');
  const sent = {
    topic: 'orders',
    body: Buffer.from(Array.from({ length: 1024 }, (_, i) => i % 256)),
    tag: 'created',
    keys: [ 'order-1', 'käufer-2' ],
    properties: new Map([ [ 'region', 'north' ], [ 'note', 'a=b, "c" ✓' ], [ 'empty', '' ] ]),
  };
  const before = Date.now();

  const receipt = await producer.send(sent);
  const [ view ] = await receive(consumer, 1);

  assert.deepEqual(view.body, sent.body);
  assert.ok(!view.corrupted, 'the checksum fits');
  assert.equal(view.topic, 'orders');
  assert.equal(view.tag, 'created');
  assert.deepEqual(view.keys, sent.keys);
  assert.deepEqual(view.properties, sent.properties);
  assert.equal(view.messageId, receipt.messageId);
  assert.equal(view.deliveryAttempt, 1);
  assert.equal(view.offset, receipt.offset);
  assert.ok(view.bornHost, 'born host');
  assert.ok(view.bornTimestamp.getTime() >= before - 1 && view.bornTimestamp.getTime() <= Date.now(), 'born timestamp');
  assert.ok(view.transportDeliveryTimestamp.getTime() > 0, 'delivery timestamp of the answer');
});

scenario('a receipt names the message, and one transaction id for both', {}, async s => {
  await s.server.createTopic('orders', '--queues=1');
  const producer = await s.producer({ topics: [ 'orders' ] });

  const receipts = [];
  for (const body of bodies(5)) receipts.push(await producer.send({ topic: 'orders', body: Buffer.from(body) }));

  for (const receipt of receipts) {
    assert.match(receipt.messageId, /^01[0-9A-F]{32}$/);
    assert.equal(receipt.transactionId, receipt.messageId);
    assert.equal(receipt.endpoints.facade, s.server.endpoint);
  }
  assert.deepEqual(receipts.map(r => r.offset), [ 0, 1, 2, 3, 4 ]);
  assert.equal(new Set(receipts.map(r => r.messageId)).size, 5);
}, oneShard);

scenario('a producer that was started without topics can send at once', {}, async s => {
  await s.server.createTopic('orders');
  const producer = await s.producer();

  await producer.send({ topic: 'orders', body: Buffer.from('first') });

  const [ view ] = await receive(await s.simpleConsumer('readers', 'orders'), 1);
  assert.equal(view.body.toString(), 'first');
});

scenario('a body near the largest size that the SDK can receive stays whole', {}, async s => {
  await s.server.createTopic('orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const body = Buffer.alloc(4 * 1024 * 1024 - 4096, 'perigee ');

  await producer.send({ topic: 'orders', body });

  const [ view ] = await receive(await s.simpleConsumer('readers', 'orders'), 1);
  assert.ok(!view.corrupted, 'the checksum fits');
  assert.ok(body.equals(view.body), 'body');
  await assert.rejects(producer.send({ topic: 'orders', body: Buffer.alloc(4 * 1024 * 1024 + 1) }), /exceeds the threshold/);
});

scenario('what the server refuses names the reason and reaches nobody', {}, async s => {
  await s.server.createTopic('orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const body = Buffer.from('refused');

  await assert.rejects(producer.send({ topic: 'orders', body, tag: 'a|b' }), err => err.code === 40004 && /tag/.test(err.message));
  await assert.rejects(producer.send({ topic: 'orders', body: Buffer.alloc(0) }), err => err.code === 41302);
  await assert.rejects(producer.send({ topic: 'missing', body }), err => err instanceof NotFoundException && err.code === 40402);
  await assert.rejects(producer.send({ topic: 'orders', body, messageGroup: 'g' }), /type not match/);

  assert.ok((await s.server.queueSizes('orders')).every(size => size === 0), 'nothing is stored');
});
