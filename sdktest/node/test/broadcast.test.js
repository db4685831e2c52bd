import assert from 'node:assert/strict';

import { oneShard, receive, scenario } from '../harness/scenario.js';

scenario('every client of a broadcast group receives every message', {}, async s => {
  await s.server.createTopic('news', '--queues=1');
  await s.server.createGroup('caches', '--broadcast');
  const producer = await s.producer({ topics: [ 'news' ] });
  const consumers = [ await s.simpleConsumer('caches', 'news'), await s.simpleConsumer('caches', 'news') ];
  // A client begins behind what is there when it first receives from a shard.
  for (const consumer of consumers) assert.deepEqual(await consumer.receive(16, 30000), []);
  const sent = [];
  for (let i = 0; i < 10; i++) {
    sent.push(`news ${i}`);
    await producer.send({ topic: 'news', body: Buffer.from(sent[i]) });
  }

  for (const consumer of consumers) {
    const views = await receive(consumer, sent.length);
    assert.deepEqual(views.map(v => v.body.toString()).sort(), sent);
    for (const view of views) await consumer.ack(view);
  }
}, oneShard);
