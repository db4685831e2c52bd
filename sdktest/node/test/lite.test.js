import assert from 'node:assert/strict';

import { oneShard, scenario, short } from '../harness/scenario.js';
import { OffsetOption } from '../harness/sdk.js';
import { until } from '../harness/wait.js';

/** Sends messages to lite topics; a body is the lite topic and a number. */
async function sendTo(producer, topic, liteTopics, from, to) {
  for (let i = from; i < to; i++) {
    for (const liteTopic of liteTopics) await producer.send({ topic, liteTopic, body: Buffer.from(`${liteTopic} ${i}`) });
  }
}

const numbers = (liteTopic, from, to) => Array.from({ length: to - from }, (_, i) => `${liteTopic} ${from + i}`);

const ofLite = (deliveries, liteTopic) => deliveries.filter(d => d.view.liteTopic === liteTopic).map(d => d.body);

scenario('lite push consumers work through the lite topics they want, each in its order', {}, async s => {
  await s.server.createTopic('chats', '--type=LITE');
  await s.server.createGroup('readers', '--lite-topic=chats', '--retry-delays=1s');
  const failed = new Set();
  const done = [];
  const one = await s.litePushConsumer('readers', 'chats', d => {
    if (d.body === 'ann 3' && !failed.has(d.body)) {
      failed.add(d.body);
      return false;
    }
    done.push(d);
    return true;
  });
  const two = await s.litePushConsumer('readers', 'chats');
  await one.client.subscribeLite('ann');
  await one.client.subscribeLite('bob');
  await two.client.subscribeLite('cleo');
  const producer = await s.producer({ topics: [ 'chats' ] });

  await sendTo(producer, 'chats', [ 'ann', 'bob', 'cleo', 'nobody' ], 0, 10);

  await until('all of them', () => done.length >= 20 && two.inbox.deliveries.length >= 10);
  for (const liteTopic of [ 'ann', 'bob' ]) assert.deepEqual(ofLite(done, liteTopic), numbers(liteTopic, 0, 10));
  assert.deepEqual(two.inbox.deliveries.map(d => d.body), numbers('cleo', 0, 10));
  assert.deepEqual([ ...failed ], [ 'ann 3' ]);

  await one.client.unsubscribeLite('bob');
  await two.client.subscribeLite('bob');
  await sendTo(producer, 'chats', [ 'bob' ], 10, 12);
  await two.inbox.receives(numbers('bob', 10, 12));
  assert.deepEqual(ofLite(done, 'bob'), numbers('bob', 0, 10));
  assert.deepEqual(ofLite(two.inbox.deliveries, 'bob'), numbers('bob', 10, 12));
  await s.server.settled('readers', 'chats');
});

scenario('a lite consumer that knows where to begin gets what lies there', {}, async s => {
  await s.server.createTopic('chats', '--type=LITE');
  const producer = await s.producer({ topics: [ 'chats' ] });
  await sendTo(producer, 'chats', [ 'ann' ], 0, 5);
  const all = await s.litePushConsumer('all', 'chats');
  const tail = await s.litePushConsumer('tail', 'chats');
  await all.client.subscribeLite('ann', OffsetOption.ofOffset(0));
  await tail.client.subscribeLite('ann', OffsetOption.ofTailN(2));
  await all.inbox.receives(numbers('ann', 0, 5));
  await tail.inbox.receives(numbers('ann', 3, 5));
  assert.deepEqual(tail.inbox.deliveries.map(d => d.body), numbers('ann', 3, 5));
});

// The server forgets what clients want, and they say it again every half minute.
if (!short) {
  scenario('lite consumers go on after a crash of the server', {}, async s => {
    await s.server.createTopic('chats', '--type=LITE');
    const producer = await s.producer({ topics: [ 'chats' ] });
    const { client, inbox } = await s.litePushConsumer('readers', 'chats');
    await client.subscribeLite('ann');
    await sendTo(producer, 'chats', [ 'ann' ], 0, 5);
    await inbox.receives(numbers('ann', 0, 5));
    await s.server.settled('readers', 'chats');

    await s.server.kill();
    await s.server.restart();
    await until('a send', async () => {
      await sendTo(producer, 'chats', [ 'ann' ], 5, 6);
      return true;
    });
    await inbox.receives(numbers('ann', 5, 6), 60_000);
    assert.deepEqual(inbox.deliveries.map(d => d.body), numbers('ann', 0, 6));
  });
}

scenario('in an exclusive group the consumer that comes last has the lite topic', {}, async s => {
  await s.server.createTopic('chats', '--type=LITE');
  await s.server.createGroup('readers', '--lite-topic=chats', '--lite-exclusive');
  const first = await s.litePushConsumer('readers', 'chats');
  const second = await s.litePushConsumer('readers', 'chats');
  const producer = await s.producer({ topics: [ 'chats' ] });
  await first.client.subscribeLite('ann');
  await sendTo(producer, 'chats', [ 'ann' ], 0, 1);
  await first.inbox.receives([ 'ann 0' ]);

  // The SDK does not know the command that tells the first one so.
  await second.client.subscribeLite('ann');
  await sendTo(producer, 'chats', [ 'ann' ], 1, 3);
  await second.inbox.receives(numbers('ann', 1, 3));
  assert.deepEqual(first.inbox.deliveries.map(d => d.body), [ 'ann 0' ]);
});

scenario('what lite consumers may not do is told with its limit', { '--lite-topics': '2', '--lite-client-subscriptions': '1' }, async s => {
  await s.server.createTopic('chats', '--type=LITE');
  const producer = await s.producer({ topics: [ 'chats' ] });
  const { client } = await s.litePushConsumer('readers', 'chats');
  await client.subscribeLite('ann');
  await assert.rejects(client.subscribeLite('bob'), /quota exceeded 1|the limit is 1/i);
  await sendTo(producer, 'chats', [ 'bob' ], 0, 1);
  await assert.rejects(sendTo(producer, 'chats', [ 'cleo' ], 0, 1), /the limit is 2/);
  await assert.rejects(sendTo(producer, 'chats', [ 'no name' ], 0, 1), /letters, digits/);
  await assert.rejects(producer.send({ topic: 'chats', body: Buffer.from('plain') }), /type/i);
}, oneShard);
