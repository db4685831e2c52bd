import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';

import { receive, scenario } from '../harness/scenario.js';

scenario('delayed messages come at their time, unless they are recalled', {}, async s => {
  await s.server.createTopic('orders', '--type=DELAY');
  const inbox = await s.pushConsumer('workers', 'orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const due = new Date(Date.now() + 3_000);
  const delayed = async (body, deliveryTimestamp) =>
    await producer.send({ topic: 'orders', body: Buffer.from(body), deliveryTimestamp });

  const kept = await delayed('kept', due);
  const recalled = await delayed('recalled', due);
  await delayed('past', new Date(Date.now() - 60_000));
  assert.ok(kept.recallHandle);

  const receipt = await producer.recallMessage('orders', recalled.recallHandle);
  assert.equal(receipt.messageId, recalled.messageId);

  await inbox.receives([ 'past', 'kept' ]);
  assert.ok(Date.now() >= due.getTime(), 'early');
  const [ first, second ] = inbox.deliveries;
  assert.equal(first.body, 'past');
  assert.equal(second.view.deliveryTimestamp.getTime(), due.getTime());

  await assert.rejects(producer.recallMessage('orders', kept.recallHandle), /delivered/);
  await assert.rejects(producer.recallMessage('orders', 'nonsense'), /handle/);
  await pause(500);
  assert.deepEqual(inbox.deliveries.map(d => d.body), [ 'past', 'kept' ]);
  await s.server.settled('workers', 'orders');
});

scenario('a delay beyond the limit is refused with the limit', { '--max-delay': '1h' }, async s => {
  await s.server.createTopic('orders', '--type=DELAY');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const far = { topic: 'orders', body: Buffer.from('far'), deliveryTimestamp: new Date(Date.now() + 7_200_000) };
  await assert.rejects(producer.send(far), /1h0m0s/);
  const near = { ...far, deliveryTimestamp: new Date(Date.now() + 100) };
  await producer.send(near);
  assert.equal((await receive(await s.simpleConsumer('readers', 'orders'), 1)).length, 1);
});

// The clock of this client is ten minutes ahead.
scenario('a delay by the clock of the server is right whatever the client says', {}, async s => {
  await s.server.createTopic('orders', '--type=DELAY');
  const inbox = await s.pushConsumer('workers', 'orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = Date.now();
  await producer.send({
    topic: 'orders', body: Buffer.from('soon'), deliveryTimestamp: new Date(sent + 600_000), properties: new Map([ [ 'perigee.delay', '2s' ], [ 'color', 'red' ] ]),
  });
  await inbox.receives([ 'soon' ]);
  const [ { view, at } ] = inbox.deliveries;
  assert.ok(at - sent >= 2_000, `${at - sent} ms`);
  assert.deepEqual([ ...view.properties ], [ [ 'color', 'red' ] ]);
});
