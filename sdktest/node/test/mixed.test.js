import assert from 'node:assert/strict';

import { receive, scenario } from '../harness/scenario.js';

// Plain messages, those of a message group, delayed ones and half messages in one topic.
scenario('a mixed topic keeps for each message what its type promises', {}, async s => {
  await s.server.createTopic('all', '--type=MIXED');
  await s.server.createGroup('workers', '--fifo');
  const inbox = await s.pushConsumer('workers', 'all');
  const producer = await s.producer({ topics: [ 'all' ], checker: { async check() { return 2; } } });
  const send = async (body, fields = {}, transaction) => await producer.send({ topic: 'all', body: Buffer.from(body), ...fields }, transaction);

  const due = new Date(Date.now() + 3_000);
  await send('delayed', { deliveryTimestamp: due });
  const recalled = await send('recalled', { deliveryTimestamp: due });
  const kept = producer.beginTransaction();
  await send('committed', {}, kept);
  const dropped = producer.beginTransaction();
  await send('rolled back', {}, dropped);
  await send('plain');
  for (let i = 0; i < 5; i++) await send(`ordered ${i}`, { messageGroup: 'g' });
  await producer.recallMessage('all', recalled.recallHandle);
  await kept.commit();
  await dropped.rollback();

  await inbox.receives([ 'plain', 'committed', 'delayed', 'ordered 4' ]);
  await s.server.settled('workers', 'all');
  const got = inbox.deliveries.map(d => d.body);
  assert.equal(got.length, 8);
  assert.deepEqual(got.filter(b => b.startsWith('ordered')), [ 0, 1, 2, 3, 4 ].map(i => `ordered ${i}`));
  assert.ok(inbox.of('delayed')[0].at >= due.getTime(), 'early');
  assert.ok(!got.includes('rolled back') && !got.includes('recalled'));
});

scenario('a mixed topic takes no message by priority and none of a lite topic', {}, async s => {
  await s.server.createTopic('all', '--type=MIXED');
  const producer = await s.producer({ topics: [ 'all' ] });
  await assert.rejects(producer.send({ topic: 'all', body: Buffer.from('x'), priority: 1 }), /type/i);
  await assert.rejects(producer.send({ topic: 'all', body: Buffer.from('x'), liteTopic: 'a' }), /type/i);
  await producer.send({ topic: 'all', body: Buffer.from('plain') });
  const views = await receive(await s.simpleConsumer('readers', 'all'), 1);
  assert.deepEqual(views.map(v => v.body.toString()), [ 'plain' ]);
});
