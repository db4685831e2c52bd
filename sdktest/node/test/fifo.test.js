import assert from 'node:assert/strict';

import { receive, scenario } from '../harness/scenario.js';
import { until } from '../harness/wait.js';

/** Sends n messages to each message group, in turn. A body is the group and a number. */
async function sendGroups(s, groups, n) {
  const producer = await s.producer({ topics: [ 'orders' ] });
  const sent = [];
  for (let i = 0; i < n; i++) {
    for (const messageGroup of groups) {
      sent.push(`${messageGroup} ${i}`);
      await producer.send({ topic: 'orders', messageGroup, body: Buffer.from(sent.at(-1)) });
    }
  }
  return sent;
}

const ofGroup = (bodies, group) => bodies.filter(b => b.startsWith(`${group} `));

scenario('a FIFO push consumer that fails now and then keeps the order of each message group', {}, async s => {
  await s.server.createTopic('orders', '--type=FIFO');
  await s.server.createGroup('workers', '--fifo', '--retry-delays=1s', '--max-attempts=5');
  const groups = [ 'anna', 'bert', 'cleo' ];
  const sent = await sendGroups(s, groups, 15);
  const failed = new Set();
  const done = [];
  const decide = d => {
    if (d.body.endsWith('3') && !failed.has(d.body)) {
      failed.add(d.body);
      return false;
    }
    done.push(d.body);
    return true;
  };
  await s.pushConsumer('workers', 'orders', decide);
  await s.pushConsumer('workers', 'orders', decide);

  await until('all messages', () => done.length >= sent.length);
  await s.server.settled('workers', 'orders');

  for (const group of groups) assert.deepEqual(ofGroup(done, group), ofGroup(sent, group));
  assert.equal(failed.size, 2 * groups.length);
});

scenario('a message that always fails is forwarded to the dead letters, and its message group goes on', {}, async s => {
  await s.server.createTopic('orders', '--type=FIFO');
  await s.server.createGroup('workers', '--fifo', '--retry-delays=1s', '--max-attempts=3');
  const inbox = await s.pushConsumer('workers', 'orders', d => d.body !== 'anna 1');
  const sent = await sendGroups(s, [ 'anna', 'bert' ], 4);

  const [ dead ] = await receive(await s.simpleConsumer('undertakers', '%DLQ%workers'), 1);
  await inbox.receives(sent);
  await s.server.settled('workers', 'orders');

  assert.equal(dead.body.toString(), 'anna 1');
  assert.equal(dead.properties.get('perigee.dead-letter.reason'), 'forwarded by the consumer');
  const order = inbox.deliveries.map(d => d.body).filter((b, i, all) => all.indexOf(b) === i);
  assert.deepEqual(ofGroup(order, 'anna'), ofGroup(sent, 'anna'));
});

scenario('a simple consumer gets a message group in order, and no later one before the first is settled', {}, async s => {
  await s.server.createTopic('orders', '--type=FIFO');
  await s.server.createGroup('readers', '--fifo');
  const sent = await sendGroups(s, [ 'anna' ], 4);
  const consumer = await s.simpleConsumer('readers', 'orders');

  const [ first ] = await receive(consumer, 1, { batch: 1 });
  assert.equal(first.body.toString(), sent[0]);
  assert.deepEqual(await consumer.receive(32, 30_000), []);
  await consumer.ack(first);
  const rest = await receive(consumer, 3);
  assert.deepEqual(rest.map(v => v.body.toString()), sent.slice(1));
});

// A consumer that never heard of message groups must not be held up by them.
scenario('a group that is not FIFO reads a FIFO topic in any order', {}, async s => {
  await s.server.createTopic('orders', '--type=FIFO');
  const sent = await sendGroups(s, [ 'anna' ], 2);
  const consumer = await s.simpleConsumer('readers', 'orders');

  const [ first ] = await receive(consumer, 1, { batch: 1 });
  const [ second ] = await receive(consumer, 1, { batch: 1 });
  assert.deepEqual([ first, second ].map(v => v.body.toString()), sent);
});
