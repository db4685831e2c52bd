import assert from 'node:assert/strict';

import { receive, scenario } from '../harness/scenario.js';
import { FilterExpression, FilterType } from '../harness/sdk.js';

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

scenario('consumers choose by properties with SQL92', {}, async s => {
  await s.server.createTopic('orders');
  const filter = new FilterExpression("price > 5 AND region IN ('eu', 'asia') AND TAGS = 'paid'", FilterType.SQL);
  const inbox = await s.pushConsumer('workers', { orders: filter });
  const producer = await s.producer({ topics: [ 'orders' ] });
  for (const [ price, region, tag ] of [ [ '3', 'eu', 'paid' ], [ '7', 'eu', 'paid' ], [ '9', 'us', 'paid' ], [ '12', 'asia', 'paid' ], [ '20', 'eu', 'sent' ] ]) {
    await producer.send({ topic: 'orders', body: Buffer.from(price), tag, properties: new Map([ [ 'price', price ], [ 'region', region ] ]) });
  }

  await inbox.receives([ '7', '12' ]);
  await s.server.settled('workers', 'orders');
  assert.deepEqual(inbox.deliveries.map(d => d.body).sort(), [ '12', '7' ]);

  const rest = await s.simpleConsumer('others', { orders: new FilterExpression('NOT price > 5', FilterType.SQL) });
  assert.deepEqual((await receive(rest, 1)).map(v => v.body.toString()), [ '3' ]);
});
