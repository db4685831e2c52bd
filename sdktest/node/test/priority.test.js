import assert from 'node:assert/strict';

import { oneShard, receive, scenario } from '../harness/scenario.js';

// The SDK takes a priority of 0 for none.
scenario('higher priorities are received first, and first again when they fail', {}, async s => {
  await s.server.createTopic('urgent', '--type=PRIORITY', '--queues=4');
  const producer = await s.producer({ topics: [ 'urgent' ] });
  for (const priority of [ 1, 2, 9, 3 ]) {
    await producer.send({ topic: 'urgent', priority, body: Buffer.from(`priority ${priority}`) });
  }
  const consumer = await s.simpleConsumer('readers', 'urgent');

  const views = await receive(consumer, 4);

  const texts = list => list.map(v => v.body.toString());
  assert.deepEqual(texts(views), [ 9, 3, 2, 1 ].map(p => `priority ${p}`));
  assert.equal(views[0].priority, 9);
  for (const view of [ views[3], views[1] ]) await consumer.changeInvisibleDuration(view, 0);
  assert.deepEqual(texts(await receive(consumer, 2)), [ 'priority 3', 'priority 1' ]);
}, oneShard);
