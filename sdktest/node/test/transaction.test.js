import assert from 'node:assert/strict';

import definitions from 'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js';

import { scenario } from '../harness/scenario.js';
import { until } from '../harness/wait.js';

const { TransactionResolution } = definitions;

const quick = { '--transactions-first-check': '1s', '--transactions-check-interval': '1s', '--transactions-max-check-interval': '1s' };

scenario('transactions end as their producers say, at once or when asked', quick, async s => {
  await s.server.createTopic('orders', '--type=TRANSACTION');
  const inbox = await s.pushConsumer('workers', 'orders');
  const asked = [];
  const answers = new Map([
    [ 'asked, committed', TransactionResolution.COMMIT ],
    [ 'asked, rolled back', TransactionResolution.ROLLBACK ],
  ]);
  const checker = {
    async check(view) {
      const body = view.body.toString();
      asked.push(body);
      return answers.get(body) ?? TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
    },
  };
  const producer = await s.producer({ topics: [ 'orders' ], checker });
  const half = async body => {
    const transaction = producer.beginTransaction();
    const receipt = await producer.send({ topic: 'orders', body: Buffer.from(body), keys: [ 'key' ], tag: 'tag' }, transaction);
    assert.ok(receipt.transactionId);
    return transaction;
  };
  await (await half('committed')).commit();
  const rolledBack = await half('rolled back');
  await rolledBack.rollback();
  await rolledBack.rollback();
  await assert.rejects(rolledBack.commit(), /ended/);
  for (const body of [ 'asked, committed', 'asked, rolled back', 'asked, unknown' ]) await half(body);

  await inbox.receives([ 'committed', 'asked, committed' ]);
  await until('three questions', () => asked.filter(body => body === 'asked, unknown').length >= 3);
  answers.set('asked, unknown', TransactionResolution.COMMIT);
  await inbox.receives([ 'committed', 'asked, committed', 'asked, unknown' ]);
  await s.server.settled('workers', 'orders');
  assert.equal(asked.filter(body => body === 'asked, rolled back').length, 1);
  assert.ok(!asked.includes('committed') && !asked.includes('rolled back'));
});
