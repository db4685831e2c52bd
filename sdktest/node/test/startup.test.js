import assert from 'node:assert/strict';

import { Forwarder } from '../harness/forwarder.js';
import { receive, scenario } from '../harness/scenario.js';
import { NotFoundException, Producer, PushConsumer, SimpleConsumer } from '../harness/sdk.js';
import { within } from '../harness/wait.js';

scenario('many clients of many topics start at once', {}, async s => {
  const topics = Array.from({ length: 10 }, (_, i) => `orders-${i}`);
  for (const topic of topics) await s.server.createTopic(topic);
  const filters = Object.fromEntries(topics.map(t => [ t, '*' ]));

  await Promise.all([
    ...Array.from({ length: 5 }, () => s.producer({ topics })),
    ...Array.from({ length: 5 }, () => s.simpleConsumer('readers', filters)),
    ...Array.from({ length: 2 }, () => s.pushConsumer('workers', filters)),
  ]);
});

const advertised = port => ({ '--advertise': `localhost:${port}` });

// The SDK opens its telemetry stream at the first route and looks out for the
// settings only after the last one. Here the routes come through a slow
// forwarder and the settings do not, so that they arrive in between and are lost.
scenario('a client of two topics starts although it loses the first settings', advertised, async s => {
  await s.server.createTopic('orders');
  await s.server.createTopic('bills');
  const slow = await Forwarder.start(s.server.port, 700);
  s.onEnd(() => slow.close());
  const endpoints = slow.endpoint;

  const producer = await s.producer({ topics: [ 'orders', 'bills' ], endpoints });
  const consumer = await s.simpleConsumer('readers', { orders: '*', bills: '*' }, { endpoints });
  await s.pushConsumer('workers', { orders: '*', bills: '*' }, undefined, { endpoints });

  const receipt = await producer.send({ topic: 'orders', body: Buffer.from('started') });
  assert.equal(receipt.endpoints.facade, `localhost:${s.server.port}`);
  assert.equal((await receive(consumer, 1))[0].body.toString(), 'started');
});

scenario('a client of a topic that does not exist fails to start and says why', {}, async s => {
  await s.server.createTopic('orders');
  const common = { endpoints: s.server.endpoint, logger: { info() {}, warn() {}, error() {} } };
  const subscriptions = new Map([ [ 'missing', '*' ] ]);
  const clients = [
    new Producer({ ...common, topics: [ 'missing' ] }),
    new SimpleConsumer({ ...common, consumerGroup: 'readers', subscriptions }),
    new PushConsumer({ ...common, consumerGroup: 'workers', subscriptions, messageListener: {} }),
  ];
  clients.forEach(client => s.owns(client));

  const results = await within('the starts to fail', Promise.allSettled(clients.map(c => c.startup())));

  for (const { status, reason } of results) {
    assert.equal(status, 'rejected');
    let cause = reason;
    while (cause.cause) ({ cause } = cause);
    assert.ok(cause instanceof NotFoundException, `${cause}`);
    assert.equal(cause.code, 40402);
    assert.match(cause.message, /missing/);
  }
});

scenario('a client that signs its calls is served', {}, async s => {
  await s.server.createTopic('orders');
  const sessionCredentials = { accessKey: 'key', accessSecret: 'secret' };
  const producer = await s.producer({ topics: [ 'orders' ], sessionCredentials });
  const consumer = await s.simpleConsumer('readers', 'orders', { sessionCredentials });

  await producer.send({ topic: 'orders', body: Buffer.from('signed') });

  const [ view ] = await receive(consumer, 1);
  assert.equal(view.body.toString(), 'signed');
  await consumer.ack(view);
});
