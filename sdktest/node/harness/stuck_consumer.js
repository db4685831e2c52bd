// A push consumer that never finishes the messages it gets: it prints the body of
// each and keeps it.
//
//   node stuck_consumer.js ENDPOINT TOPIC GROUP [CACHE]
//
// With CACHE it holds no more messages than that, and polls no more once it does.

import { PushConsumer } from './sdk.js';

const [ endpoints, topic, consumerGroup, cache ] = process.argv.slice(2);

const consumer = new PushConsumer({
  endpoints,
  consumerGroup,
  subscriptions: new Map([ [ topic, '*' ] ]),
  logger: { info() {}, warn() {}, error() {} },
  ...cache && { maxCacheMessageCount: Number(cache) },
  messageListener: {
    consume: view => {
      console.log(view.body.toString());
      return new Promise(() => {});
    },
  },
});
await consumer.startup();
