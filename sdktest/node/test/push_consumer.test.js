import assert from 'node:assert/strict';

import { bodies, scenario, short } from '../harness/scenario.js';
import { until } from '../harness/wait.js';

scenario('each message reaches one of two push consumers, once', {}, async s => {
  await s.server.createTopic('orders');
  const inboxes = [ await s.pushConsumer('workers', 'orders'), await s.pushConsumer('workers', 'orders') ];
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = bodies(short ? 100 : 1000);

  await Promise.all(sent.map(body => producer.send({ topic: 'orders', body: Buffer.from(body) })));
  const delivered = () => inboxes.flatMap(i => i.deliveries);
  await until('all messages', () => delivered().length >= sent.length);
  await s.server.settled('workers', 'orders');

  assert.deepEqual(delivered().map(d => d.body).sort(), sent.sort());
  assert.ok(delivered().every(d => d.attempt === 1), 'first attempts only');
});

scenario('two groups get every message each', {}, async s => {
  await s.server.createTopic('orders');
  const inboxes = [ await s.pushConsumer('workers', 'orders'), await s.pushConsumer('auditors', 'orders') ];
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = bodies(30);

  for (const body of sent) await producer.send({ topic: 'orders', body: Buffer.from(body) });

  for (const inbox of inboxes) {
    await inbox.receives(sent);
    assert.equal(inbox.deliveries.length, sent.length);
  }
});

scenario('one push consumer of two topics gets the messages of both', {}, async s => {
  await s.server.createTopic('orders');
  await s.server.createTopic('bills');
  const inbox = await s.pushConsumer('workers', { orders: '*', bills: '*' });
  const producer = await s.producer({ topics: [ 'orders', 'bills' ] });

  await producer.send({ topic: 'orders', body: Buffer.from('order') });
  await producer.send({ topic: 'bills', body: Buffer.from('bill') });

  await inbox.receives([ 'order', 'bill' ]);
  assert.deepEqual(inbox.deliveries.map(d => `${d.view.topic} ${d.body}`).sort(), [ 'bills bill', 'orders order' ]);
});

// The SDK asks for no delay at all after a failure.
scenario("a failed message comes back after the group's delays, counted up", {}, async s => {
  await s.server.createTopic('orders');
  await s.server.createGroup('workers', '--retry-delays=2s,4s', '--max-attempts=5');
  const inbox = await s.pushConsumer('workers', 'orders', d => {
    if (d.body === 'throws' && d.attempt === 1) throw new Error('thrown by the listener');
    return d.body === 'fine' || d.attempt === 3;
  });
  const producer = await s.producer({ topics: [ 'orders' ] });

  for (const body of [ 'fails', 'throws', 'fine' ]) await producer.send({ topic: 'orders', body: Buffer.from(body) });
  await until('the third deliveries', () => inbox.deliveries.length >= 7);
  await s.server.settled('workers', 'orders');

  assert.equal(inbox.of('fine').length, 1);
  for (const body of [ 'fails', 'throws' ]) {
    const [ first, second, third, ...more ] = inbox.of(body);
    assert.deepEqual([ first, second, third ].map(d => d.attempt), [ 1, 2, 3 ]);
    assert.equal(more.length, 0);
    assert.ok(second.at - first.at >= 1_900, `${second.at - first.at} ms after the first failure`);
    assert.ok(third.at - second.at >= 3_900, `${third.at - second.at} ms after the second failure`);
    assert.equal(first.view.messageId, third.view.messageId);
  }
});
