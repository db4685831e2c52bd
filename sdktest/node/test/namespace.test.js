import assert from 'node:assert/strict';

import { receive, scenario } from '../harness/scenario.js';

// Most requests of the SDK name the namespace in a header only.
scenario('namespaces keep topics and groups of the same name apart', {}, async s => {
  for (const namespace of [ 'blue', 'green' ]) {
    await s.server.createTopic('orders', `--namespace=${namespace}`);
    const producer = await s.producer({ topics: [ 'orders' ], namespace });
    await producer.send({ topic: 'orders', body: Buffer.from(namespace) });
  }

  for (const namespace of [ 'blue', 'green' ]) {
    const consumer = await s.simpleConsumer('readers', 'orders', { namespace });
    const views = await receive(consumer, 1);
    assert.deepEqual(views.map(v => v.body.toString()), [ namespace ]);
    await consumer.ack(views[0]);
    assert.deepEqual(await consumer.receive(10, 10_000), []);
    const inbox = await s.pushConsumer('workers', 'orders', undefined, { namespace });
    await inbox.receives([ namespace ]);
    assert.equal(inbox.deliveries.length, 1);
  }
});
