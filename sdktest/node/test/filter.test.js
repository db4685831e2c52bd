import assert from 'node:assert/strict';

import { receive, scenario } from '../harness/scenario.js';
import { FilterExpression } from '../harness/sdk.js';

scenario('consumers get the tags they ask for', {}, async s => {
  await s.server.createTopic('orders');
  const inbox = await s.pushConsumer('workers', { orders: new FilterExpression('created || paid') });
  const producer = await s.producer({ topics: [ 'orders' ] });
  for (const tag of [ 'created', 'paid', 'shipped', 'paid2', undefined, 'created' ]) {
    await producer.send({ topic: 'orders', body: Buffer.from(`${tag}`), tag });
  }

  await inbox.receives([ 'created', 'paid' ]);
  await s.server.settled('workers', 'orders');
  assert.deepEqual(inbox.deliveries.map(d => d.body).sort(), [ 'created', 'created', 'paid' ]);

  const shipped = await receive(await s.simpleConsumer('shippers', { orders: 'shipped' }), 1);
  assert.deepEqual(shipped.map(v => [ v.tag, v.body.toString() ]), [ [ 'shipped', 'shipped' ] ]);
  assert.equal((await receive(await s.simpleConsumer('auditors', 'orders'), 6)).length, 6);
});
