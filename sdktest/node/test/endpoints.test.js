import assert from 'node:assert/strict';

import { Forwarder } from '../harness/forwarder.js';
import { bodies, receive, scenario } from '../harness/scenario.js';

scenario('clients that come through another port stay on it', {}, async s => {
  await s.server.createTopic('orders');
  const outside = await Forwarder.start(s.server.port);
  s.onEnd(() => outside.close());
  const through = { endpoints: outside.endpoint };
  const inbox = await s.pushConsumer('workers', 'orders', undefined, through);
  const consumer = await s.simpleConsumer('readers', 'orders', through);
  const producer = await s.producer({ topics: [ 'orders' ], ...through });
  const sent = bodies(10);

  for (const body of sent) {
    const receipt = await producer.send({ topic: 'orders', body: Buffer.from(body) });
    assert.equal(receipt.endpoints.facade, outside.endpoint);
  }
  await inbox.receives(sent);
  const views = await receive(consumer, 10);
  for (const view of views) await consumer.ack(view);

  assert.notEqual(outside.endpoint, s.server.endpoint);
  for (const view of [ ...views, ...inbox.deliveries.map(d => d.view) ]) {
    assert.equal(view.endpoints.facade, outside.endpoint);
  }
  assert.equal(await s.server.open('readers', 'orders'), 0);
});

scenario('a host name that clients use stays in the addresses they get', {}, async s => {
  await s.server.createTopic('orders');
  const byName = `localhost:${s.server.port}`;
  const producer = await s.producer({ topics: [ 'orders' ], endpoints: byName });

  const receipt = await producer.send({ topic: 'orders', body: Buffer.from('named') });

  assert.equal(receipt.endpoints.facade, byName);
});
